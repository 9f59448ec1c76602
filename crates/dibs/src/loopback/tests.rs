//! What is particular to loopback, beside the suite for all devices.
#![allow(unsafe_code)]

use super::*;
use crate::conformance::{Pair, run};
use crate::faults;
use rustix::fd::AsRawFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Pid, WaitOptions, waitpid};
use shm::segment::PAGE;
use std::sync::Barrier;

const LEN: u32 = 1 << 14;

fn pair(slots: u32, max_dmbs: u32) -> (Loopback, Loopback) {
    let (a, b) = (Loopback::with_limits(slots, max_dmbs), Loopback::with_limits(slots, max_dmbs));
    a.admit(b.gid());
    b.admit(a.gid());
    (a, b)
}

/// The number of the arena's descriptor, which stays the device's.
fn fd(device: &Loopback, token: u64) -> Option<RawFd> {
    device.lend(token).map(|fd| fd.raw())
}

fn byte(addr: *mut u8) -> u8 {
    // SAFETY: an address within a mapping of the test's devices.
    unsafe { addr.read_volatile() }
}

fn set(addr: *mut u8, value: u8) {
    // SAFETY: as above.
    unsafe { addr.write_volatile(value) }
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
fn can_be_a_static() {
    static DEVICE: Loopback = Loopback::new();
    DEVICE.init();
    let gid = DEVICE.gid();
    DEVICE.init();
    assert_eq!(gid, DEVICE.gid());
    DEVICE.renew_gid();
    assert_ne!(gid, DEVICE.gid());
    assert_eq!((DEVICE.name(), DEVICE.chid()), ("loopback", 0xFFFF));
}

#[test]
fn identities_are_version_4_uuids() {
    let gid = Loopback::new().gid().to_bytes();
    assert_eq!((gid[6] >> 4, gid[8] >> 6), (4, 2));
}

#[test]
fn one_arena_serves_many_connections() {
    let (a, b) = pair(8, 100);
    let dmbs: Vec<_> = (0..20).map(|_| a.register_dmb(1, b.gid(), LEN).unwrap()).collect();
    let arenas: Vec<_> = dmbs.iter().map(|d| arena_of(d.token)).collect();
    assert!(arenas[..8].iter().all(|id| *id == arenas[0]));
    assert!(arenas[8..16].iter().all(|id| *id == arenas[8] && *id != arenas[0]));
    assert_eq!(
        dmbs.iter().map(|d| slot_of(d.token)).collect::<Vec<_>>()[..9],
        [0, 1, 2, 3, 4, 5, 6, 7, 0]
    );
    assert_eq!(dmbs[3].addr, a.control_page(dmbs[3].token).wrapping_add(4096 + 3 * LEN as usize));
    let share = a.lend(dmbs[3].token).unwrap();
    // SAFETY: the arena's descriptor, open as long as `share`.
    let arena = unsafe { rustix::fd::BorrowedFd::borrow_raw(share.raw()) };
    let len = rustix::fs::fstat(arena).unwrap().st_size;
    assert_eq!(len, FRONT as i64 + 4096 * 2 + 8 * i64::from(LEN));

    assert!(!b.has_arena(a.gid(), dmbs[0].token));
    b.map_dmb(1, a.gid(), dmbs[0].token, LEN, Some(share.raw())).unwrap();
    assert!(a.close_share(dmbs[0].token) && a.lend(dmbs[0].token).is_none());
    for d in &dmbs[..8] {
        assert!(b.has_arena(a.gid(), d.token));
        let there = b.map_dmb(1, a.gid(), d.token, LEN, None).unwrap();
        set(there, 1 + slot_of(d.token) as u8);
        assert_eq!(byte(d.addr), 1 + slot_of(d.token) as u8);
    }
    let other_arena = b.map_dmb(1, a.gid(), dmbs[8].token, LEN, None);
    assert_eq!(other_arena.unwrap_err(), AttachError::UnknownToken);
}

#[test]
fn arenas_are_apart_by_peer_group_and_size() {
    let (a, b) = pair(8, 100);
    let token = |group, peer, len| arena_of(a.register_dmb(group, peer, len).unwrap().token);
    let first = token(1, b.gid(), LEN);
    assert_eq!(token(1, b.gid(), LEN), first);
    assert_ne!(token(2, b.gid(), LEN), first);
    assert_ne!(token(1, Gid::new(1, 2), LEN), first);
    assert_ne!(token(1, b.gid(), 2 * LEN), first);
}

#[test]
fn the_lowest_slot_is_reused_first() {
    let (a, b) = pair(8, 100);
    let d: Vec<_> = (0..4).map(|_| a.register_dmb(0, b.gid(), LEN).unwrap()).collect();
    for i in [2, 1] {
        assert!(a.unregister_dmb(d[i].token));
        assert!(a.release_dmb(d[i].token, u32::MAX) && !a.release_dmb(d[i].token, u32::MAX));
    }
    assert_eq!(a.register_dmb(0, b.gid(), LEN).unwrap().token, d[1].token);
    assert_eq!(a.register_dmb(0, b.gid(), LEN).unwrap().token, d[2].token);
    assert_eq!(slot_of(a.register_dmb(0, b.gid(), LEN).unwrap().token), 4);
}

#[test]
fn control_pages_are_shared_and_apart_from_buffers() {
    let (a, b) = pair(8, 100);
    let d = a.register_dmb(0, b.gid(), LEN).unwrap();
    assert!(b.peer_control_page(a.gid(), d.token).is_null());
    b.map_dmb(0, a.gid(), d.token, LEN, fd(&a, d.token)).unwrap();
    let (own, there) = (a.control_page(d.token), b.peer_control_page(a.gid(), d.token));
    set(own.wrapping_add(4095), 7);
    assert_eq!(byte(there.wrapping_add(4095)), 7);
    assert_eq!((own.wrapping_add(4096), byte(d.addr)), (d.addr, 0));
    assert!(a.control_page(!d.token).is_null());
    assert!(b.peer_control_page(b.gid(), d.token).is_null());
}

#[test]
fn a_group_ends_as_a_whole_and_without_faults() {
    let (a, b) = pair(8, 3);
    let gone = a.register_dmb(1, b.gid(), LEN).unwrap();
    let stays = a.register_dmb(2, b.gid(), LEN).unwrap();
    let there = b.map_dmb(1, a.gid(), gone.token, LEN, fd(&a, gone.token)).unwrap();
    let page = a.control_page(gone.token);
    for p in [gone.addr, stays.addr, page] {
        set(p, 1);
    }
    a.drop_group(1);
    assert_eq!((byte(gone.addr), byte(page), byte(stays.addr)), (0, 0, 1));
    assert_eq!(byte(there), 1, "the peer's mapping is the peer's");
    b.drop_group(1);
    assert_eq!(byte(there), 0);
    assert!(a.lend(gone.token).is_none() && a.signals(gone.token).is_none());
    assert!(!a.release_dmb(gone.token, u32::MAX) && !b.detach_dmb(a.gid(), gone.token));
    let moved = b.move_data(gone.token, 0, [1].as_ptr(), 1, true);
    assert_eq!(moved, Err(MoveError::UnknownToken));
    a.register_dmb(0, b.gid(), LEN).unwrap();
    a.register_dmb(0, b.gid(), LEN).expect("its place in the limit is free again");
}

#[test]
fn address_space_is_used_again_but_not_at_once() {
    let (a, b) = pair(8, 100);
    let mut places = Vec::new();
    for group in 1..=200 {
        let d = a.register_dmb(group, b.gid(), LEN).unwrap();
        let there = b.map_dmb(group, a.gid(), d.token, LEN, fd(&a, d.token)).unwrap();
        set(d.addr, 7);
        assert_eq!((byte(there), byte(a.control_page(d.token))), (7, 0));
        places.push((d.addr, there));
        a.drop_group(group);
        b.drop_group(group);
    }
    for (at, place) in places.iter().enumerate() {
        let since = places[..at].iter().rev().position(|p| p.0 == place.0 || p.1 == place.1);
        assert!(since.is_none_or(|n| n >= 32), "used again after {since:?}");
    }
    places.sort();
    places.dedup();
    assert!(places.len() < 40, "{} places for 200 groups", places.len());
}

#[test]
fn a_device_can_be_its_own_peer() {
    let a = Loopback::with_limits(8, 100);
    let d = a.register_dmb(1, a.gid(), LEN).unwrap();
    let there = a.map_dmb(2, a.gid(), d.token, LEN, None).unwrap();
    assert_eq!((there, a.peer_control_page(a.gid(), d.token)), (d.addr, a.control_page(d.token)));
    a.move_data(d.token, 5, [9].as_ptr(), 1, true).unwrap();
    assert_eq!((byte(d.addr.wrapping_add(5)), a.signals(d.token)), (9, Some(1)));
    let unused = a.map_dmb(2, a.gid(), d.token + 1, LEN, None);
    assert_eq!(unused, Err(AttachError::UnknownToken));
    a.drop_group(1);
    assert!(!a.detach_dmb(a.gid(), d.token), "gone with its arena");
    a.drop_group(2);
    assert_eq!(byte(d.addr), 0);
}

#[test]
fn an_arena_id_belongs_to_who_came_first() {
    let (a, b) = pair(8, 100);
    let d = a.register_dmb(1, b.gid(), LEN).unwrap();
    let share = fd(&a, d.token);
    b.map_dmb(1, a.gid(), d.token, LEN, share).unwrap();
    let thief = Gid::new(1, 2);
    assert_eq!(b.map_dmb(2, thief, d.token, LEN, share), Err(AttachError::BadShare));
    assert_eq!(b.map_dmb(2, a.gid(), d.token, LEN, share), Err(AttachError::BadShare));
    assert!(b.peer_control_page(thief, d.token).is_null());
}

#[test]
fn arenas_of_wrong_geometry_are_refused() {
    let b = Loopback::new();
    let peer = Gid::new(1, 2);
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let two = (FRONT + 2 * PAGE) as u64;
    let slot = u64::from(LEN);
    for (bytes, seals, slot_of_token, len, good) in [
        (two + 3 * slot, sealed, 2, LEN, true),
        (two + 3 * slot, sealed, 3, LEN, false),
        (two + 3 * slot, sealed, (1 << 24) - 1, LEN, false),
        (two + 3 * slot, sealed, 0, 2 * LEN, false),
        (two + 3 * slot, SealFlags::SHRINK, 0, LEN, false),
        (two + 3 * slot - 4096, sealed, 0, LEN, false),
        (two + 3 * slot + 1, sealed, 0, LEN, false),
        (two + 1025 * slot, sealed, 0, LEN, false),
        (two + (1 << 31), sealed, 0, 1 << 29, false),
        (two, sealed, 0, LEN, false),
        (1 << 50, sealed, 0, LEN, false),
        (0, sealed, 0, LEN, false),
    ] {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("test", flags).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        let t = crate::pool::arena::token(77, slot_of_token);
        let attached = b.map_dmb(1, peer, t, len, Some(file.as_raw_fd()));
        match attached {
            Ok(_) => assert!(good, "{bytes}"),
            Err(e) => assert!(!good && e == AttachError::BadShare, "{bytes} {e:?}"),
        }
        assert_eq!(b.has_arena(peer, t), good, "a refused arena is not kept");
        b.drop_group(1);
    }
}

#[test]
fn admissions_are_bounded() {
    let a = Loopback::new();
    let gid = |i: u64| Gid::new(1, i + 1);
    (0..1025).for_each(|i| a.admit(gid(i)));
    assert!(!a.query_remote_gid(gid(0)), "the oldest made room");
    assert!(a.query_remote_gid(gid(1)) && a.query_remote_gid(gid(1024)));
    a.expel(gid(1));
    assert!(!a.query_remote_gid(gid(1)));
}

#[test]
fn waiting_for_a_signal() {
    let (a, b) = pair(8, 100);
    let d = a.register_dmb(0, b.gid(), LEN).unwrap();
    b.map_dmb(0, a.gid(), d.token, LEN, fd(&a, d.token)).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| b.move_data(d.token, 0, [5].as_ptr(), 1, true).unwrap());
        while a.wait_signal(d.token, 0, None) == Some(0) {}
    });
    assert_eq!((a.signals(d.token), byte(d.addr)), (Some(1), 5));
    let timeout = Some(Duration::from_millis(1));
    assert_eq!(a.wait_signal(d.token, 1, timeout), Some(1));
}

#[test]
fn threads_register_and_release_at_once() {
    let (a, b) = pair(4, 1000);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..500 {
                    let d = a.register_dmb(0, b.gid(), LEN).unwrap();
                    assert_eq!(byte(d.addr), 0);
                    b.map_dmb(0, a.gid(), d.token, LEN, fd(&a, d.token)).unwrap();
                    b.move_data(d.token, 0, [1].as_ptr(), 1, true).unwrap();
                    assert_eq!(byte(d.addr), 1);
                    assert!(b.detach_dmb(a.gid(), d.token) && a.unregister_dmb(d.token));
                    assert!(a.release_dmb(d.token, u32::MAX));
                }
            });
        }
    });
}

#[test]
fn a_handler_that_interrupted_the_device_is_refused() {
    let (a, b) = pair(4, 10);
    let d = a.register_dmb(0, b.gid(), LEN).unwrap();
    a.tables.with(|_| {
        // As deep in the stack as a handler is.
        let frame = core::hint::black_box([0u8; 4096]);
        assert_eq!(a.register_dmb(0, b.gid(), LEN), Err(RegisterError::NoMemory));
        let attached = a.map_dmb(0, b.gid(), 1, LEN, None);
        assert_eq!(attached, Err(AttachError::Os(Errno::DEADLK)));
        assert!(a.lend(d.token).is_none() && !a.unregister_dmb(d.token));
        assert!(a.control_page(d.token).is_null() && !a.query_remote_gid(b.gid()));
        core::hint::black_box(&frame);
    });
    assert!(a.lend(d.token).is_some() && a.unregister_dmb(d.token));
}

#[test]
fn a_fork_amid_a_change_leaves_the_child_a_fresh_device() {
    let (a, b) = pair(4, 10);
    let d = a.register_dmb(0, b.gid(), LEN).unwrap();
    set(d.addr, 8);
    let (locked, forked) = (Barrier::new(2), Barrier::new(2));
    let pid = std::thread::scope(|s| {
        s.spawn(|| {
            a.tables.with(|_| {
                locked.wait();
                forked.wait();
            });
        });
        locked.wait();
        // SAFETY: the child makes system calls only and leaves by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            a.after_fork_child();
            let fresh = a.register_dmb(0, b.gid(), LEN).is_ok_and(|new| new.addr != d.addr);
            let good = fresh && byte(d.addr) == 8 && a.lend(d.token).is_none();
            // SAFETY: ends the process here.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        forked.wait();
        pid
    });
    let ended = waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(ended.1.exit_status(), Some(0));
}
