//! Clocks, and the processor.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
#[cfg(target_arch = "x86_64")]
use core::sync::atomic::AtomicU8;
use core::sync::atomic::{AtomicIsize, AtomicPtr, Ordering::Relaxed};

/// Where libc has registered an rseq(2) area in each thread's own memory, counted from the thread's
/// pointer; 0: nowhere.
static RSEQ: AtomicIsize = AtomicIsize::new(0);

/// Each thread has an rseq area `offset` bytes from its thread pointer.
pub fn has_rseq_at(offset: isize) {
    RSEQ.store(offset, Relaxed);
}

/// The processor that the kernel has noted in the thread's rseq area, plus one; 0: there is none.
#[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
#[inline(always)]
fn noted_cpu() -> u32 {
    let offset = RSEQ.load(Relaxed);
    if offset == 0 {
        return 0;
    }
    let cpu: i32;
    // SAFETY: the thread's own memory, by what libc has said; its second word is the processor, or
    // negative.
    unsafe {
        core::arch::asm!(
            "mov {cpu:e}, dword ptr fs:[{offset} + 4]", cpu = out(reg) cpu, offset = in(reg) offset,
            options(nostack, preserves_flags, readonly)
        );
    }
    if cpu < 0 { 0 } else { (cpu as u32 & 0xfff) + 1 }
}

/// The processor that the kernel has noted in the thread's rseq area, plus one; 0: there is none.
/// On arm64 the thread's pointer is a register. A C library before 2.35 has no such
/// area, and then a processor cannot be told cheaply: nobody busy-waits.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn noted_cpu() -> u32 {
    let offset = RSEQ.load(Relaxed);
    if offset == 0 {
        return 0;
    }
    let cpu: i32;
    // SAFETY: the thread's own memory, by what libc has said; its second word is the processor, or
    // negative.
    unsafe {
        core::arch::asm!(
            "mrs {at}, tpidr_el0", "add {at}, {at}, {offset}", "ldr {cpu:w}, [{at}, #4]",
            at = out(reg) _, cpu = lateout(reg) cpu, offset = in(reg) offset,
            options(nostack, preserves_flags, readonly)
        );
    }
    if cpu < 0 { 0 } else { (cpu as u32 & 0xfff) + 1 }
}

/// Without libc nobody registers an rseq area, and FS is the program's.
#[cfg(all(target_arch = "x86_64", shortwire_raw))]
fn noted_cpu() -> u32 {
    0
}

/// Whether the processor has `rdtscp`. Virtual machines with a model of before 2010, or a common part of
/// many, have not (QEMU's `kvm64`, `qemu64`, `Nehalem`), and it would be SIGILL there.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn has_rdtscp() -> bool {
    /// 0: nobody has asked, 1: no, 2: yes.
    static HAS: AtomicU8 = AtomicU8::new(0);
    #[cold]
    fn ask() -> u8 {
        // Leaf 0x80000001 is there on all processors with 64 bits.
        let has = core::arch::x86_64::__cpuid(0x8000_0001).edx >> 27 & 1 != 0;
        HAS.store(1 + u8::from(has), Relaxed);
        1 + u8::from(has)
    }
    let has = match HAS.load(Relaxed) {
        0 => ask(),
        known => known,
    };
    has == 2
}

/// The processor this thread runs on, plus one (0 where it cannot be told cheaply), and the time in
/// `ticks`.
#[inline]
pub fn cpu_and_ticks() -> (u32, u64) {
    #[cfg(target_arch = "x86_64")]
    {
        // Unlike `rdtscp`, neither waits for all instructions before it.
        let cpu = noted_cpu();
        if cpu != 0 {
            return (cpu, ticks());
        }
        if !has_rdtscp() {
            return (0, ticks());
        }
        let (aux, low, high): (u32, u32, u32);
        // SAFETY: rdtscp reads the time stamp and IA32_TSC_AUX, in which Linux keeps the processor
        // number.
        unsafe {
            core::arch::asm!("rdtscp", out("eax") low, out("edx") high, out("ecx") aux, options(nomem, nostack))
        };
        ((aux & 0xfff) + 1, u64::from(high) << 32 | u64::from(low))
    }
    #[cfg(target_arch = "aarch64")]
    {
        (noted_cpu(), ticks())
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        (0, ticks())
    }
}

/// The processor, see `cpu_and_ticks`.
#[inline]
pub fn cpu() -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let cpu = noted_cpu();
        if cpu != 0 {
            return cpu;
        }
    }
    cpu_and_ticks().0
}

/// A clock that costs next to nothing, of which `span` are 8 to 30 milliseconds.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the time stamp.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads the generic timer, which Linux lets programs read.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
        };
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    coarse_ns()
}

/// What `ticks` counts in 8 to 30 milliseconds.
#[inline(always)]
pub fn span() -> u64 {
    #[cfg(target_arch = "aarch64")]
    {
        let per_second: u64;
        // SAFETY: reads the timer's frequency, which the firmware has put there: from 24 MHz to 1 GHz
        // on machines of today, so it cannot be guessed.
        unsafe {
            core::arch::asm!("mrs {}, cntfrq_el0", out(reg) per_second, options(nomem, nostack, preserves_flags))
        };
        per_second >> 6
    }
    #[cfg(not(target_arch = "aarch64"))]
    {
        const SPAN: u64 = if cfg!(target_arch = "x86_64") { 1 << 25 } else { 1 << 24 };
        SPAN
    }
}

/// `clock_gettime`, as libc has it.
pub type Clock = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

static CLOCK: AtomicPtr<c_void> = AtomicPtr::new(libc::clock_gettime as *mut c_void);

/// Time is told by this function from now on. What stands under its name may be another library's, for
/// tests that want another time (libfaketime): a clock that stands still would end no wait of ours, and
/// one that jumps would end them too soon.
pub fn time_is_told_by(clock: Clock) {
    CLOCK.store(clock as *mut c_void, Relaxed);
}

#[inline]
fn time_of(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: nothing but a `Clock` is ever stored there.
    let ask = unsafe { core::mem::transmute::<*mut c_void, Clock>(CLOCK.load(Relaxed)) };
    // SAFETY: `ts` is a live timespec.
    unsafe { ask(clock, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Monotonic nanoseconds, by the vDSO through libc: a name that we do not export.
#[inline]
pub fn now_ns() -> u64 {
    time_of(libc::CLOCK_MONOTONIC)
}

/// Monotonic nanoseconds as of the kernel's last tick: a few milliseconds late, and cheaper than
/// `now_ns`.
pub fn coarse_ns() -> u64 {
    time_of(libc::CLOCK_MONOTONIC_COARSE)
}

/// Monotonic milliseconds by `coarse_ns`; they wrap after 49 days.
pub fn coarse_ms() -> u32 {
    (coarse_ns() / 1_000_000) as u32
}

/// The time of day: seconds and nanoseconds.
pub fn realtime() -> (u64, u32) {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut ts) };
    (ts.tv_sec as u64, ts.tv_nsec as u32)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Also where there is no such instruction: this ends by SIGILL there if it is executed.
    #[test]
    fn the_processor_is_told_where_it_can_be() {
        let (cpu, ticks) = cpu_and_ticks();
        assert!(cpu <= 0x1000 && ticks > 0);
        assert!(cpu != 0 || !has_rdtscp());
    }
}
