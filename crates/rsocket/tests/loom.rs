//! The order of locks around the completion queue, and that no wakeup is lost there.
#![allow(unsafe_code)]
#![cfg(any(loom, miri))]

#[cfg(miri)]
#[allow(dead_code, unused_imports)]
#[path = "../../shm/tests/loom/threads.rs"]
mod loom;
#[path = "../src/progress.rs"]
#[allow(dead_code)]
mod progress;

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use progress::{Event, Progress};
use shm::sync::{AtomicU32, Ordering, fence};
use shm::{Errno, arm, must_ring};

/// A completion queue with two kinds of completions, credits and data, and its event.
struct Queue {
    progress: Progress,
    published: [AtomicU32; 2],
    /// What was processed: loom reports it if two threads process at a time.
    seen: UnsafeCell<[u32; 2]>,
    armed: AtomicU32,
    rung: AtomicU32,
    bell: (Mutex<bool>, Condvar),
}

impl Queue {
    fn new() -> Self {
        Self {
            progress: Progress::default(),
            published: [AtomicU32::new(0), AtomicU32::new(0)],
            seen: UnsafeCell::new([0; 2]),
            armed: AtomicU32::new(0),
            rung: AtomicU32::new(0),
            bell: (Mutex::new(false), Condvar::new()),
        }
    }

    /// The peer completes something.
    fn publish(&self, kind: usize) {
        self.published[kind].store(1, Ordering::Release);
        // SYNC: doorbell.
        fence(Ordering::SeqCst);
        if must_ring(&self.armed, &self.rung) {
            *self.bell.0.lock().unwrap() = true;
            self.bell.1.notify_all();
        }
    }

    /// Under the lock: processes what there is, of either kind.
    fn process(&self, kind: usize) -> bool {
        let now = [0, 1].map(|i| self.published[i].load(Ordering::Acquire));
        // SAFETY: the lock makes it exclusive, or loom says so.
        self.seen.with_mut(|seen| unsafe {
            *seen = now;
            (*seen)[kind] != 0
        })
    }

    fn wait(&self, kind: usize) {
        self.progress.run(self, true, || self.process(kind)).unwrap();
    }
}

impl Event for Queue {
    fn request(&self) {
        arm(&self.armed);
    }

    fn wait(&self) -> Result<(), Errno> {
        let mut there = self.bell.0.lock().unwrap();
        while !*there {
            there = self.bell.1.wait(there).unwrap();
        }
        Ok(())
    }

    fn take(&self) {
        *self.bell.0.lock().unwrap() = false;
    }
}

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

#[test]
fn one_waiter_is_woken() {
    model(4, || {
        let queue = Arc::new(Queue::new());
        let peer = queue.clone();
        let t = thread::spawn(move || peer.publish(0));
        queue.wait(0);
        t.join().unwrap();
    });
}

/// A send waits for credits and a receive for data. A wakeup that only one of them gets, or a lock
/// held over a sleep, is a deadlock here.
#[test]
fn both_directions_are_woken() {
    model(2, || {
        let queue = Arc::new(Queue::new());
        let receiver = queue.clone();
        let t = thread::spawn(move || receiver.wait(1));
        let peer = queue.clone();
        let p = thread::spawn(move || {
            peer.publish(1);
            peer.publish(0);
        });
        queue.wait(0);
        t.join().unwrap();
        p.join().unwrap();
    });
}

/// A poller that comes and goes takes no event from a thread that sleeps.
#[test]
fn a_poller_takes_nobodys_event() {
    model(2, || {
        let queue = Arc::new(Queue::new());
        let sleeper = queue.clone();
        let t = thread::spawn(move || sleeper.wait(0));
        let peer = queue.clone();
        let p = thread::spawn(move || peer.publish(0));
        if !queue.progress.enter(&*queue, || queue.process(0)).unwrap() {
            Event::wait(&*queue).unwrap();
            queue.progress.leave(&*queue, true);
        }
        t.join().unwrap();
        p.join().unwrap();
    });
}

/// A set of descriptors as far as its bell goes: what is a member, who sleeps, and the bell.
#[derive(Default)]
struct Set {
    changed: Mutex<bool>,
    sleepers: AtomicU32,
    bell: (Mutex<bool>, Condvar),
}

impl Set {
    /// `Set::prepare` and a sleep.
    fn wait(&self) {
        let seen = {
            let changed = self.changed.lock().unwrap();
            // SYNC: set.
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            *changed
        };
        if !seen {
            let mut rung = self.bell.0.lock().unwrap();
            while !*rung {
                rung = self.bell.1.wait(rung).unwrap();
            }
        }
        self.leave();
    }

    /// The end of `Set::sleep`. Without the lock it would take a ring that came for a thread which
    /// has counted itself since: that one would sleep for ever.
    fn leave(&self) {
        let _changed = self.changed.lock().unwrap();
        if self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 {
            *self.bell.0.lock().unwrap() = false;
        }
    }

    fn change(&self) {
        let mut changed = self.changed.lock().unwrap();
        *changed = true;
        // SYNC: set.
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            *self.bell.0.lock().unwrap() = true;
            self.bell.1.notify_all();
        }
    }
}

/// A thread leaves a set and silences its bell while another one begins to sleep in it.
#[test]
fn who_leaves_a_set_takes_nobodys_ring() {
    model(3, || {
        let set = Arc::new(Set::default());
        set.sleepers.store(1, Ordering::Relaxed);
        let leaves = thread::spawn({
            let set = set.clone();
            move || set.leave()
        });
        let sleeper = thread::spawn({
            let set = set.clone();
            move || set.wait()
        });
        set.change();
        leaves.join().unwrap();
        sleeper.join().unwrap();
    });
}
