//! A driver that plays by the rules, and guests that do not.
#![allow(unsafe_code)]

use super::super::memory::Place;
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

pub const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000;
const SIZE: u16 = 8;

pub fn memory() -> Memory {
    let file = memfd_create(c"guest", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 0x1_0000).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let place = Place { guest: GUEST, size: 0x1_0000, user: USER, offset: 0 };
    Memory::map(&[(place, file.as_fd())], false).unwrap()
}

fn queue(memory: &Memory) -> Queue {
    let addresses = Addresses { descriptors: USER, available: USER + 0x100, used: USER + 0x200 };
    let mut queue = Queue {
        size: SIZE,
        addresses: Some(addresses),
        started: true,
        enabled: true,
        ..Queue::default()
    };
    queue.place(memory).unwrap();
    queue
}

fn put<T>(memory: &Memory, at: u64, value: T) {
    let to = memory.guest(GUEST + at, size_of::<T>()).unwrap();
    // SAFETY: in memory, as was just found.
    unsafe { to.cast::<T>().as_ptr().write_unaligned(value) };
}

fn get<T: Copy>(memory: &Memory, at: u64) -> T {
    // SAFETY: in memory, as is found here.
    unsafe {
        memory.guest(GUEST + at, size_of::<T>()).unwrap().cast::<T>().as_ptr().read_unaligned()
    }
}

/// As the driver writes it.
fn descriptor(memory: &Memory, index: u64, address: u64, length: u32, flags: u16, next: u16) {
    put(memory, index * 16, address);
    put(memory, index * 16 + 8, u64::from(length) | u64::from(flags) << 32 | u64::from(next) << 48);
}

fn offer(memory: &Memory, heads: &[u16]) {
    for (i, head) in heads.iter().enumerate() {
        put(memory, 0x104 + 2 * i as u64, *head);
    }
    put(memory, 0x102, heads.len() as u16);
}

#[test]
fn buffers_are_taken_in_order_and_given_back() {
    let memory = memory();
    let mut queue = queue(&memory);
    descriptor(&memory, 3, GUEST + 0x1000, 12, NEXT, 5);
    descriptor(&memory, 5, GUEST + 0x2000, 60, 0, 0);
    descriptor(&memory, 1, GUEST + 0x3000, 72, 0, 0);
    offer(&memory, &[3, 1]);
    let mut pieces = Vec::new();
    assert_eq!(queue.take(&memory, false, &mut pieces), Ok(Some(3)));
    assert_eq!(pieces.iter().map(|piece| piece.length).collect::<Vec<_>>(), [12, 60]);
    assert_eq!(pieces[1].at, memory.guest(GUEST + 0x2000, 60).unwrap());
    assert_eq!(queue.take(&memory, false, &mut pieces), Ok(Some(1)));
    assert_eq!(queue.take(&memory, false, &mut pieces), Ok(None));
    queue.give(3, 0);
    queue.give(1, 7);
    assert_eq!(get::<u16>(&memory, 0x202), 0, "not shown yet");
    queue.show();
    assert_eq!(get::<u16>(&memory, 0x202), 2);
    assert_eq!(get::<[u32; 4]>(&memory, 0x204), [3, 0, 1, 7]);
    assert_eq!(get::<u16>(&memory, 0x200), NO_NOTIFY);
}

#[test]
fn a_hostile_guest_ends_its_own_queue() {
    for (what, make) in [
        ("in a circle", (|m| descriptor(m, 0, GUEST, 1, NEXT, 0)) as fn(&Memory)),
        ("outside of its table", |m| descriptor(m, 0, GUEST, 1, NEXT, SIZE)),
        ("not its memory", |m| descriptor(m, 0, GUEST + 0xffff, 2, 0, 0)),
        ("not its memory", |m| descriptor(m, 0, u64::MAX, 1, 0, 0)),
        ("other direction", |m| descriptor(m, 0, GUEST, 1, WRITE, 0)),
        ("not agreed on", |m| descriptor(m, 0, GUEST, 16, 4, 0)),
        ("more entries", |m| put(m, 0x102, SIZE + 1)),
        ("outside of its table", |m| put(m, 0x104, u16::MAX)),
    ] {
        let memory = memory();
        let mut queue = queue(&memory);
        offer(&memory, &[0]);
        make(&memory);
        let error = queue.take(&memory, false, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    let memory = memory();
    for wrong in [USER + 0xfff8, USER + 1, 0] {
        let addresses = Addresses { descriptors: USER, available: USER + 0x100, used: wrong };
        let mut queue =
            Queue { size: SIZE, addresses: Some(addresses), started: true, ..Queue::default() };
        assert!(queue.place(&memory).is_err() && !queue.is_running(), "{wrong:x}");
    }
}

/// What the descriptors of a chain say, read as the standard has it: the pieces, or none if a rule
/// is broken.
fn oracle(table: &[(u64, u32, u16, u16)], head: u16) -> Option<Vec<(u64, usize)>> {
    let (mut pieces, mut index) = (Vec::new(), usize::from(head));
    loop {
        let (address, length, flags, next) = *table.get(index)?;
        let end = address.checked_add(length.into())?;
        if flags & !NEXT != 0
            || address < GUEST
            || end > GUEST + 0x1_0000
            || pieces.len() == table.len()
        {
            return None;
        }
        pieces.push((address, length as usize));
        if flags == 0 {
            return Some(pieces);
        }
        index = next.into();
    }
}

/// Addresses at and around the ends of memory more often than not, so that sound chains come up as
/// well.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![4 => GUEST..GUEST + 0x1_0000, 1 => GUEST - 2..GUEST + 2, 1 => GUEST + 0xfffe..GUEST + 0x1_0002, 1 => any::<u64>()]
}

fn entry() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let flags = prop_oneof![3 => Just(0), 4 => Just(NEXT), 1 => any::<u16>()];
    let next = prop_oneof![8 => 0..SIZE, 1 => any::<u16>()];
    (address(), prop_oneof![6 => 0_u32..64, 1 => any::<u32>()], flags, next)
}

proptest! {
    #[test]
    fn chains_are_walked_as_the_standard_says_or_refused(
        table in vec(entry(), usize::from(SIZE)),
        heads in vec(prop_oneof![8 => 0..SIZE, 1 => any::<u16>()], 1..=usize::from(SIZE)),
    ) {
        let memory = memory();
        let mut queue = queue(&memory);
        for (index, (address, length, flags, next)) in table.iter().enumerate() {
            descriptor(&memory, index as u64, *address, *length, *flags, *next);
        }
        offer(&memory, &heads);
        let mut pieces = Vec::new();
        for head in heads {
            let Some(expected) = oracle(&table, head) else {
                prop_assert!(queue.take(&memory, false, &mut pieces).is_err());
                return Ok(());
            };
            prop_assert_eq!(queue.take(&memory, false, &mut pieces), Ok(Some(head)));
            let expected: Vec<_> = expected.iter().map(|(at, length)| (memory.guest(*at, *length), *length)).collect();
            let found: Vec<_> = pieces.iter().map(|piece| (Some(piece.at), piece.length)).collect();
            prop_assert_eq!(found, expected);
        }
        prop_assert_eq!(queue.take(&memory, false, &mut pieces), Ok(None));
    }
}

/// The guest rewrites its table and ring while they are walked: every piece lies in memory all the
/// same.
#[test]
fn descriptors_that_change_under_the_walk_lead_nowhere_else() {
    let memory = memory();
    let done = AtomicBool::new(false);
    let word = |at: u64| memory.guest(GUEST + at * 8, 8).unwrap().cast::<AtomicU64>();
    // SAFETY: in memory, aligned, and while the guest writes touched as atomics or volatile only.
    let table: Vec<&AtomicU64> =
        (0..2 * u64::from(SIZE)).map(|at| unsafe { word(at).as_ref() }).collect();
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            let mut turn = 0_u64;
            while !done.load(Ordering::Relaxed) {
                turn = turn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let index = (turn >> 60 & 7) as usize * 2;
                let address =
                    if turn >> 59 & 1 == 0 { GUEST + (turn >> 40 & 0xffff) } else { turn };
                table[index].store(address, Ordering::Relaxed);
                let rest = turn >> 8 & 0x3f | (turn >> 16 & 1) << 32 | (turn >> 20 & 7) << 48;
                table[index + 1].store(rest, Ordering::Relaxed);
            }
        });
        let (start, length) = (memory.guest(GUEST, 0x1_0000).unwrap().as_ptr().addr(), 0x1_0000);
        let (mut pieces, mut walked) = (Vec::new(), 0);
        let mut queue = queue(&memory);
        while walked < 5_000 {
            put(&memory, 0x102, queue.base().wrapping_add(1));
            put(&memory, 0x104 + 2 * u64::from(queue.base() % SIZE), queue.base() % SIZE);
            if queue.take(&memory, false, &mut pieces).is_err() {
                queue = self::queue(&memory);
                continue;
            }
            walked += 1;
            assert!(pieces.len() <= usize::from(SIZE));
            for Piece { at, length: count } in &pieces {
                let offset = at.as_ptr().addr().checked_sub(start).unwrap();
                assert!(offset + count <= length, "{offset:x} {count}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The emulator's eventfd may be full and without O_NONBLOCK: a `write` would never end.
#[test]
fn a_guest_whose_counter_is_full_is_not_waited_for() {
    let memory = memory();
    let mut queue = queue(&memory);
    let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&file, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    queue.call = Some(Bell::new(file.try_clone().unwrap()).unwrap());
    descriptor(&memory, 0, GUEST + 0x1000, 64, 0, 0);
    offer(&memory, &[0]);
    let head = queue.take(&memory, false, &mut Vec::new()).unwrap().unwrap();
    queue.give(head, 0);
    queue.show();
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&file, &mut count), Ok(8));
    assert_eq!(u64::from_ne_bytes(count), u64::MAX, "it was told");
}

/// A buffer in more pieces than any packet needs is given back unused, and its end is not looked for.
#[test]
fn a_chain_without_end_is_no_packet() {
    let memory = memory();
    let addresses = Addresses { descriptors: USER, available: USER + 0x2000, used: USER + 0x3000 };
    let mut queue = Queue {
        size: 256,
        addresses: Some(addresses),
        started: true,
        enabled: true,
        ..Queue::default()
    };
    queue.place(&memory).unwrap();
    for index in 0..256 {
        descriptor(&memory, index, GUEST + 0x4000, 1, NEXT, (index as u16 + 1) % 256);
    }
    put(&memory, 0x2004, [0_u16, 193]);
    put(&memory, 0x2002, 2_u16);
    let mut pieces = Vec::new();
    assert_eq!(queue.take(&memory, false, &mut pieces), Ok(Some(0)));
    assert!(pieces.is_empty() && pieces.capacity() <= MOST_PIECES);
    descriptor(&memory, 0, GUEST + 0x4000, 1, 0, 0);
    assert_eq!(queue.take(&memory, false, &mut pieces), Ok(Some(193)));
    assert_eq!(pieces.len(), 64);
}
