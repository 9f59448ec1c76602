//! Every interleaving, and every stale value that the memory model allows, of what the threads of a
//! connection's two ends do to the words that they share.
//! `RUSTFLAGS="--cfg loom" cargo test -p smc --test loom --release`
#![cfg(any(loom, miri))]

#[path = "../src/conn/announce.rs"]
#[allow(dead_code)]
mod announce;
#[path = "../src/conn/header.rs"]
#[allow(dead_code)]
mod header;
#[path = "../src/conn/inflight.rs"]
#[allow(dead_code)]
mod inflight;
#[cfg(miri)]
#[allow(dead_code, unused_imports)]
#[path = "../../shm/tests/loom/threads.rs"]
mod loom;
#[path = "../src/conn/mapped.rs"]
#[allow(dead_code)]
mod mapped;
#[path = "../src/conn/phase.rs"]
#[allow(dead_code)]
mod phase;
#[path = "../src/conn/ringing.rs"]
#[allow(dead_code)]
mod ringing;
#[path = "../src/conn/steps.rs"]
#[allow(dead_code)]
mod steps;
#[path = "../src/conn/takeback.rs"]
mod takeback;
#[path = "loom/words.rs"]
mod words;

use announce::{Announced, cover_of};
use header::{DmbHeader, WAITS, Waits};
use inflight::*;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use mapped::{Mapped, Sleeper, fix_bells};
use phase::{Phase, Receives, Sends, Word};
use ringing::Ringing;
use shm::CURSOR_MASK;
use shm::FastLock;
use shm::sync::{AtomicU32, AtomicU64, Ordering::*, fence};
use steps::Steps;

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// A byte that the application sent.
const PAYLOAD: u8 = b'p';
/// A doorbell.
const BELL: u8 = 0;

/// One end of a connection whose directions may switch, the peer's headers, and the stream of TCP
/// between them.
struct Conn {
    phase: Word,
    kernel: Inflight,
    headers: [DmbHeader; 2],
    stream: Mutex<Vec<u8>>,
    bell: Condvar,
}

impl Conn {
    fn new() -> Arc<Self> {
        let new = Self {
            phase: Word::default(),
            kernel: Inflight::default(),
            headers: [DmbHeader::default(), DmbHeader::default()],
            stream: Mutex::new(Vec::new()),
            bell: Condvar::new(),
        };
        new.phase.turn_sends(Sends::committed);
        new.phase.turn_receives(|_| Receives::Ready);
        Arc::new(new)
    }

    fn phase(&self) -> Phase {
        self.phase.now()
    }

    /// The end that sends.
    fn writer(&self) -> Mapped<'_> {
        Mapped { my: &self.headers[0], peer: &self.headers[1] }
    }

    /// The end that receives.
    fn owner(&self) -> Mapped<'_> {
        Mapped { my: &self.headers[1], peer: &self.headers[0] }
    }

    fn send(&self, byte: u8) {
        self.stream.lock().unwrap().push(byte);
        self.bell.notify_one();
    }

    /// Waits for a byte, as a thread in a real kernel call does.
    fn wait(&self) {
        let mut stream = self.stream.lock().unwrap();
        while stream.is_empty() {
            stream = self.bell.wait(stream).unwrap();
        }
        stream.pop();
    }
}

/// A send that entered the kernel before the switch is counted in its offset, and none enters
/// behind it.
#[test]
fn payload_lies_in_front_of_the_switch_and_doorbells_behind_it() {
    model(3, || {
        let conn = Conn::new();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let conn = conn.clone();
                thread::spawn(move || {
                    if enter_send(&conn.phase, &conn.kernel) {
                        conn.send(PAYLOAD);
                        conn.kernel.leave();
                    }
                })
            })
            .collect();
        let begun = begin_send_switch(&conn.phase, &conn.kernel);
        if begun {
            let n = conn.stream.lock().unwrap().len();
            conn.writer().leave_tcp(n as u64);
            conn.phase.turn_sends(|_| Sends::Ring);
            conn.send(BELL);
        }
        end_send_switch(&conn.phase);
        threads.into_iter().for_each(|t| t.join().unwrap());
        let switch = conn.owner().my.switch.load(Acquire);
        assert_eq!((switch & 1 == 1, conn.phase().sends() == Sends::Ring), (begun, begun));
        let stream = conn.stream.lock().unwrap();
        let (before, behind) =
            stream.split_at(if begun { (switch >> 1) as usize } else { stream.len() });
        assert!(
            before.iter().all(|byte| *byte == PAYLOAD) && behind.iter().all(|byte| *byte == BELL)
        );
    });
}

/// A receive that is in the kernel when the peer switches cuts the stream; nobody follows the
/// switch beside it.
#[test]
fn a_doorbell_is_never_received() {
    model(3, || {
        let conn = Conn::new();
        conn.stream.lock().unwrap().push(PAYLOAD);
        let (peer, other) = (conn.clone(), conn.clone());
        let peer = thread::spawn(move || {
            peer.writer().leave_tcp(1);
            peer.send(BELL);
        });
        let switched = |conn: &Conn| conn.owner().my.switch.load(Acquire) & 1 == 1;
        let receiver = thread::spawn(move || {
            if !enter_receive(&other.phase, &other.kernel) {
                return;
            }
            let mut got = std::mem::take(&mut *other.stream.lock().unwrap());
            if other.phase().awaits_switch() && switched(&other) {
                got.truncate(1);
                other.phase.turn_receives(Receives::followed);
            }
            other.kernel.leave();
            assert!(!got.contains(&BELL), "a doorbell passed for payload");
        });
        if conn.phase().awaits_switch() && switched(&conn) {
            if begin_receive_switch(&conn.phase, &conn.kernel) {
                conn.phase.turn_receives(Receives::followed);
            }
            end_receive_switch(&conn.phase);
        }
        peer.join().unwrap();
        receiver.join().unwrap();
    });
}

/// Each of two receives cuts at the peer's switch by the position that the kernel tells, which the
/// other would change.
#[test]
fn one_receive_at_a_time_knows_its_place() {
    model(2, || {
        let conn = Conn::new();
        // What lies in the stream, how much was taken of it, and how much of that was given out.
        let stream = Arc::new(Mutex::new((vec![PAYLOAD], 0, 0)));
        let receivers: Vec<_> = (0..2)
            .map(|_| {
                let (conn, stream) = (conn.clone(), stream.clone());
                thread::spawn(move || {
                    if !enter_receive(&conn.phase, &conn.kernel) {
                        return;
                    }
                    let got = {
                        let mut stream = stream.lock().unwrap();
                        let got = std::mem::take(&mut stream.0).len();
                        stream.1 += got;
                        got
                    };
                    let switch = conn.owner().my.switch.load(Acquire);
                    let mut stream = stream.lock().unwrap();
                    let before = stream.1 - got;
                    let left = if switch & 1 == 1 {
                        ((switch >> 1) as usize).saturating_sub(before)
                    } else {
                        got
                    };
                    stream.2 += got.min(left);
                    drop(stream);
                    conn.kernel.leave();
                })
            })
            .collect();
        conn.writer().leave_tcp(1);
        stream.lock().unwrap().0.push(BELL);
        receivers.into_iter().for_each(|t| t.join().unwrap());
        let stream = stream.lock().unwrap();
        assert_eq!(stream.2, stream.1.min(1), "payload, and no doorbell");
    });
}

fn page() -> Waits {
    let words = || -> [AtomicU32; WAITS] { core::array::from_fn(|_| AtomicU32::new(0)) };
    Waits { armed: words(), rung: words(), bell: words(), given: words() }
}

/// Bytes are published while their reader goes to sleep, armed by its header's word or covered by
/// its wait's. A lost wakeup leaves it waiting for a byte that nobody sends, which loom reports.
fn sleep(covered: bool) {
    model(3, move || {
        let (conn, page) = (Conn::new(), Arc::new(page()));
        let rung = Arc::new(AtomicU32::new(0));
        if covered {
            conn.owner().cover(1);
        }
        let threads: Vec<_> = [0u64]
            .map(|from| {
                let (conn, page, rung) = (conn.clone(), page.clone(), rung.clone());
                thread::spawn(move || {
                    assert!(conn.writer().publish(from << 16, (from + 1) << 16));
                    if conn.writer().sleeper(&rung, Some(&page), || None) != Sleeper::Nobody {
                        conn.send(BELL);
                    }
                })
            })
            .into_iter()
            .collect();
        let owner = conn.owner();
        if covered {
            page.sleep(1)
        } else {
            owner.arm_data()
        }
        if owner.my.prod.load(Acquire) & CURSOR_MASK == 0 {
            conn.wait();
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

/// A wait passes over a connection as long as nothing is announced of it. Each publication is found
/// behind its bit, or by a look behind the request to announce; one that comes behind the last look
/// rings.
#[test]
fn what_is_announced_is_looked_at() {
    for publications in [1u64, 2] {
        model(3, move || {
            let (conn, page) = (Conn::new(), Arc::new(page()));
            let bits = Arc::new(Announced::default());
            let writer = {
                let (conn, page, bits) = (conn.clone(), page.clone(), bits.clone());
                thread::spawn(move || {
                    let rung = AtomicU32::new(0);
                    for from in 0..publications {
                        assert!(conn.writer().publish(from << 16, (from + 1) << 16));
                        let sleeper =
                            conn.writer().sleeper(&rung, Some(&page), || Some((&bits, 7)));
                        if sleeper != Sleeper::Nobody {
                            conn.send(BELL);
                        }
                    }
                })
            };
            let owner = conn.owner();
            let published = || (owner.my.prod.load(Acquire) & CURSOR_MASK) >> 16;
            // The peer is asked to announce, and what was published before is looked for once more.
            owner.cover(cover_of(1, 1));
            let mut seen = published();
            while seen < publications {
                let mut slots = bits.take(0, 0, 1 << 7);
                if slots == 0 {
                    page.sleep(1);
                    slots = bits.take(0, 0, 1 << 7);
                    if slots == 0 {
                        conn.wait();
                        slots = bits.take(0, 0, 1 << 7);
                    }
                    page.wake(1);
                }
                if slots != 0 {
                    assert_eq!(slots, 1 << 7);
                    seen = published();
                }
            }
            writer.join().unwrap();
        });
    }
}

#[test]
fn a_sleeper_that_armed_is_woken() {
    sleep(false);
}

#[test]
fn a_sleeper_whose_wait_covers_the_connection_is_woken() {
    sleep(true);
}

/// From one sleep to the next a wait may begin to listen to a bell, or stop. Then only a doorbell
/// on the stream wakes it.
#[test]
fn a_wait_is_rung_where_it_listens() {
    for (first, then) in [(true, true), (false, true), (true, false)] {
        model(3, move || {
            let (conn, page) = (Conn::new(), Arc::new(page()));
            // Edges that its set was told: of the bell, and of any kind.
            let told = Arc::new((Mutex::new((0, 0)), Condvar::new()));
            conn.owner().cover(1);
            let writer = {
                let (conn, page, told) = (conn.clone(), page.clone(), told.clone());
                thread::spawn(move || {
                    let rung = AtomicU32::new(0);
                    for from in 0..2u64 {
                        assert!(conn.writer().publish(from << 16, (from + 1) << 16));
                        if conn.writer().sleeper(&rung, Some(&page), || None) == Sleeper::Nobody {
                            continue;
                        }
                        // As `Bells::ring`.
                        let by_bell = page.bell[1].load(Acquire) & 1;
                        let mut edges = told.0.lock().unwrap();
                        *edges = (edges.0 + by_bell, edges.1 + 1);
                        told.1.notify_one();
                    }
                })
            };
            let owner = conn.owner();
            let published = || (owner.my.prod.load(Acquire) & CURSOR_MASK) >> 16;
            let (mut seen, mut heard) = (0, 0);
            for listens in [first, then] {
                if seen == 2 {
                    break;
                }
                if listens {
                    page.listen(1, 7);
                } else {
                    page.stop_listening(1, 7);
                }
                page.sleep(1);
                let mut edges = told.0.lock().unwrap();
                let heard_by =
                    |edges: (u32, u32)| if listens { edges.1 } else { edges.1 - edges.0 };
                while published() == seen && heard_by(*edges) == heard {
                    edges = told.1.wait(edges).unwrap();
                }
                page.wake(1);
                seen = published();
                heard = if then { edges.1 } else { edges.1 - edges.0 };
            }
            writer.join().unwrap();
        });
    }
}

/// Once a ring was taken back nothing is published in it, and as many doorbells come as were
/// counted.
#[test]
fn a_ring_that_was_taken_back_stays_as_it_is() {
    model(4, || {
        let conn = Conn::new();
        let writer = conn.clone();
        let writer = thread::spawn(move || {
            for from in 0..2u64 {
                if !writer.writer().publish(from << 16, (from + 1) << 16) {
                    let _ = writer.writer().close_ring();
                    return;
                }
                if writer.writer().count_bell() {
                    writer.send(BELL);
                }
            }
        });
        let owner = conn.owner();
        let before = owner.revoke() & CURSOR_MASK;
        let bells = fix_bells(owner.my);
        writer.join().unwrap();
        assert_eq!(owner.my.prod.load(Acquire) & CURSOR_MASK, before);
        assert_eq!(conn.stream.lock().unwrap().len(), bells as usize);
        assert_eq!(fix_bells(owner.my), bells);
    });
}

/// The writer returns to TCP while the owner of the ring claims what it has not read: that goes in
/// front of all that the writer's threads send over TCP, or the owner knows that it cannot have it.
#[test]
fn what_is_claimed_goes_in_front() {
    const AGAIN: u8 = b'a';
    model(3, || {
        let conn = Conn::new();
        conn.phase.turn_sends(|_| Sends::Switching);
        conn.phase.turn_sends(|_| Sends::Ring);
        assert!(conn.writer().publish(0, 7 << 16));
        let sends = |conn: &Conn| {
            if enter_send(&conn.phase, &conn.kernel) {
                conn.send(PAYLOAD);
                conn.kernel.leave();
            }
        };
        let returns = conn.clone();
        let returns = thread::spawn(move || {
            returns.phase.turn_sends(|_| Sends::Leaving);
            if returns.writer().close_ring() {
                returns.phase.set(phase::RESEND);
            }
            returns.phase.turn_sends(Sends::left);
            if returns.phase().has(phase::RESEND) {
                assert_eq!(returns.writer().claimed(), Some(7));
                returns.send(AGAIN);
                returns.phase.clear(phase::RESEND);
            }
            sends(&returns);
        });
        let other = conn.clone();
        let other = thread::spawn(move || sends(&other));
        conn.owner().revoke();
        let has_claimed = conn.owner().claim(3);
        returns.join().unwrap();
        other.join().unwrap();
        let stream = conn.stream.lock().unwrap();
        assert_eq!(stream.iter().position(|&byte| byte == AGAIN), has_claimed.then_some(0));
        assert!(stream.contains(&PAYLOAD));
    });
}

/// What a reader frees is free for the writer that sees it, and a writer that sleeps for it is
/// woken.
#[test]
fn space_wakes_a_writer() {
    model(3, || {
        let conn = Conn::new();
        let reader = conn.clone();
        let reader = thread::spawn(move || {
            let rung = AtomicU32::new(0);
            reader.owner().confirm(1 << 16);
            reader.owner().confirm_now(Some(2));
            if shm::must_ring(&reader.owner().my.tx_arm, &rung) {
                reader.send(BELL);
            }
        });
        conn.writer().arm_space();
        if conn.writer().my.cons.load(Acquire) & CURSOR_MASK == 0 {
            conn.wait();
        }
        reader.join().unwrap();
    });
}

/// A ring at a distance that its owner takes back. What one end stores is copied into the other's
/// memory by a system call.
struct Far {
    /// Of the writer's image, which the owner looks at.
    lock: FastLock<true>,
    takeback: AtomicU64,
    rung: AtomicU32,
    prod: AtomicU64,
    bells: AtomicU32,
}

fn far() -> Arc<Far> {
    Arc::new(Far {
        lock: FastLock::new(),
        takeback: AtomicU64::new(0),
        rung: AtomicU32::new(0),
        prod: AtomicU64::new(0),
        bells: AtomicU32::new(0),
    })
}

/// Once the owner has told its takeback and has seen the writer's lock free, the count of doorbells
/// is that of the bytes on the stream, for good: what the kernel's reader finds behind them is
/// payload.
#[test]
fn no_doorbell_follows_a_takeback_that_was_settled() {
    model(3, || {
        let far = far();
        let writer = thread::spawn({
            let far = far.clone();
            move || {
                let _guard = far.lock.lock();
                if takeback::may_ring(&far.takeback) {
                    far.rung.fetch_add(1, SeqCst);
                    far.bells.fetch_add(1, SeqCst);
                }
            }
        });
        far.takeback.store(takeback::from(0), SeqCst);
        takeback::told();
        let settled = !far.lock.is_locked();
        // The end of the system call that read it.
        fence(SeqCst);
        let counted = far.rung.load(SeqCst);
        writer.join().unwrap();
        assert!(!settled || counted == far.bells.load(SeqCst), "one was sent behind the last look");
    });
}

/// Bytes that are copied while the ring is taken back are seen by the owner, or not counted as
/// sent: else nobody would wake the writer to send them again.
#[test]
fn bytes_behind_a_takeback_are_seen_or_not_sent() {
    model(3, || {
        let far = far();
        let writer = thread::spawn({
            let far = far.clone();
            move || {
                far.prod.store(5, Relaxed);
                takeback::kept(&far.takeback, 0, 5)
            }
        });
        far.takeback.store(takeback::from(2), Relaxed);
        takeback::told();
        let seen = far.prod.load(Relaxed);
        let sent = writer.join().unwrap();
        assert!(sent == 2 || sent == 5 && seen == 5, "{sent} sent, {seen} seen");
    });
}

const FIRST: u32 = 0;
const OVER: u32 = 5;

/// A close that finds a connection untouched gives its slot to the next one: no step may have made
/// anything by then, nor make anything later.
#[test]
fn a_step_and_an_end_do_not_both_find_an_upgrade_unbegun() {
    model(4, || {
        let conn = Arc::new((Steps::default(), AtomicU64::new(0)));
        let step = {
            let conn = conn.clone();
            thread::spawn(move || {
                let (steps, place) = &*conn;
                if steps.hold(1) {
                    if steps.stage() == FIRST {
                        place.store(7, Relaxed);
                    }
                    steps.release();
                }
            })
        };
        let (steps, place) = &*conn;
        let ended = steps.end_unbegun(FIRST, OVER, place);
        step.join().unwrap();
        let made = place.load(Relaxed) != 0;
        assert!(!(ended && made), "what the step has made is nobody's");
    });
}

/// What a step maps is in one process. A step that does not see a fork is at its end before the
/// child is made.
#[test]
fn a_step_sees_a_fork_or_is_waited_for() {
    model(4, || {
        let conn = Arc::new((Steps::default(), AtomicU32::new(1), AtomicU32::new(0)));
        let step = {
            let conn = conn.clone();
            thread::spawn(move || {
                let (steps, processes, mapped) = &*conn;
                if steps.hold(1) {
                    if processes.load(Relaxed) == 1 {
                        mapped.store(1, Relaxed);
                    }
                    steps.release();
                }
            })
        };
        let (steps, processes, mapped) = &*conn;
        processes.store(2, Relaxed);
        while steps.holder() != 0 {
            shm::sync::spin();
        }
        let childs = mapped.load(Relaxed);
        step.join().unwrap();
        assert_eq!(mapped.load(Relaxed), childs, "mapped behind the fork");
    });
}

/// A receiver rings for space while another thread takes sends back to TCP. Its doorbell was counted
/// for the place in front of what is sent there: behind it the peer would take payload for a doorbell.
#[test]
fn no_doorbell_comes_behind_what_is_sent_back_on_tcp() {
    model(3, || {
        let conn = Conn::new();
        for at in [Sends::Switching, Sends::Ring] {
            conn.phase.turn_sends(|_| at);
        }
        let ringing = Arc::new(Ringing::default());
        let receiver = {
            let (conn, ringing) = (conn.clone(), ringing.clone());
            thread::spawn(move || {
                ringing.hold(|| {
                    if conn.phase().sends() == Sends::Ring {
                        conn.stream.lock().unwrap().push(BELL);
                    }
                });
            })
        };
        conn.phase.turn_sends(|_| Sends::Leaving);
        ringing.await_all(|| {
            thread::yield_now();
            true
        });
        conn.stream.lock().unwrap().push(PAYLOAD);
        receiver.join().unwrap();
        let stream = conn.stream.lock().unwrap();
        assert_eq!(stream.last(), Some(&PAYLOAD), "{stream:?}");
    });
}
