//! Both ends of a connection over plain memory of this process, with no device and no handshake:
//! the two headers mapped, and each an image of the peer's. Between them is a TCP connection, which
//! tells offsets and carries doorbells.
#![allow(unsafe_code)]

use super::inflight::begin_send_switch;
use super::recv::RecvError;
use super::send::SendError;
use super::*;
use crate::sys;
use core::sync::atomic::AtomicUsize;
use dibs::ism::{Place, WORDS};
use rustix::fd::{AsRawFd, RawFd};
use std::net::{TcpListener, TcpStream};

/// Bytes of a DMB.
const LEN: u32 = 1 << 14;
/// What a peer finds where a buffer is.
const PROOF: u64 = 0x1f2e_3d4c;

struct End {
    conn: &'static Conn,
    index: u32,
    /// In non-blocking mode.
    socket: TcpStream,
}

/// Zeroed memory that stays, as that of a device does.
fn memory<T>(len: usize) -> *mut T {
    let memory = sys::reserve(len, true);
    assert!(!memory.is_null());
    memory.cast()
}

impl End {
    fn new(socket: TcpStream) -> Self {
        socket.set_nonblocking(true).expect("a socket");
        let table = table::get().expect("a table");
        let index = table.alloc().expect("a slot");
        let conn = table.conn(index);
        conn.reset();
        conn.identity.pid.store(sys::getpid(), Relaxed);
        assert!(conn.can_map());
        Self { conn, index, socket }
    }

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn send(&self, bytes: &[u8]) -> Sent {
        let iov =
            [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        self.conn.send(self.fd(), &mut Pieces::new(&iov))
    }

    fn recv(&self) -> Result<Vec<u8>, Got> {
        let mut bytes = [0; 64];
        let iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        match self.conn.recv(self.fd(), &mut Pieces::new(&iov), 0) {
            Got::Bytes(n) => Ok(bytes[..n].to_vec()),
            got => Err(got),
        }
    }

    /// Waits until `n` bytes are there on TCP: they may be on their way.
    fn await_on_tcp(&self, n: usize) {
        let deadline = sys::now_ns() + 10_000_000_000;
        while (sys::ioctl_int(self.fd(), libc::FIONREAD).unwrap_or(0) as usize) < n {
            assert!(sys::now_ns() < deadline, "{n} bytes do not come");
            sys::nap();
        }
    }

    /// A receive of the kernel's, of `n` bytes that come.
    fn raw_recv(&self, n: usize) -> Vec<u8> {
        self.await_on_tcp(n);
        let mut bytes = [0u8; 64];
        // SAFETY: the buffer is ours.
        let n =
            unsafe { sys::recv(self.fd(), bytes.as_mut_ptr(), bytes.len(), libc::MSG_DONTWAIT) };
        bytes[..n.max(0) as usize].to_vec()
    }

    /// A send before the switch.
    fn send_over_tcp(&self, bytes: &[u8]) {
        assert!(self.conn.enter_kernel_send());
        assert_eq!(sys::write(self.fd(), bytes), bytes.len() as isize);
        self.conn.leave_kernel_send();
    }

    /// What a wait does before it sleeps for data.
    fn sleep(&self) {
        self.conn.cover(7, 0);
        // SAFETY: a control page of `pair`.
        match unsafe { self.conn.peer_waits().as_ref() } {
            Some(page) => page.sleep(7),
            None => assert!(self.conn.arm_data()),
        }
    }

    fn doorbells(&self) -> u64 {
        self.conn.tx.counts.doorbells.load(Relaxed)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.conn.identity.gen_.fetch_add(1, Release);
        table::get().expect("a table").free(self.index);
    }
}

/// Two ends that have attached each other's buffers, by stores or (`Kind::Ism`) at a distance.
fn pair(kind: Kind) -> [End; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let ends = [End::new(one), End::new(listener.accept().expect("a connection").0)];
    let dmbs: [*mut DmbHeader; 2] = [memory(LEN as usize), memory(LEN as usize)];
    let pages: [*mut Waits; 2] = [(); 2].map(|()| {
        let front = size_of::<announce::Announced>();
        memory::<u8>(front + size_of::<Waits>()).wrapping_add(front).cast()
    });
    let proof = memory::<u64>(8);
    // SAFETY: mapped above.
    unsafe { proof.write(PROOF) };
    for (at, end) in ends.iter().enumerate() {
        let bells = core::ptr::null();
        end.conn.expose(&Ends {
            my: dmbs[at],
            my_len: LEN,
            my_token: 0,
            my_waits: pages[at],
            bells,
            kind,
        });
    }
    for (at, end) in ends.iter().enumerate() {
        let place = Place { base: proof.addr() as u64, len: 8, proof: PROOF };
        let addr = dmbs[1 - at].addr() as u64;
        let buffer = match kind {
            Kind::Ism => Buffer::Far(Far {
                pid: sys::getpid() as i32,
                addr,
                len: LEN,
                place,
                words: memory::<u8>(WORDS),
            }),
            _ => Buffer::Mapped(dmbs[1 - at], pages[1 - at]),
        };
        let reached = Reached { kind, buffer, checked: false };
        end.conn.attach(reached, LEN, 0, false, Some(Releases::ours()));
    }
    ends.iter().for_each(|end| end.conn.commit());
    ends
}

/// The same, on their rings in both directions, with nothing in them.
fn pair_on_rings(kind: Kind) -> [End; 2] {
    let ends = pair(kind);
    for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        assert!(from.conn.try_switch_tx(from.fd()));
        assert_eq!(from.send(b"first"), Sent::Bytes(5));
        assert!(to.conn.settle_rx(to.fd()));
        assert_eq!(to.recv(), Ok(b"first".to_vec()));
    }
    ends
}

fn over_both(test: fn(Kind)) {
    [Kind::Loopback, Kind::Ism].into_iter().for_each(test);
}

#[test]
fn what_went_over_tcp_is_read_in_front_of_the_ring() {
    over_both(|kind| {
        let [a, b] = pair(kind);
        a.send_over_tcp(b"tcp ");
        assert!(!b.conn.settle_rx(b.fd()) && !a.conn.sends_on_ring());
        assert!(a.conn.try_switch_tx(a.fd()) && !a.conn.enter_kernel_send());
        assert_eq!(a.send(b"ring"), Sent::Bytes(4));
        assert!(b.conn.switch_due() && b.conn.settle_rx(b.fd()));
        b.await_on_tcp(4);
        assert_eq!(b.recv(), Ok(b"tcp ring".to_vec()), "{kind:?}");
        assert_eq!(b.recv(), Err(Got::Empty));
        assert!(
            !a.conn.receives_on_ring() && !b.conn.sends_on_ring(),
            "the other direction is where it was"
        );
    });
}

#[test]
fn a_switch_that_a_dead_thread_began_is_made() {
    over_both(|kind| {
        let [a, b] = pair(kind);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                core::mem::forget(a.conn.tx.state.try_lock());
                assert!(begin_send_switch(&a.conn.phase, &a.conn.tx.kernel));
                core::mem::forget(b.conn.rx.state.try_lock());
            });
        });
        // The kernel's word on the thread's end may come a little after the join.
        while !a.conn.try_switch_tx(a.fd()) {
            std::thread::yield_now();
        }
        assert_eq!(a.send(b"ring"), Sent::Bytes(4));
        assert!(b.conn.settle_rx(b.fd()));
        assert_eq!(b.recv(), Ok(b"ring".to_vec()), "{kind:?}");
    });
}

#[test]
fn threads_inside_the_kernel_keep_their_direction_on_tcp() {
    over_both(|kind| {
        let [a, b] = pair(kind);
        assert!(a.conn.enter_kernel_send());
        assert!(!a.conn.try_switch_tx(a.fd()), "its bytes would lie behind the offset");
        assert_eq!(sys::write(a.fd(), b"tcp"), 3);
        a.conn.leave_kernel_send();
        assert!(b.conn.enter_kernel_recv());
        assert!(a.conn.try_switch_tx(a.fd()));
        assert_eq!(a.send(b"ring"), Sent::Bytes(4));
        assert!(b.conn.switch_due() && !b.conn.settle_rx(b.fd()), "it cuts the stream itself");
        assert_eq!(b.raw_recv(4), b"tcp\0", "{kind:?}");
        assert_eq!(b.conn.leave_kernel_recv(b.fd(), 4, false), 3, "a doorbell is no payload");
        assert!(b.conn.receives_on_ring());
        assert_eq!(b.recv(), Ok(b"ring".to_vec()));
    });
}

#[test]
fn a_sleep_costs_one_doorbell() {
    over_both(|kind| {
        let [a, b] = pair_on_rings(kind);
        for _ in 0..3 {
            let before = a.doorbells();
            assert_eq!(a.send(b"awake"), Sent::Bytes(5));
            assert_eq!(a.doorbells(), before, "{kind:?}: nobody sleeps");
            assert_eq!(b.recv(), Ok(b"awake".to_vec()));
            b.sleep();
            assert_eq!((a.send(b"on"), a.send(b"ce")), (Sent::Bytes(2), Sent::Bytes(2)));
            assert_eq!(a.doorbells(), before + 1, "{kind:?}");
            assert_eq!(b.recv(), Ok(b"once".to_vec()));
        }
        let due = b.conn.doorbells_due() as usize;
        assert_eq!(b.raw_recv(due).len(), due);
    });
}

#[test]
fn a_full_ring_takes_what_its_reader_has_freed() {
    over_both(|kind| {
        let [a, b] = pair_on_rings(kind);
        let most = (LEN - HEADER_LEN) as usize;
        assert_eq!(a.send(&vec![1; 2 * most]), Sent::Bytes(most), "{kind:?}");
        assert_eq!(a.send(b"more"), Sent::Full);
        assert!(!a.conn.has_space());
        assert_eq!(b.recv(), Ok(vec![1; 64]));
        let mut read = 64;
        while let Ok(bytes) = b.recv() {
            read += bytes.len();
        }
        assert_eq!((read, a.conn.has_space()), (most, true));
        assert_eq!(a.send(b"more"), Sent::Bytes(4));
        assert_eq!(b.recv(), Ok(b"more".to_vec()));
    });
}

#[test]
fn what_lies_unread_in_a_ring_that_is_recalled_comes_over_tcp() {
    over_both(|kind| {
        let [a, b] = pair_on_rings(kind);
        b.sleep();
        assert_eq!(a.send(b"unread"), Sent::Bytes(6));
        assert!(b.conn.go_back(b.fd(), crate::reason::STDIO.code(), true), "{kind:?}");
        assert!(b.conn.sends_are_back() && b.conn.phase().receives_are_back());
        // The peer learns of it with its next call.
        assert_eq!(a.conn.flush_takeback(a.fd()), Flushed::All);
        assert_eq!(a.send(b"next"), Sent::Kernel);
        assert!(a.conn.sends_are_back());
        a.send_over_tcp(b", next");
        assert_eq!(b.raw_recv(12), b"unread, next", "{kind:?}: no doorbell in it, nothing missing");
        assert_eq!(a.recv(), Err(Got::Kernel), "its peer does not send on the ring any more");
    });
}

#[test]
fn an_end_is_seen_behind_the_last_bytes() {
    over_both(|kind| {
        let [a, b] = pair_on_rings(kind);
        assert_eq!(a.send(b"last"), Sent::Bytes(4));
        a.conn.shutdown(a.fd(), libc::SHUT_WR);
        sys::shutdown(a.fd(), libc::SHUT_WR);
        assert_eq!(a.send(b"late"), Sent::Kernel, "which says EPIPE");
        assert_eq!((b.recv(), b.recv()), (Ok(b"last".to_vec()), Err(Got::Eof)), "{kind:?}");
        assert_eq!(b.send(b"answer"), Sent::Bytes(6));
        assert_eq!(a.recv(), Ok(b"answer".to_vec()));
        assert_eq!(b.recv(), Err(Got::Eof));
    });
}

#[test]
fn a_close_over_unread_bytes_is_a_reset() {
    over_both(|kind| {
        let [a, b] = pair_on_rings(kind);
        assert_eq!(b.send(b"unread"), Sent::Bytes(6));
        a.conn.close(a.fd());
        assert!(b.conn.peer_gone());
        assert_eq!(b.send(b"more"), Sent::Kernel, "which says how it ended");
        assert!(matches!(b.recv(), Err(Got::Err(e)) if e.errno() == libc::ECONNRESET), "{kind:?}");
        assert_eq!(b.recv(), Err(Got::Eof), "a reset is told once");
    });
}

/// What the kernel says to a send that is left to it.
fn sent_by_kernel(end: &End) -> std::io::Error {
    use std::io::Write;
    (&end.socket).write(b"x").expect_err("nobody would read it")
}

#[test]
fn a_reset_is_told_once_by_whichever_call() {
    over_both(|kind| {
        let reset = Sent::Err(SendError::Reset);
        // Sends and then receives, or the other way round, or is asked for the error.
        for way in 0..3 {
            let [a, b] = pair_on_rings(kind);
            assert!(a.conn.break_for(a.fd(), crate::reason::SYSTEM, true));
            assert!(!a.conn.break_for(a.fd(), crate::reason::SYSTEM, true), "it is broken");
            for end in [&a, &b] {
                match way {
                    0 => {
                        assert_eq!(end.send(b"x"), reset, "{kind:?}");
                        end.conn.tells(SendError::Reset);
                    }
                    1 => assert_eq!(end.recv(), Err(Got::Err(RecvError::Reset)), "{kind:?}"),
                    _ => assert_eq!(end.conn.error_heard(0), libc::ECONNRESET, "{kind:?}"),
                }
                assert_eq!(end.conn.error_heard(libc::ECONNRESET), 0, "{kind:?}");
                assert_eq!((end.recv(), end.send(b"x")), (Err(Got::Eof), Sent::Kernel), "{kind:?}");
                assert_eq!(sent_by_kernel(end).kind(), std::io::ErrorKind::BrokenPipe);
            }
        }
    });
}

#[test]
fn a_connection_that_is_dissolved_is_reset_at_its_peer() {
    over_both(|kind| {
        let [a, b] = pair_on_rings(kind);
        a.conn.dissolves();
        sys::connect(a.fd(), &[0u8; 16]);
        assert_eq!(b.send(b"x"), Sent::Kernel, "{kind:?}");
        assert_eq!(sent_by_kernel(&b).kind(), std::io::ErrorKind::ConnectionReset, "{kind:?}");
    });
}

#[test]
fn doorbells_that_a_dead_peer_leaves_are_no_reset_behind_a_shutdown() {
    over_both(|kind| {
        let [a, b] = pair_on_rings(kind);
        a.conn.shutdown(a.fd(), libc::SHUT_WR);
        sys::shutdown(a.fd(), libc::SHUT_WR);
        assert_eq!(a.conn.error_heard(libc::ECONNRESET), 0, "{kind:?}");
        b.conn.shutdown(b.fd(), libc::SHUT_RDWR);
        assert_eq!(b.conn.error_heard(libc::ECONNRESET), libc::ECONNRESET, "of what a sends");
    });
}

#[test]
fn a_source_that_fails_is_not_the_device() {
    over_both(|kind| {
        let [a, _b] = pair_on_rings(kind);
        // Out of reach since just now: it may come back.
        a.conn.window().far_lost.store(sys::coarse_ns(), Relaxed);
        let failed = a.conn.send_from(a.fd(), 10, |_, _| Err(libc::EIO));
        assert_eq!(failed, Sent::Err(SendError::Source(libc::EIO)), "{kind:?}");
        assert_eq!(SendError::Reset.errno(), libc::ECONNRESET);
    });
}

#[test]
fn an_impossible_cursor_ends_its_connection_alone() {
    over_both(|kind| {
        let ([_a, b], [c, d]) = (pair_on_rings(kind), pair_on_rings(kind));
        b.conn.my().prod.store(u64::from(u32::MAX) << 16, Relaxed);
        assert_eq!(b.recv(), Err(Got::Err(RecvError::Reset)), "{kind:?}");
        assert_eq!(b.send(b"on"), Sent::Err(SendError::Reset));
        assert_eq!(b.conn.reason(), crate::reason::VIOLATION);
        assert_eq!((c.send(b"on"), d.recv()), (Sent::Bytes(2), Ok(b"on".to_vec())));
    });
}

/// What the short ways make of it.
impl End {
    fn send_at_once(&self, bytes: &[u8]) -> Option<usize> {
        // SAFETY: readable bytes.
        unsafe { self.conn.send_at_once(self.fd(), bytes.as_ptr(), bytes.len()) }
    }

    fn recv_at_once(&self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        // SAFETY: writable bytes.
        let n = unsafe { self.conn.recv_at_once(self.fd(), bytes.as_mut_ptr(), len) }?;
        bytes.truncate(n);
        Some(bytes)
    }
}

#[test]
fn short_and_long_ways_take_turns_on_one_stream() {
    let [a, b] = pair_on_rings(Kind::Loopback);
    a.conn.look_now_and_then(a.fd(), sys::ticks());
    assert_eq!(b.recv_at_once(9), None, "it is empty");
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    // Several times around the ring, with messages that do not divide it.
    for round in 0..2000u32 {
        let message: Vec<u8> = (0..round % 37 + 1).map(|i| (round + i) as u8).collect();
        if round % 3 == 0 || a.send_at_once(&message).is_none() {
            assert_eq!(a.send(&message), Sent::Bytes(message.len()));
        }
        sent.extend(message);
        if round % 2 == 0 {
            got.extend(b.recv_at_once(50).expect("bytes"));
            got.extend(b.recv().unwrap_or_default());
        }
    }
    while let Ok(rest) = b.recv() {
        got.extend(rest);
    }
    assert_eq!(got, sent);
    let counts = |counts: &crate::stats::Counts| counts.bytes.load(Relaxed);
    assert_eq!(counts(&a.conn.tx.counts), counts(&b.conn.rx.counts));
}

#[test]
fn a_short_way_leaves_what_is_not_usual() {
    let [a, b] = pair_on_rings(Kind::Loopback);
    a.conn.look_now_and_then(a.fd(), sys::ticks());
    assert_eq!(a.send_at_once(&[]), None);
    assert_eq!(a.send_at_once(&vec![7; LEN as usize]), None, "it does not fit");
    assert_eq!(a.send(b"there"), Sent::Bytes(5));
    // The owner takes its ring back.
    b.conn.my().prod.fetch_or(REVOKED, SeqCst);
    assert_eq!(a.send_at_once(b"more"), None);
    assert_eq!(b.recv_at_once(9), None, "what follows may come over TCP");
    assert_eq!(b.recv_at_once(5), None);
    let [a, b] = pair_on_rings(Kind::Loopback);
    a.conn.look_now_and_then(a.fd(), sys::ticks());
    // The peer is gone.
    a.conn.my().cons.fetch_or(CLOSED, SeqCst);
    assert_eq!(a.send_at_once(b"more"), None);
    // A word that no peer would write ends nothing here; the long way does that.
    b.conn.my().prod.store(u64::from(LEN) << 17, SeqCst);
    assert_eq!(b.recv_at_once(9), None);
    assert!(!b.conn.phase().is_broken());
    let far = pair_on_rings(Kind::Ism);
    assert_eq!(far[0].send_at_once(b"more"), None);
    assert_eq!(far[0].send(b"more"), Sent::Bytes(4));
    assert_eq!(far[1].recv_at_once(9), None);
    assert_eq!(far[1].recv(), Ok(b"more".to_vec()));
}

#[test]
fn who_sleeps_is_rung_by_a_short_way_too() {
    let [a, b] = pair_on_rings(Kind::Loopback);
    a.conn.look_now_and_then(a.fd(), sys::ticks());
    assert!(b.conn.arm_data());
    let before = a.doorbells();
    assert_eq!(a.send_at_once(b"one"), Some(3));
    assert_eq!(a.send_at_once(b"two"), Some(3));
    assert_eq!(a.doorbells(), before + 1);
    assert_eq!(b.recv_at_once(9), Some(b"onetwo".to_vec()));
}

/// Another thread of this end is in the middle of the switch: the peer is told of the end of the stream
/// all the same.
#[test]
fn a_shutdown_beside_a_switch_is_told() {
    static END: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    over_both(|kind| {
        let [a, b] = pair(kind);
        END[0].store(core::ptr::from_ref(a.conn).expose_provenance(), SeqCst);
        END[1].store(a.fd() as usize, SeqCst);
        let switched = a.conn.switch_tx(a.fd(), |_| {
            std::thread::spawn(|| {
                let conn = core::ptr::with_exposed_provenance::<Conn>(END[0].load(SeqCst));
                // SAFETY: a slot of the table.
                unsafe { &*conn }.shutdown(END[1].load(SeqCst) as i32, libc::SHUT_WR);
                END[1].store(usize::MAX, SeqCst);
            });
            // Long enough for one that does not wait.
            std::thread::sleep(std::time::Duration::from_millis(100));
            true
        });
        while END[1].load(SeqCst) != usize::MAX {
            std::thread::yield_now();
        }
        assert!(switched && a.conn.sends_on_ring() && a.conn.phase().has(p::SHUT_WR));
        assert_ne!(b.conn.my().cons.load(SeqCst) & DONE, 0, "{kind:?}");
        assert_eq!(a.send(b"more"), Sent::Kernel);
    });
}

/// A thread that has looked its number up before another one closed it.
#[test]
fn a_closed_connection_uses_no_buffer() {
    over_both(|kind| {
        let [a, b] = pair_on_rings(kind);
        assert_eq!(b.send(b"unread"), Sent::Bytes(6));
        a.conn.set(p::CLOSED);
        assert_eq!(a.send(b"late"), Sent::Err(SendError::Device(libc::EBADF)));
        assert_eq!(a.recv(), Err(Got::Err(RecvError::Kernel(libc::EBADF))));
        assert_eq!(b.recv(), Err(Got::Empty), "{kind:?}");
    });
}
