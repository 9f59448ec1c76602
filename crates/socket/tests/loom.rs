//! Every interleaving of what threads that wait on one epoll set, those that change it or ring for
//! it, and those that take its connections off TCP or close them, do to each other.
//! `RUSTFLAGS="--cfg loom" cargo test -p socket --test loom --release`
#![cfg(any(loom, miri))]

#[cfg(miri)]
#[allow(dead_code, unused_imports)]
#[path = "../../shm/tests/loom/threads.rs"]
mod loom;
#[path = "../src/epoll/sleepers.rs"]
#[allow(dead_code)]
mod sleepers;
#[path = "../src/epoll/underway.rs"]
#[allow(dead_code)]
mod underway;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use shm::sync::{AtomicU32, Ordering::*, fence};
use sleepers::Sleepers;
use underway::Underway;

/// A set as far as its sleepers go: what its lock guards, the kernel's edges, and the word by which
/// peers ring.
struct Set {
    sleepers: Sleepers,
    /// Events to give out, under the set's lock.
    due: Mutex<u32>,
    /// Edges that the kernel has for sleepers: each wakes one.
    edges: Mutex<u32>,
    fired: Condvar,
    /// Data that a peer has published, and whether it is to ring for it.
    data: AtomicU32,
    armed: AtomicU32,
}

impl Set {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            sleepers: Sleepers::new(),
            due: Mutex::new(0),
            edges: Mutex::new(0),
            fired: Condvar::new(),
            data: AtomicU32::new(0),
            armed: AtomicU32::new(0),
        })
    }

    /// epoll_ctl on the kernel's registration, or a doorbell: an edge that wakes one sleeper, now
    /// or later.
    fn kick(&self) {
        *self.edges.lock().unwrap() += 1;
        self.fired.notify_one();
    }

    fn sleep(&self) {
        let mut edges = self.edges.lock().unwrap();
        while *edges == 0 {
            edges = self.fired.wait(edges).unwrap();
        }
        *edges -= 1;
    }

    fn take(&self) -> bool {
        let mut due = self.due.lock().unwrap();
        let some = *due > 0;
        *due -= u32::from(some);
        some
    }

    /// A change that makes `n` events due.
    fn change(&self, n: u32) {
        let mut due = self.due.lock().unwrap();
        *due += n;
        if self.sleepers.any() {
            self.kick();
        }
    }

    /// A wait that takes one event.
    fn wait(&self) {
        let mut took = false;
        loop {
            // Behind the look it would deadlock: `change` saw nobody, and the look saw nothing.
            self.sleepers.enter();
            if self.take() {
                self.sleepers.leave();
                break;
            }
            self.sleep();
            took = true;
            self.sleepers.leave();
            if self.take() {
                break;
            }
        }
        // Whoever leaves with an edge that may have been for others wakes one of them.
        if took && self.sleepers.any() {
            let due = self.due.lock().unwrap();
            if *due > 0 {
                self.kick();
            }
        }
    }

    /// A peer publishes, and rings if it is asked to.
    fn publish(&self) {
        self.data.swap(1, SeqCst);
        if self.armed.load(SeqCst) == 1 {
            self.kick();
        }
    }

    /// A wait for that: counts, arms, looks, sleeps.
    fn wait_for_data(&self) {
        self.sleepers.enter();
        {
            let _due = self.due.lock().unwrap();
            self.armed.store(1, SeqCst);
        }
        if self.data.load(SeqCst) == 0 {
            self.sleep();
        }
        self.sleepers.leave();
    }

    /// A thread wakes up for something else: the last one takes the arms back.
    fn wake(&self) {
        if self.sleepers.leave() {
            let _due = self.due.lock().unwrap();
            // Unasked it would take those of a thread that has counted itself and armed since,
            // which then sleeps for good.
            if !self.sleepers.any() {
                self.armed.store(0, SeqCst);
            }
        }
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

#[test]
fn a_change_reaches_who_is_about_to_sleep() {
    model(|| {
        let set = Set::new();
        let sleeper = thread::spawn({
            let set = set.clone();
            move || set.wait()
        });
        set.change(1);
        sleeper.join().unwrap();
    });
}

#[test]
fn one_edge_is_passed_on_until_all_events_have_gone() {
    model(|| {
        let set = Set::new();
        let others = [(); 2].map(|()| {
            thread::spawn({
                let set = set.clone();
                move || set.wait()
            })
        });
        set.change(2);
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn who_leaves_takes_no_arms_of_others_back() {
    model(|| {
        let set = Set::new();
        set.sleepers.enter();
        set.armed.store(1, SeqCst);
        let leaves = thread::spawn({
            let set = set.clone();
            move || set.wake()
        });
        let sleeper = thread::spawn({
            let set = set.clone();
            move || set.wait_for_data()
        });
        leaves.join().unwrap();
        set.publish();
        sleeper.join().unwrap();
    });
}

/// One connection that a thread adds to a set, as far as its note goes.
struct Connection {
    /// The tables' lock, and the note of the connection in the list of its set.
    noted: Mutex<bool>,
    /// First of its notes, which is looked at without the lock.
    regs: AtomicU32,
    underway: Underway,
    /// What the kernel has of it: nothing, the application's registration, ours.
    kernel: Mutex<u32>,
    switched: AtomicU32,
    /// It goes back to TCP: right in any case.
    left: AtomicU32,
    /// Whether its number names it.
    named: AtomicU32,
}

const NOTHING: u32 = 0;
const THEIRS: u32 = 1;
const OURS: u32 = 2;

impl Connection {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            noted: Mutex::new(false),
            regs: AtomicU32::new(0),
            underway: Underway::new(),
            kernel: Mutex::new(NOTHING),
            switched: AtomicU32::new(0),
            left: AtomicU32::new(0),
            named: AtomicU32::new(1),
        })
    }

    /// Under the tables' lock: changes the kernel's registration to ours, if that is possible.
    fn hook(&self) -> bool {
        if self.underway.is(0) {
            return false;
        }
        let mut kernel = self.kernel.lock().unwrap();
        assert_ne!(*kernel, NOTHING, "what is not underway the kernel has");
        *kernel = OURS;
        true
    }

    /// `add` of `change.rs`; `refused`: the kernel has it already, of somebody else.
    fn add(&self, refused: bool) {
        {
            let mut noted = self.noted.lock().unwrap();
            *noted = true;
            self.regs.store(1, Relaxed);
            self.underway.begin(0);
        }
        if !refused {
            *self.kernel.lock().unwrap() = THEIRS;
        }
        if refused {
            let mut noted = self.noted.lock().unwrap();
            *noted = false;
            self.regs.store(0, Relaxed);
            drop(noted);
            self.underway.end();
            return;
        }
        self.underway.end();
        if self.named.load(Acquire) == 0 {
            let mut noted = self.noted.lock().unwrap();
            *noted = false;
            self.regs.store(0, Relaxed);
            drop(noted);
            self.left.store(1, Relaxed);
        } else if self.switched.load(Acquire) == 1 {
            let noted = self.noted.lock().unwrap();
            if !*noted || !self.hook() {
                self.left.store(1, Relaxed);
            }
        }
    }

    /// `on_switched`.
    fn switch(&self) {
        self.switched.store(1, Release);
        fence(SeqCst);
        if self.regs.load(Acquire) == 0 {
            return;
        }
        let noted = self.noted.lock().unwrap();
        if *noted && !self.hook() {
            self.left.store(1, Relaxed);
        }
    }

    /// `fds::before_close`, and `forget_conn`.
    fn close(&self) {
        // As strong as a SeqCst swap and a SeqCst load, which loom does not know.
        self.named.store(0, Release);
        fence(SeqCst);
        if self.regs.load(Acquire) != 0 {
            let mut noted = self.noted.lock().unwrap();
            *noted = false;
            self.regs.store(0, Relaxed);
        }
    }
}

#[test]
fn who_leaves_tcp_while_it_is_added_is_hooked_or_goes_back() {
    for refused in [false, true] {
        model(move || {
            let c = Connection::new();
            let adds = thread::spawn({
                let c = c.clone();
                move || c.add(refused)
            });
            c.switch();
            adds.join().unwrap();
            let kernel = *c.kernel.lock().unwrap();
            assert!(
                refused || kernel == OURS || c.left.load(Relaxed) == 1,
                "its data would be told to nobody"
            );
            assert_eq!(*c.noted.lock().unwrap(), !refused);
        });
    }
}

#[test]
fn what_is_closed_while_it_is_added_leaves_no_note() {
    model(|| {
        let c = Connection::new();
        let adds = thread::spawn({
            let c = c.clone();
            move || c.add(false)
        });
        c.close();
        adds.join().unwrap();
        assert!(!*c.noted.lock().unwrap(), "the next connection at its place would have it");
    });
}

/// `fds::rings`: a thread proves that rings are entered where we see it, while others doubt it and
/// pause the upgrades.
#[test]
fn a_proof_ends_every_pause() {
    model(|| {
        const PAUSED: u32 = 1;
        let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let doubts = [(); 2].map(|()| {
            let words = words.clone();
            thread::spawn(move || {
                let (proven, policy) = &*words;
                policy.fetch_or(PAUSED, SeqCst);
                if proven.load(SeqCst) == 1 {
                    policy.fetch_and(!PAUSED, SeqCst);
                }
            })
        });
        let (proven, policy) = &*words;
        proven.store(1, SeqCst);
        policy.fetch_and(!PAUSED, SeqCst);
        doubts.into_iter().for_each(|doubt| doubt.join().unwrap());
        assert_eq!(policy.load(Relaxed), 0, "nothing would be upgraded for good");
    });
}
