//! Every interleaving, and every stale value that the memory model allows, of what several threads
//! or processes do to shared words.
//! `RUSTFLAGS="--cfg loom" cargo test -p shm --test loom --release`
#![allow(unsafe_code)]
#![cfg(any(loom, miri))]

#[cfg(miri)]
#[allow(dead_code, unused_imports)]
#[path = "loom/threads.rs"]
mod loom;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use shm::sync::{AtomicU32, AtomicU64, Ordering, fence};
use shm::{Cursor, FastLock, Letters, Look, Snapshot, arm, must_ring};

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// The byte on the TCP connection: it stays there until somebody reads it.
struct Bell {
    bytes: Mutex<u32>,
    came: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self { bytes: Mutex::new(0), came: Condvar::new() }
    }

    fn ring(&self) {
        *self.bytes.lock().unwrap() += 1;
        self.came.notify_one();
    }

    fn wait(&self) {
        let mut bytes = self.bytes.lock().unwrap();
        while *bytes == 0 {
            bytes = self.came.wait(bytes).unwrap();
        }
        *bytes -= 1;
    }

    /// Reads what is there, at most so many; how many it was.
    fn drain(&self, most: u32) -> u32 {
        let mut bytes = self.bytes.lock().unwrap();
        let n = most.min(*bytes);
        *bytes -= n;
        n
    }
}

const SIZE: u32 = 2;
const TOTAL: u64 = 4;

/// The protocol of a stream: bytes that loom watches for races, at the places that the cursors say.
struct Stream {
    bytes: [UnsafeCell<u8>; SIZE as usize],
    prod: AtomicU64,
    cons: AtomicU64,
}

#[test]
fn ring_publishes_and_consumes() {
    model(3, || {
        let stream = Arc::new(Stream {
            bytes: core::array::from_fn(|_| UnsafeCell::new(0)),
            prod: AtomicU64::new(0),
            cons: AtomicU64::new(0),
        });
        let sender = stream.clone();
        let producer = thread::spawn(move || {
            let (mut prod, mut freed) = (Cursor::ZERO, Cursor::ZERO);
            while prod.pos < TOTAL {
                let used = (prod.pos - freed.pos) as u32;
                // SYNC: cons. The space is free once the reader has let go of it.
                let word = sender.cons.load(Ordering::Acquire);
                freed.follow(word, SIZE, used).expect("an honest consumer");
                if prod.pos - freed.pos == u64::from(SIZE) {
                    thread::yield_now();
                    continue;
                }
                let byte = &sender.bytes[prod.count() as usize];
                // SAFETY: loom reports it if the consumer is still here.
                byte.with_mut(|p| unsafe { *p = prod.pos as u8 + 1 });
                prod.advance(1, SIZE);
                // SYNC: prod. The bytes come first.
                sender.prod.store(prod.wire(), Ordering::Release);
            }
        });
        let (mut cons, mut seen) = (Cursor::ZERO, Cursor::ZERO);
        while cons.pos < TOTAL {
            let held = (seen.pos - cons.pos) as u32;
            // SYNC: prod.
            let word = stream.prod.load(Ordering::Acquire);
            seen.follow(word, SIZE, SIZE - held).expect("an honest producer");
            if seen == cons {
                thread::yield_now();
                continue;
            }
            // SAFETY: loom reports it if the producer is already here again.
            let got = stream.bytes[cons.count() as usize].with(|p| unsafe { *p });
            assert_eq!(u64::from(got), cons.pos + 1);
            cons.advance(1, SIZE);
            // SYNC: cons.
            stream.cons.store(cons.wire(), Ordering::Release);
        }
        producer.join().unwrap();
    });
}

struct Mailbox {
    data: AtomicU32,
    armed: AtomicU32,
    rung: AtomicU32,
    rings: AtomicU32,
    bell: Bell,
}

/// A lost wakeup leaves the sleeper waiting for a bell that nobody rings, which loom reports.
fn doorbell(wakers: u32, preemptions: usize) {
    model(preemptions, move || {
        let b = Arc::new(Mailbox {
            data: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            rung: AtomicU32::new(0),
            rings: AtomicU32::new(0),
            bell: Bell::new(),
        });
        let threads: Vec<_> = (0..wakers)
            .map(|_| {
                let b = b.clone();
                thread::spawn(move || {
                    b.data.fetch_add(1, Ordering::Release);
                    // SYNC: doorbell. The waker's half of Dekker's scheme.
                    fence(Ordering::SeqCst);
                    if must_ring(&b.armed, &b.rung) {
                        b.rings.fetch_add(1, Ordering::Relaxed);
                        b.bell.ring();
                    }
                })
            })
            .collect();
        let mut arms = 0;
        while b.data.load(Ordering::Acquire) < wakers {
            arm(&b.armed);
            arms += 1;
            if b.data.load(Ordering::Acquire) < wakers {
                b.bell.wait();
            }
        }
        for t in threads {
            t.join().unwrap();
        }
        assert!(b.rings.load(Ordering::Relaxed) <= arms);
    });
}

#[test]
fn doorbell_with_one_waker() {
    doorbell(1, 5);
}

#[test]
fn doorbell_with_two_wakers() {
    doorbell(2, 3);
}

/// Before it sleeps, a reader takes old doorbells off. Counted behind its arm, they may hold one
/// that was rung by that arm for what it had read already: without it, and with the arm spent,
/// nobody would wake it.
#[test]
fn doorbells_taken_off_before_a_sleep() {
    const ITEMS: u32 = 2;
    model(4, || {
        let b = Arc::new(Mailbox {
            data: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            rung: AtomicU32::new(0),
            rings: AtomicU32::new(0),
            bell: Bell::new(),
        });
        let waker = b.clone();
        let thread = thread::spawn(move || {
            for _ in 0..ITEMS {
                waker.data.fetch_add(1, Ordering::Release);
                // SYNC: doorbell.
                fence(Ordering::SeqCst);
                if must_ring(&waker.armed, &waker.rung) {
                    // SYNC: rung. Counted before it is sent.
                    waker.rings.fetch_add(1, Ordering::SeqCst);
                    waker.bell.ring();
                }
            }
        });
        let (mut read, mut drained) = (0, 0);
        while read < ITEMS {
            let seen = b.rings.load(Ordering::SeqCst);
            arm(&b.armed);
            let there = b.data.load(Ordering::Acquire);
            if there > read {
                read = there;
                continue;
            }
            drained += b.bell.drain(seen - drained);
            b.bell.wait();
            drained += 1;
        }
        thread.join().unwrap();
    });
}

/// Runs `body` as deep in the stack as a signal handler would: a lock tells it from what follows a
/// jump by that.
#[inline(never)]
fn as_handler(body: impl FnOnce() -> bool) -> bool {
    let frame = core::hint::black_box([0u8; 1024]);
    let done = body();
    core::hint::black_box(&frame);
    done
}

fn lock(threads: usize, preemptions: usize) {
    model(preemptions, move || {
        let shared = Arc::new((FastLock::<false>::new(), UnsafeCell::new(0usize)));
        let work = |shared: &(FastLock<false>, UnsafeCell<usize>)| {
            let guard = shared.0.lock().unwrap();
            assert!(shared.0.is_mine());
            assert!(as_handler(|| shared.0.lock().is_err()), "not reentrant");
            // SAFETY: loom reports it if the lock lets two in.
            shared.1.with_mut(|n| unsafe { *n += 1 });
            drop(guard);
            assert!(!shared.0.is_mine());
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || work(&shared))
            })
            .collect();
        work(&shared);
        for t in others {
            t.join().unwrap();
        }
        assert!(!shared.0.is_locked());
        // SAFETY: all other threads are gone.
        assert_eq!(shared.1.with(|n| unsafe { *n }), threads);
    });
}

#[test]
fn lock_excludes_two() {
    lock(2, 5);
}

#[test]
fn lock_wakes_all_of_three() {
    lock(3, 2);
}

#[test]
fn try_lock_excludes() {
    model(5, || {
        let shared = Arc::new((FastLock::<false>::new(), UnsafeCell::new(0u32)));
        let other = shared.clone();
        let t = thread::spawn(move || {
            if let Some(_guard) = other.0.try_lock() {
                // SAFETY: loom reports it if the lock lets two in.
                other.1.with_mut(|n| unsafe { *n += 1 });
            }
        });
        {
            let _guard = shared.0.lock().unwrap();
            // SAFETY: as above.
            shared.1.with_mut(|n| unsafe { *n += 1 });
        }
        t.join().unwrap();
        assert!(!shared.0.is_locked());
    });
}

#[test]
fn snapshot_is_never_torn() {
    model(4, || {
        let cell = Arc::new(Snapshot::<2>::new());
        let writer = cell.clone();
        let t = thread::spawn(move || {
            writer.write(&[1, 1]);
            writer.write(&[2, 2]);
        });
        if let Some([a, b]) = cell.read() {
            assert_eq!(a, b);
        }
        t.join().unwrap();
        assert_eq!(cell.read(), Some([2, 2]));
    });
}

/// Both boxes of a lane, and the bytes that the words announce.
struct Boxes {
    words: [AtomicU64; 2],
    bytes: [UnsafeCell<u32>; 2],
}

impl Boxes {
    fn say(&self, letters: &mut Letters, mine: usize, value: u32) {
        // SAFETY: loom reports it if the other side still reads.
        self.bytes[mine].with_mut(|p| unsafe { *p = value });
        letters.say(&self.words[mine], 4, false);
    }

    /// None when the other side has hung up.
    fn hear(&self, letters: &mut Letters, mine: usize) -> Option<u32> {
        loop {
            match letters.look(&self.words[1 - mine]) {
                Look::Nothing => thread::yield_now(),
                Look::Closed => return None,
                Look::Letter { .. } => break,
            }
        }
        // SAFETY: as above, of the writer.
        let value = self.bytes[1 - mine].with(|p| unsafe { *p });
        letters.take();
        Some(value)
    }
}

#[test]
fn letters_pass_in_turns() {
    model(3, || {
        let boxes = Arc::new(Boxes {
            words: core::array::from_fn(|_| AtomicU64::new(0)),
            bytes: core::array::from_fn(|_| UnsafeCell::new(0)),
        });
        let other = boxes.clone();
        let guest = thread::spawn(move || {
            let (mut letters, _) = loop {
                match Letters::find(&other.words[0]) {
                    Some(found) => break found,
                    None => thread::yield_now(),
                }
            };
            // SAFETY: as in `hear`.
            assert_eq!(other.bytes[0].with(|p| unsafe { *p }), 10);
            other.say(&mut letters, 1, 20);
            if let Some(value) = other.hear(&mut letters, 1) {
                assert_eq!(value, 11);
                other.say(&mut letters, 1, 21);
                assert_eq!(other.hear(&mut letters, 1), None);
            }
        });
        let mut letters = Letters::begin(1);
        boxes.say(&mut letters, 0, 10);
        assert_eq!(boxes.hear(&mut letters, 0), Some(20));
        boxes.say(&mut letters, 0, 11);
        assert_eq!(boxes.hear(&mut letters, 0), Some(21));
        letters.close(&boxes.words[0]);
        guest.join().unwrap();
    });
}

/// The host takes its invitation back and gives the lane to the next: an answer to the first is not
/// one to the second.
#[test]
fn a_letter_too_late_is_not_heard() {
    model(3, || {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let other = words.clone();
        let guest = thread::spawn(move || {
            if let Some((mut letters, _)) = Letters::find(&other[0]) {
                letters.say(&other[1], 4, false);
                return letters.session();
            }
            0
        });
        let mut first = Letters::begin(1);
        first.say(&words[0], 4, false);
        first.close(&words[0]);
        let mut second = Letters::begin(2);
        second.say(&words[0], 4, false);
        let heard = matches!(second.look(&words[1]), Look::Letter { .. });
        let answered = guest.join().unwrap();
        assert!(!heard || answered == 2);
        assert_eq!(matches!(second.look(&words[1]), Look::Letter { .. }), answered == 2);
    });
}

/// A socket closes and gives what it has counted to the sums, and the next one takes its row: who
/// looks from outside finds no byte twice. As `shm::rsockets::Row::close`, and its readers.
#[test]
fn what_a_row_has_given_is_not_counted_in_it_again() {
    model(3, || {
        let words = Arc::new([AtomicU64::new(7), AtomicU64::new(5), AtomicU64::new(0)]);
        let closes = {
            let words = words.clone();
            thread::spawn(move || {
                let [key, bytes, sum] = &*words;
                key.store(0, Ordering::Relaxed);
                bytes.store(0, Ordering::Relaxed);
                fence(Ordering::Release);
                sum.fetch_add(5, Ordering::Relaxed);
                key.store(8, Ordering::Relaxed);
            })
        };
        let [key, bytes, sum] = &*words;
        let mut all = sum.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if key.load(Ordering::Relaxed) != 0 {
            all += bytes.load(Ordering::Relaxed);
        }
        assert!(all <= 5, "{all}");
        closes.join().unwrap();
    });
}
