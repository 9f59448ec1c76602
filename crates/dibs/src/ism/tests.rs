//! What is particular to ism, beside the suite for all devices.
#![allow(unsafe_code)]

use super::*;
use crate::conformance::{Pair, run};
use crate::faults;
use rustix::process::{Pid, WaitOptions, waitpid};

const LEN: u32 = 1 << 14;

fn me() -> i32 {
    std::process::id() as i32
}

fn pair(slots: u32, max_dmbs: u32) -> (Ism, Ism) {
    let (a, b) = (Ism::with_limits(slots, max_dmbs), Ism::with_limits(slots, max_dmbs));
    a.admit(b.gid());
    b.admit(a.gid());
    (a, b)
}

fn byte(addr: *mut u8) -> u8 {
    // SAFETY: an address within a mapping of the test's devices.
    unsafe { addr.read_volatile() }
}

#[test]
fn conforms() {
    for (slots, max_dmbs) in [(1, 7), (3, 10), (1024, 1500)] {
        let (a, b) = pair(slots, max_dmbs);
        run(Pair { a: &a, b: &b });
        run(Pair { a: &b, b: &a });
    }
}

#[test]
fn conforms_with_faults() {
    for (slots, max_dmbs) in [(1, 7), (3, 10)] {
        let (a, b) = pair(slots, max_dmbs);
        faults::run(Pair { a: &a, b: &b });
        faults::run(Pair { a: &b, b: &a });
    }
}

#[test]
fn is_an_emulated_device_that_copies() {
    let a = Ism::new();
    assert_eq!((a.name(), a.chid()), ("ism", 0xFF00));
    assert_ne!(a.gid(), Loopback::new().gid());
}

#[test]
fn partitions_do_not_reach_each_other() {
    let (a, b) = pair(4, 8);
    assert!(a.query_remote_gid(a.gid()) && a.query_remote_gid(b.gid()));
    let of_0 = b.gid();
    b.set_partition(3);
    assert_eq!((b.chid(), b.gid().hi >> 48), (0xFF83, 0xFF83));
    a.admit(b.gid());
    assert!(
        !a.query_remote_gid(b.gid()) && !b.query_remote_gid(a.gid()) && !b.query_remote_gid(of_0)
    );
    a.set_partition(3);
    a.admit(b.gid());
    assert!(a.query_remote_gid(b.gid()));
    b.set_partition(u16::MAX);
    assert_eq!(b.chid(), 0xFFFE, "the last, beside loopback's");
}

#[test]
fn no_descriptor_is_left_that_could_map_a_buffer() {
    let (a, b) = pair(4, 8);
    let d = a.register_dmb(1, b.gid(), LEN).unwrap();
    assert!(a.own.lend(d.token).is_none());
}

#[test]
fn places_that_are_not_true_are_refused() {
    let (a, b) = pair(4, 8);
    let d = a.register_dmb(1, b.gid(), LEN).unwrap();
    let place = a.place(d.token).unwrap();
    let attach = |pid, token, len, place| b.reach(1, a.gid(), token, len, pid, place);
    let (false_form, not_there) = (AttachError::BadShare, AttachError::UnknownToken);
    for (bad, why) in [
        (Place { proof: place.proof ^ 2, ..place }, not_there),
        (Place { proof: 0, ..place }, false_form),
        (Place { base: place.base + 4096, ..place }, not_there),
        (Place { base: place.base + 1, ..place }, false_form),
        (Place { base: 0, ..place }, not_there),
        (Place { base: u64::MAX - 7, ..place }, false_form),
        (Place { len: place.len + 1, ..place }, false_form),
        (Place { len: u64::MAX, ..place }, false_form),
        (Place { len: 0, ..place }, false_form),
    ] {
        assert_eq!(attach(me(), d.token, LEN, bad), Err(why), "{bad:?}");
    }
    for len in [0, LEN - 1, 8 * LEN] {
        assert_eq!(attach(me(), d.token, len, place), Err(AttachError::BadShare));
    }
    assert_eq!(
        attach(me(), d.token + 4, LEN, place),
        Err(AttachError::BadShare),
        "beyond the arena"
    );
    // No process has the highest id there can be.
    assert_eq!(attach(i32::MAX, d.token, LEN, place), Err(AttachError::Os(Errno::SRCH)));
    let good = attach(me(), d.token, LEN, place).unwrap();
    assert_eq!((good.addr, good.len), (d.addr as u64, LEN));
    let another = b.reach(1, Gid::new(1, 2), d.token, LEN, me(), place);
    assert_eq!(another, Err(AttachError::BadShare), "another owner's");
}

#[test]
fn what_ended_is_not_written() {
    let (a, b) = pair(4, 8);
    let d = a.register_dmb(1, b.gid(), LEN).unwrap();
    let place = a.place(d.token).unwrap();
    b.reach(7, a.gid(), d.token, LEN, me(), place).unwrap();
    b.move_data(d.token, 3, [9].as_ptr(), 1, true).unwrap();
    assert_eq!((byte(d.addr.wrapping_add(3)), a.signals(d.token)), (9, Some(1)));
    a.drop_group(1);
    // The owner's arena is gone, whatever came to lie at its address.
    assert_eq!(b.move_data(d.token, 3, [9].as_ptr(), 1, true), Err(MoveError::Os(Errno::SRCH)));
    assert_eq!(byte(d.addr.wrapping_add(3)), 0);
    b.drop_group(7);
    assert_eq!(b.move_data(d.token, 3, [9].as_ptr(), 1, true), Err(MoveError::UnknownToken));
}

/// Where yama lets processes write to their descendants alone.
fn let_children_write() {
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Runs `f` in a child of a fork, which leaves with its result.
fn in_child(f: impl FnOnce() -> bool) -> Pid {
    // SAFETY: the child uses what is its own and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(!f());
        // SAFETY: ends the process here.
        unsafe { libc::_exit(code) };
    }
    Pid::from_raw(pid).expect("a child")
}

fn status(pid: Pid) -> Option<i32> {
    waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap().1.exit_status()
}

#[test]
fn another_process_copies_into_memory_that_it_does_not_map() {
    let (a, b) = pair(4, 8);
    let d = a.register_dmb(1, b.gid(), LEN).unwrap();
    let (place, parent) = (a.place(d.token).unwrap(), me());
    let_children_write();
    let child = in_child(|| {
        // Its copy of the mapping must not be what is written.
        let before = place.base as usize % shm::segment::kernel_page();
        let (from, len) = (place.base as usize - before, place.len as usize + before);
        // SAFETY: the arena of `a`, which the child does not use.
        let gone = unsafe { libc::munmap(from as *mut _, len) } == 0;
        let there = b.reach(1, a.gid(), d.token, LEN, parent, place).is_ok();
        gone && there && b.move_data(d.token, 5, b"across".as_ptr(), 6, true).is_ok()
    });
    assert_eq!(status(child), Some(0));
    let got: Vec<u8> = (5..11).map(|i| byte(d.addr.wrapping_add(i))).collect();
    assert_eq!((&got[..], a.signals(d.token)), (&b"across"[..], Some(1)));
}

#[test]
fn a_peer_that_died_is_an_error_and_not_its_successor_s_harm() {
    let (a, b) = pair(4, 8);
    let d = a.register_dmb(1, b.gid(), LEN).unwrap();
    let place = a.place(d.token).unwrap();
    let child = in_child(|| {
        // SAFETY: waits for the signal that ends it.
        unsafe { libc::pause() };
        false
    });
    // The child inherited the arena, and so is its owner as far as anybody can see.
    let pid = child.as_raw_nonzero().get();
    b.reach(1, a.gid(), d.token, LEN, pid, place).unwrap();
    b.move_data(d.token, 0, [1].as_ptr(), 1, false).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    assert_eq!(status(child), None);
    assert_eq!(b.move_data(d.token, 0, [1].as_ptr(), 1, true), Err(MoveError::Os(Errno::SRCH)));
    assert_eq!(far::may_write(pid), Err(Errno::SRCH));
}

#[test]
fn rights_are_told_without_touching_anything() {
    assert_eq!(far::may_write(me()), Ok(()));
    assert_eq!(far::may_write(i32::MAX), Err(Errno::SRCH));
    assert!(far::may_write(0).is_err());
}

#[test]
fn words_are_the_attacher_s_and_zeroed_for_the_next() {
    let (a, b) = pair(4, 8);
    let d = a.register_dmb(1, b.gid(), LEN).unwrap();
    let place = a.place(d.token).unwrap();
    for _ in 0..2 {
        let far = b.reach(1, a.gid(), d.token, LEN, me(), place).unwrap();
        assert!((0..WORDS).all(|i| byte(far.words.wrapping_add(i)) == 0));
        // SAFETY: the attacher's own memory.
        unsafe { far.words.write_bytes(0xee, WORDS) };
        assert!(b.detach_dmb(a.gid(), d.token) && !b.detach_dmb(a.gid(), d.token));
    }
    let far = b.reach(1, a.gid(), d.token, LEN, me(), place).unwrap();
    // SAFETY: as above.
    unsafe { far.words.write_bytes(0xee, WORDS) };
    b.reach(1, a.gid(), d.token, LEN, me(), place).unwrap();
    assert_eq!(byte(far.words), 0, "a fork child gives up without being counted");
    b.drop_group(1);
    assert_eq!(byte(far.words), 0, "readable after the end");
}
