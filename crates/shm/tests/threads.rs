//! What two threads do to shared memory, with the bytes that loom's models leave out. On its own this
//! finds little; under Miri a byte that no pair orders is a race, and a load may return an old value:
//! `cargo +nightly miri test -p shm --test threads`
#![allow(unsafe_code)]
#![cfg(not(loom))]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use shm::rsockets::{Head, Row};
use shm::{Cursor, FastLock, Letters, Look, Ring, Snapshot, arm, must_ring};
use std::cell::UnsafeCell;
use std::sync::{Condvar, Mutex};
use std::thread::scope;

/// Not even, so that pieces are cut at the end in many places.
const SIZE: u32 = 61;
const BYTES: u64 = if cfg!(miri) { 400 } else { 1 << 20 };
const ROUNDS: u64 = if cfg!(miri) { 12 } else { 20_000 };
/// Miri lets threads take turns in another way each time, and not all of them show a fault.
const TIMES: usize = if cfg!(miri) { 32 } else { 1 };

macro_rules! tests {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            (0..TIMES).for_each(|_| super::$name());
        }
    )*};
}

mod repeated {
    use super::TIMES;
    tests! {
        bytes_cross_a_ring
        a_lock_orders_what_it_guards
        a_snapshot_is_of_one_write
        letters_bring_what_was_written_in_front
        nothing_is_counted_twice
    }
}

/// A doorbell's byte.
#[derive(Default)]
struct Bell(Mutex<u32>, Condvar);

impl Bell {
    fn ring(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
    }

    fn wait(&self) {
        let mut bytes = self.0.lock().unwrap();
        while *bytes == 0 {
            bytes = self.1.wait(bytes).unwrap();
        }
        *bytes -= 1;
    }
}

/// One end's word, and what it takes to sleep until the other end changes its own.
#[derive(Default)]
struct End {
    cursor: AtomicU64,
    armed: AtomicU32,
    rung: AtomicU32,
    bell: Bell,
}

impl End {
    /// Tells the other end, and wakes it.
    fn publish(&self, word: u64, other: &End) {
        // SYNC: doorbell. Behind the bytes, in front of the look at the arm.
        self.cursor.swap(word, SeqCst);
        if must_ring(&other.armed, &other.rung) {
            other.bell.ring();
        }
    }
}

struct Stream {
    bytes: UnsafeCell<[u8; SIZE as usize]>,
    ends: [End; 2],
}

// SAFETY: the cursors say whose each byte is, which is what the test is about.
unsafe impl Sync for Stream {}

impl Stream {
    fn ring(&self) -> Ring {
        // SAFETY: as long as the stream.
        unsafe { Ring::new(self.bytes.get().cast(), SIZE) }
    }
}

fn value(at: u64) -> u8 {
    (at % 251) as u8
}

fn bytes_cross_a_ring() {
    let stream = Stream { bytes: UnsafeCell::new([0; SIZE as usize]), ends: Default::default() };
    scope(|scope| {
        scope.spawn(|| {
            let [own, other] = &stream.ends;
            let (mut prod, mut freed) = (Cursor::ZERO, Cursor::ZERO);
            let mut turn = 0;
            while prod.pos < BYTES {
                let used = (prod.pos - freed.pos) as u32;
                // SYNC: cons.
                freed.follow(other.cursor.load(Acquire), SIZE, used).expect("an honest reader");
                let free = u64::from(SIZE) - (prod.pos - freed.pos);
                if free == 0 {
                    arm(&own.armed);
                    // SYNC: doorbell. Once more behind the arm.
                    let used = (prod.pos - freed.pos) as u32;
                    freed.follow(other.cursor.load(Acquire), SIZE, used).expect("an honest reader");
                    if prod.pos - freed.pos == u64::from(SIZE) {
                        own.bell.wait();
                    }
                    continue;
                }
                turn = turn % 17 + 1;
                let n = free.min(turn).min(BYTES - prod.pos);
                let piece: Vec<u8> = (prod.pos..prod.pos + n).map(value).collect();
                // SAFETY: no more than are free.
                unsafe { stream.ring().write(&prod, piece.as_ptr(), n as u32) };
                prod.advance(n as u32, SIZE);
                // SYNC: prod.
                own.publish(prod.wire(), other);
            }
        });
        let [other, own] = &stream.ends;
        let (mut cons, mut seen) = (Cursor::ZERO, Cursor::ZERO);
        while cons.pos < BYTES {
            let held = (seen.pos - cons.pos) as u32;
            // SYNC: prod.
            seen.follow(other.cursor.load(Acquire), SIZE, SIZE - held).expect("an honest writer");
            if seen == cons {
                arm(&own.armed);
                // SYNC: doorbell. Once more behind the arm.
                seen.follow(other.cursor.load(Acquire), SIZE, SIZE).expect("an honest writer");
                if seen == cons {
                    own.bell.wait();
                }
                continue;
            }
            let n = seen.pos - cons.pos;
            let mut piece = vec![0; n as usize];
            // SAFETY: as many as are there.
            unsafe { stream.ring().read(&cons, piece.as_mut_ptr(), n as u32) };
            assert!((cons.pos..).zip(&piece).all(|(at, byte)| value(at) == *byte), "{cons:?}");
            cons.advance(n as u32, SIZE);
            // SYNC: cons.
            own.publish(cons.wire(), other);
        }
    });
}

fn a_lock_orders_what_it_guards() {
    struct Count(FastLock<true>, UnsafeCell<u64>);
    // SAFETY: the lock guards it, which is what the test is about.
    unsafe impl Sync for Count {}
    impl Count {
        fn add(&self) {
            let _guard = self.0.lock().expect("no handler");
            // SAFETY: under the lock.
            unsafe { *self.1.get() += 1 };
        }
    }
    let count = Count(FastLock::new(), UnsafeCell::new(0));
    scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(|| (0..ROUNDS).for_each(|_| count.add()))));
    });
    assert_eq!(count.1.into_inner(), 3 * ROUNDS);
}

fn a_snapshot_is_of_one_write() {
    let record = Snapshot::<3>::new();
    scope(|scope| {
        scope.spawn(|| (1..=ROUNDS).for_each(|n| record.write(&[n, n + 1, 2 * n])));
        let mut last = 0;
        while last < ROUNDS {
            let Some([a, b, c]) = record.read() else { continue };
            assert!((a, b, c) == (0, 0, 0) || (b, c) == (a + 1, 2 * a), "{a} {b} {c}");
            assert!(a >= last, "{a} behind {last}");
            last = a;
            std::thread::yield_now();
        }
    });
}

fn letters_bring_what_was_written_in_front() {
    struct Box(AtomicU64, UnsafeCell<u64>);
    // SAFETY: turns are taken, which is what the test is about.
    unsafe impl Sync for Box {}
    let boxes = [(); 2].map(|()| Box(AtomicU64::new(0), UnsafeCell::new(0)));
    let say = |letters: &mut Letters, to: usize, value| {
        // SAFETY: nobody reads it before the letter.
        unsafe { *boxes[to].1.get() = value };
        letters.say(&boxes[to].0, 8, false);
    };
    let hear = |letters: &mut Letters, from: usize| {
        while !matches!(letters.look(&boxes[from].0), Look::Letter { .. }) {
            std::thread::yield_now();
        }
        // SAFETY: the letter says that it is there.
        unsafe { *boxes[from].1.get() }
    };
    scope(|scope| {
        scope.spawn(|| {
            let (mut letters, _) = loop {
                match Letters::find(&boxes[0].0) {
                    Some(found) => break found,
                    None => std::thread::yield_now(),
                }
            };
            // SAFETY: the invitation says that it is there.
            assert_eq!(unsafe { *boxes[0].1.get() }, 7);
            say(&mut letters, 1, 8);
            assert_eq!(hear(&mut letters, 0), 9);
        });
        let mut letters = Letters::begin(1);
        say(&mut letters, 0, 7);
        assert_eq!(hear(&mut letters, 1), 8);
        say(&mut letters, 0, 9);
    });
}

/// A socket counts, closes, and its row is the next one's: sums and rows together are never more than
/// was counted.
fn nothing_is_counted_twice() {
    let (head, row) = (Head::default(), Row::default());
    let counted = AtomicU64::new(0);
    scope(|scope| {
        scope.spawn(|| {
            for socket in 1..=ROUNDS {
                row.clear();
                row.key.store(socket, Relaxed);
                counted.fetch_add(5, Relaxed);
                fence(Release);
                row.rx.count(5);
                row.close(&head);
            }
        });
        while head.ended[0].bytes.get() < 5 * ROUNDS {
            let mut all = head.ended[0].bytes.get();
            // SYNC: row.
            fence(Acquire);
            if row.key.load(Relaxed) != 0 {
                all += row.rx.bytes.get();
            }
            fence(Acquire);
            assert!(all <= counted.load(Relaxed), "{all}");
            std::thread::yield_now();
        }
    });
}
