//! What is particular to ivshmem, beside the suite for all devices: a file stands for the bar.
#![allow(unsafe_code)]

use super::*;
use crate::conformance::{Pair, run};
use crate::faults;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};

const LEN: u32 = 1 << 14;

/// A file of zeros that nobody else finds.
fn file(len: u64) -> File {
    let path = std::env::temp_dir()
        .join(format!("shortwire-bar-{:x}", crate::loopback::random::words()[0]));
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(path).expect("its name");
    file.set_permissions(PermissionsExt::from_mode(0o600)).expect("its rights");
    file.set_len(len).expect("its size");
    file
}

fn bar(file: &File) -> Bar {
    Bar::open(file.as_raw_fd(), true).expect("a bar")
}

fn join(file: &File, slots: u32, max_dmbs: u32) -> Ivshmem {
    let bar = bar(file);
    let guest = bar.enter_guest(7).expect("a place");
    let member = bar.join(guest, |_, _| true).expect("a place");
    let device = Ivshmem::with_limits(slots, max_dmbs);
    assert!(device.open(bar, member));
    device
}

fn id(device: &Ivshmem) -> u64 {
    device.with_bar(|_, member| member.id).expect("open")
}

fn free(device: &Ivshmem) -> u32 {
    device.with_bar(|bar, _| bar.free_blocks()).expect("open")
}

#[test]
fn conforms() {
    for (slots, max_dmbs) in [(1, 7), (3, 10), (1024, 1500)] {
        let file = file(128 << 20);
        let (a, b) = (join(&file, slots, max_dmbs), join(&file, slots, max_dmbs));
        run(Pair { a: &a, b: &b });
        run(Pair { a: &b, b: &a });
    }
}

#[test]
fn conforms_with_faults() {
    for (slots, max_dmbs) in [(1, 7), (3, 10)] {
        let file = file(32 << 20);
        let (a, b) = (join(&file, slots, max_dmbs), join(&file, slots, max_dmbs));
        faults::run(Pair { a: &a, b: &b });
        faults::run(Pair { a: &b, b: &a });
    }
}

#[test]
fn is_nothing_without_a_bar() {
    static DEVICE: Ivshmem = Ivshmem::new();
    assert_eq!((DEVICE.name(), DEVICE.chid(), DEVICE.gid()), ("ivshmem", 0xFF01, Gid::default()));
    assert_eq!(DEVICE.register_dmb(0, Gid::new(1, 2), LEN), Err(RegisterError::Os(Errno::NODEV)));
    assert!(!DEVICE.query_remote_gid(Gid::default()) && !DEVICE.is_open());
}

#[test]
fn all_agree_on_a_new_bar() {
    let file = file(1 << 20);
    assert_eq!(Bar::open(file.as_raw_fd(), false).err(), Some(BarError::New));
    let bars: Vec<_> = std::thread::scope(|s| {
        let all: Vec<_> = (0..8).map(|_| s.spawn(|| bar(&file))).collect();
        all.into_iter().map(|t| t.join().expect("a bar")).collect()
    });
    for bar in &bars {
        assert_eq!((bar.id(), bar.secret()), (bars[0].id(), bars[0].secret()));
        assert!(bar.id() != 0 && !bar.secret().contains(&0));
    }
}

#[test]
fn what_is_no_bar_is_refused() {
    let open = |file: &File| Bar::open(file.as_raw_fd(), true).err();
    for len in [0, 1, 4096, (1 << 20) - 4096, (1 << 20) + 4096, 3 << 20] {
        assert_eq!(open(&file(len)), Some(BarError::Size(len)));
    }
    let foreign = file(1 << 20);
    foreign.write_all_at(b"somebody else's", 5000).expect("written");
    assert_eq!(open(&foreign), Some(BarError::Foreign));
    let other = file(1 << 20);
    drop(bar(&other));
    other.set_len(2 << 20).expect("a size");
    assert_eq!(open(&other), Some(BarError::OtherSize { told: 1 << 20, len: 2 << 20 }));
    for (at, bytes) in [(0, &b"SHORTWB2"[..]), (16, &[0; 8]), (24, &[0; 8])] {
        let damaged = file(1 << 20);
        drop(bar(&damaged));
        damaged.write_all_at(bytes, at).expect("written");
        assert_eq!(Bar::open(damaged.as_raw_fd(), false).err(), Some(BarError::Foreign), "at {at}");
    }
    let open_to_all = file(1 << 20);
    open_to_all.set_permissions(PermissionsExt::from_mode(0o666)).expect("rights");
    assert_eq!(open(&open_to_all), Some(BarError::Unsafe));
    assert_eq!(open(&File::open("/dev/null").expect("null")), Some(BarError::NotMemory));
}

#[test]
fn an_extent_is_free_once_owner_and_user_are_done() {
    for owner_first in [true, false] {
        let file = file(4 << 20);
        let (a, b) = (join(&file, 4, 64), join(&file, 4, 64));
        let before = free(&a);
        let dmb = a.register_dmb(5, b.gid(), LEN).expect("room");
        b.map_dmb(6, a.gid(), dmb.token, LEN).expect("attached");
        let leave: [&dyn Fn(); 2] = [&|| a.drop_group(5), &|| b.drop_group(6)];
        leave[usize::from(!owner_first)]();
        assert!(free(&a) < before, "one of them may still write");
        if owner_first {
            assert!(
                b.map_dmb(8, a.gid(), dmb.token, LEN).is_err(),
                "of another group, and given up"
            );
        }
        leave[usize::from(owner_first)]();
        assert_eq!(free(&a), before);
        // SAFETY: retired memory stays readable.
        assert_eq!(unsafe { dmb.addr.read_volatile() }, 0);
    }
}

#[test]
fn a_peer_that_has_dropped_its_half_is_known_by_what_is_attached() {
    let file = file(4 << 20);
    let (a, b) = (join(&file, 4, 64), join(&file, 4, 64));
    let [of_a, other] = [1, 2].map(|group| a.register_dmb(group, b.gid(), LEN).expect("room"));
    b.map_dmb(5, a.gid(), of_a.token, LEN).expect("attached");
    b.map_dmb(6, a.gid(), other.token, LEN).expect("attached");
    assert!(!b.is_over(5) && !b.is_over(6) && !b.is_over(7));
    a.drop_group(1);
    assert!(b.is_over(5) && !b.is_over(6));
    // The same if it died, once that was noticed.
    b.with_bar(|bar, _| bar.reclaim(|dead| dead == id(&a)));
    assert!(b.is_over(6));
}

#[test]
fn a_bar_is_short_while_more_than_half_is_in_use() {
    let file = file(1 << 20);
    let (a, b) = (join(&file, 1, 1000), join(&file, 1, 1000));
    let is_short = || a.with_bar(|bar, _| bar.is_short()).expect("open");
    let all = free(&a);
    let mut group = 0;
    while free(&a) >= all / 2 {
        assert!(!is_short());
        a.register_dmb(group, b.gid(), LEN).expect("room");
        group += 1;
    }
    assert!(is_short());
    a.drop_group(0);
    assert!(!is_short());
}

#[test]
fn what_the_dead_had_is_reclaimed_but_not_under_a_living_writer() {
    let file = file(4 << 20);
    let (a, b, c) = (join(&file, 4, 64), join(&file, 4, 64), join(&file, 4, 64));
    let before = free(&c);
    let reclaim =
        |dead: &[u64]| c.with_bar(|bar, _| bar.reclaim(|id| dead.contains(&id))).expect("open");
    let of_a = a.register_dmb(1, b.gid(), LEN).expect("room");
    let of_b = b.register_dmb(2, a.gid(), LEN).expect("room");
    b.map_dmb(2, a.gid(), of_a.token, LEN).expect("attached");
    a.map_dmb(1, b.gid(), of_b.token, LEN).expect("attached");
    let alone = a.register_dmb(3, c.gid(), LEN).expect("room");
    reclaim(&[]);
    let used = free(&c);
    // a dies: what only it had is free, what b writes to is not.
    let dead = [id(&a)];
    assert_eq!(reclaim(&dead), 1);
    assert!(free(&c) > used && free(&c) < before);
    assert!(c.map_dmb(9, a.gid(), alone.token, LEN).is_err());
    assert_eq!(reclaim(&dead), 0, "not twice");
    assert_eq!(c.with_bar(|bar, _| bar.members().count()), Some(3), "it is still named");
    b.move_data(of_a.token, 0, [1].as_ptr(), 1, true).expect("what it writes goes nowhere else");
    b.drop_group(2);
    reclaim(&dead);
    assert_eq!(free(&c), before);
    assert_eq!(c.with_bar(|bar, _| bar.members().count()), Some(2));
}

#[test]
fn one_that_died_between_two_words_leaves_nothing() {
    let file = file(4 << 20);
    let (a, b) = (join(&file, 4, 64), join(&file, 4, 64));
    let before = free(&b);
    // Half of an extent taken; half of one freed; attached, and not yet looked at its owner.
    let bar = bar(&file);
    let (extent, blocks) = bar.take(id(&a), 5 * LEN as u64).expect("room");
    assert!(blocks > 2);
    let at = |block: u32, word: u64| (4096 + 4096 + 32768 + u64::from(block) * 16) + word * 8;
    file.write_all_at(&[0; 8], at(extent.first, 0)).expect("written");
    let dmb = b.register_dmb(1, a.gid(), LEN).expect("room");
    assert!(bar.attach(crate::loopback::arena_of(dmb.token), b.gid().lo, id(&a)).is_some());
    b.with_bar(|bar, _| bar.reclaim(|dead| dead == id(&a)));
    b.drop_group(1);
    assert_eq!(free(&b), before);
}

#[test]
fn a_full_bar_refuses_and_is_not_harmed() {
    let file = file(1 << 20);
    let (a, b) = (join(&file, 1, 1000), join(&file, 1, 1000));
    let before = free(&a);
    let mut group = 0;
    while a.register_dmb(group, b.gid(), LEN).is_ok() {
        group += 1;
    }
    assert!(group > 10);
    assert_eq!(a.register_dmb(group, b.gid(), LEN), Err(RegisterError::NoMemory));
    assert_eq!(b.register_dmb(0, a.gid(), 1 << 20), Err(RegisterError::NoMemory));
    (0..group).for_each(|g| a.drop_group(g));
    assert_eq!(free(&a), before);
}

#[test]
fn many_take_and_give_back_at_once() {
    let file = file(2 << 20);
    let devices: Vec<_> = (0..4).map(|_| join(&file, 2, 1000)).collect();
    let before = free(&devices[0]);
    std::thread::scope(|s| {
        for (i, device) in devices.iter().enumerate() {
            let peer = &devices[(i + 1) % 4];
            s.spawn(move || {
                for round in 0..300u32 {
                    let group = 2 * round;
                    let Ok(dmb) = device.register_dmb(group, peer.gid(), LEN << (round % 3)) else {
                        continue;
                    };
                    let stamp = [i as u8 + 1; 64];
                    if peer
                        .map_dmb(1 + group + 1000 * i as u32, device.gid(), dmb.token, dmb.len)
                        .is_ok()
                    {
                        peer.move_data(dmb.token, 1000, stamp.as_ptr(), 64, true)
                            .expect("attached");
                        assert_eq!(
                            crate::conformance::contents(dmb.addr.wrapping_add(1000), 64),
                            stamp
                        );
                    }
                    device.drop_group(group);
                    peer.drop_group(1 + group + 1000 * i as u32);
                }
            });
        }
    });
    assert_eq!(free(&devices[0]), before);
}

#[test]
fn a_bar_full_of_anything_is_survived() {
    let file = file(1 << 20);
    let (a, b) = (join(&file, 4, 64), join(&file, 4, 64));
    let mut word = 1u64;
    for round in 0..200 {
        let dmb = a.register_dmb(round, b.gid(), LEN);
        if let Ok(dmb) = &dmb {
            let _ = b.map_dmb(round + 1000, a.gid(), dmb.token, LEN);
        }
        // Behind the header, up to the heap.
        for at in (4096..106_496).step_by(8) {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let value = if word >> 62 == 0 { word.rotate_left(17) } else { 0 };
            file.write_all_at(&value.to_ne_bytes(), at).expect("written");
        }
        for name in 0..64 {
            let _ = b.map_dmb(round, a.gid(), word.rotate_left(name), LEN);
        }
        a.with_bar(|bar, _| bar.reclaim(|id| id & 1 == 0));
        a.drop_group(round);
        b.drop_group(round + 1000);
        b.drop_group(round);
    }
}
