//! Every interleaving of the structures that threads, and processes, share without a lock.
//! `RUSTFLAGS="--cfg loom" cargo test -p engine --test loom --release`
#![allow(unsafe_code)]
#![cfg(any(loom, miri))]

#[cfg(miri)]
#[allow(dead_code, unused_imports)]
#[path = "../../shm/tests/loom/threads.rs"]
mod loom;
use engine::crossing::crossing;
use engine::depot::Depot;
use engine::look::order;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use shm::sync::{AtomicU64, Ordering};

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

#[test]
fn values_cross_once_and_in_order() {
    model(3, || {
        let (mut sender, mut receiver) = crossing::<Box<u32>>(2);
        let producer = thread::spawn(move || {
            let mut next = 0;
            while next < 4 {
                let count = sender.room(1).min(4 - next);
                for value in next..next + count {
                    let value = std::mem::ManuallyDrop::new(Box::new(value));
                    // SAFETY: there is room, and the original is forgotten.
                    unsafe { sender.put(&raw const *value, 1) };
                }
                next += count;
                sender.publish();
                if count == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        // The last value stays behind: the ring drops it.
        while expected < 3 {
            let count = receiver.waiting().min(3 - expected);
            if count == 0 {
                thread::yield_now();
                continue;
            }
            // SAFETY: so many wait, each is read once.
            unsafe {
                receiver.take(count, |values, some| {
                    for i in 0..some {
                        assert_eq!(*values.add(i).read(), expected);
                        expected += 1;
                    }
                });
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_chunk_has_one_owner() {
    model(3, || {
        let depot = Arc::new(Depot::new(2));
        let contents = Arc::new([UnsafeCell::new(0u32), UnsafeCell::new(0)]);
        depot.push(0);
        depot.push(1);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (depot, contents) = (depot.clone(), contents.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        if let Some(first) = depot.pop() {
                            // SAFETY: loom reports it if somebody else has this chunk.
                            contents[first as usize].with_mut(|content| unsafe { *content += 1 });
                            depot.push(first);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let mut left = [depot.pop(), depot.pop()];
        left.sort_unstable();
        assert_eq!((left, depot.pop()), ([Some(0), Some(1)], None));
    });
}

/// Two places for three entries, of two words each, and the count.
struct Look {
    count: AtomicU64,
    places: [[AtomicU64; 3]; 2],
}

/// A looker copies whole entries, those that were overwritten meanwhile show, and what the count
/// tells of is there or newer.
#[test]
fn no_entry_of_a_look_is_torn() {
    model(3, || {
        let word = || AtomicU64::new(0);
        let look = Arc::new(Look {
            count: word(),
            places: std::array::from_fn(|_| std::array::from_fn(|_| word())),
        });
        let engine = look.clone();
        let writer = thread::spawn(move || {
            for number in 0..3 {
                let [sequence, first, second] = &engine.places[number as usize % 2];
                order::write(sequence, &engine.count, number, || {
                    first.store(number + 10, Ordering::Relaxed);
                    second.store(number + 10, Ordering::Relaxed);
                });
            }
        });
        for number in 0..order::written(&look.count) {
            let [sequence, first, second] = &look.places[number as usize % 2];
            let copied = order::read(sequence, number, || {
                [second.load(Ordering::Relaxed), first.load(Ordering::Relaxed)]
            });
            match copied {
                Some(copied) => assert_eq!(copied, [number + 10; 2]),
                None => assert!(number == 0, "nothing comes behind entry {number} in its place"),
            }
        }
        writer.join().unwrap();
        assert_eq!(order::written(&look.count), 3);
    });
}
