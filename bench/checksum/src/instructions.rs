//! Instructions per call, counted one by one: a child of this program calls, and is stopped behind each of its instructions.
//! The count is exact where times say nothing: on a machine that other work shares, or one that is emulated.
#![allow(unsafe_code)]

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use libc::{c_int, pid_t};

use crate::sum::Routine;

/// Of the packets.
pub const LENGTHS: [usize; 10] = [20, 40, 64, 65, 128, 256, 576, 1500, 4096, 9000];

/// Where the child is between two counts.
#[inline(never)]
extern "C" fn mark() {
    // SAFETY: no instruction; the call of an empty function could be left out.
    unsafe { std::arch::asm!("", options(nostack, preserves_flags)) };
}

/// For each routine the instructions of a call, by length. What a loop adds to a call is in it, the same two or three for all.
pub fn count(routines: &[Routine], lengths: &[usize]) -> Result<Vec<Vec<u64>>> {
    let memory = vec![0x5a; lengths.iter().max().map_or(0, |most| most + 64)];
    let data = &memory[memory.as_ptr().align_offset(64)..];
    // What is done once only, such as the choice of a kernel, is done in front of all counts.
    routines.iter().for_each(|routine| _ = routine.loops.repeat(&data[..lengths[0]], 1));
    // SAFETY: the child calls nothing but routines, which take no lock of another thread.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(Error::last_os_error()),
        0 => call(routines, lengths, data),
        child => child,
    };
    let marks = step(child).inspect_err(|_| {
        // SAFETY: a child that has not been waited for to its end.
        unsafe { libc::kill(child, libc::SIGKILL) };
        let _ = wait(child);
    })?;
    if marks.len() != 3 * lengths.len() * routines.len() {
        return Err(Error::other("the child may not be traced, or has ended too early"));
    }
    // One call, and two: the difference is a call without what belongs to the loop's beginning and end.
    let calls =
        marks.as_chunks::<3>().0.iter().map(|[begin, one, two]| (two - one) - (one - begin));
    let calls: Vec<u64> = calls.collect();
    Ok(calls.chunks(lengths.len()).map(<[u64]>::to_vec).collect())
}

/// What the child does.
fn call(routines: &[Routine], lengths: &[usize], data: &[u8]) -> ! {
    // SAFETY: asks to be traced.
    let asked =
        unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) };
    if asked < 0 {
        // SAFETY: ends the child alone. Untraced it would stop for ever.
        unsafe { libc::_exit(1) };
    }
    // SAFETY: stops until the parent steps.
    unsafe { libc::raise(libc::SIGSTOP) };
    for routine in routines {
        for &length in lengths {
            mark();
            routine.loops.repeat(&data[..length], 1);
            mark();
            routine.loops.repeat(&data[..length], 2);
            mark();
        }
    }
    // SAFETY: ends the child alone, without what the parent has yet to print.
    unsafe { libc::_exit(0) }
}

/// Lets the child go on by single instructions to its end: after how many of them it came to a mark.
fn step(child: pid_t) -> Result<Vec<u64>> {
    let (mut steps, mut marks) = (0, Vec::new());
    if !libc::WIFSTOPPED(wait(child)?) {
        return Ok(marks);
    }
    loop {
        // SAFETY: a child that is stopped.
        let stepped = unsafe {
            libc::ptrace(libc::PTRACE_SINGLESTEP, child, null_mut::<u8>(), null_mut::<u8>())
        };
        if stepped < 0 {
            return Err(Error::last_os_error());
        }
        if !libc::WIFSTOPPED(wait(child)?) {
            return Ok(marks);
        }
        steps += 1;
        if place(child)? == mark as *const () as u64 {
            marks.push(steps);
        }
    }
}

fn wait(child: pid_t) -> Result<c_int> {
    let mut status = 0;
    // SAFETY: a child of this process.
    match unsafe { libc::waitpid(child, &raw mut status, 0) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(status),
    }
}

/// Where a child that is stopped goes on.
fn place(child: pid_t) -> Result<u64> {
    let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
    let mut room =
        libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: size_of_val(&registers) };
    // SAFETY: the kernel writes into the registers' room.
    let read = unsafe {
        libc::ptrace(libc::PTRACE_GETREGSET, child, libc::NT_PRSTATUS as usize, &raw mut room)
    };
    if read < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: numbers, all of which were zero at least.
    let registers = unsafe { registers.assume_init() };
    #[cfg(target_arch = "x86_64")]
    return Ok(registers.rip);
    #[cfg(target_arch = "aarch64")]
    return Ok(registers.pc);
}

#[cfg(test)]
mod tests {
    use super::count;
    use crate::sum::Role::Rival;
    use crate::sum::Routine;

    const LENGTHS: [usize; 2] = [10, 100];

    /// Twice the work is twice the instructions, but for what both have.
    #[test]
    fn a_loop_is_counted() {
        let each = |data: &[u8], times: usize| {
            let sum = |_| {
                data.iter().fold(0u64, |sum, byte| std::hint::black_box(sum + u64::from(*byte)))
            };
            (0..times).map(sum).sum()
        };
        let once = Routine::new("once", Rival, None, move |data| each(data, 1));
        let twice = Routine::new("twice", Rival, None, move |data| each(data, 2));
        let counts = match count(&[once, twice], &LENGTHS) {
            Ok(counts) => counts,
            // Where a process may not trace its children, or under an emulator of programs.
            Err(why) => return println!("skipped: instructions cannot be counted: {why}"),
        };
        let (once, twice) = (counts[0][1] as f64, counts[1][1] as f64);
        assert!(once > LENGTHS[1] as f64 && (1.8..2.2).contains(&(twice / once)), "{counts:?}");
        assert!(counts.iter().all(|by_length| by_length.is_sorted()), "{counts:?}");
    }
}
