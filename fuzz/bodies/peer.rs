//! What the targets of a whole peer do with their input: real loopback connections, a real
//! rendezvous, and at the other end whatever the input says. A second connection beside it must not
//! notice.
#![allow(unsafe_code)]

use std::cell::OnceCell;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::*};

use smc::clc::Message;
use smc::conn::{Conn, DmbHeader, HEADER_LEN, Pieces, RUNG_REVOKED, Waits};
use smc::reason::{self, Reason};
use smc::{config::CONFIG, group, sys};

#[path = "../../crates/smc/tests/common/end.rs"]
mod end;
#[path = "../../crates/smc/tests/common/raw.rs"]
mod raw;
use end::End;

fn raw_recv(fd: i32, buf: &mut [u8], flags: i32) -> Result<usize, i32> {
    // SAFETY: the buffer is live.
    let r = unsafe { sys::recv(fd, buf.as_mut_ptr(), buf.len(), flags | libc::MSG_DONTWAIT) };
    if r < 0 { Err(-r as i32) } else { Ok(r as usize) }
}

fn raw_send(fd: i32, data: &[u8]) -> Result<usize, i32> {
    // SAFETY: the data is live.
    let r = unsafe {
        sys::send(fd, data.as_ptr(), data.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if r < 0 { Err(-r as i32) } else { Ok(r as usize) }
}

/// The end with the lower address first. Each connection has an address of its own: ports of the
/// same one would run out.
fn tcp() -> (i32, i32) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Relaxed) % 0xff_0000 + std::process::id() % 251;
    let listener = TcpListener::bind((Ipv4Addr::from(0x7f01_0000 + n), 0)).expect("a listener");
    let one =
        TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    let (other, _) = listener.accept().expect("its other end");
    let (one, other) = (one.into_raw_fd(), other.into_raw_fd());
    let [local, peer] = smc::inet::names(one).expect("both names");
    if local.key() < peer.key() { (one, other) } else { (other, one) }
}

fn rings() -> (End, End) {
    CONFIG.dmb_size.store(64 << 10, Relaxed);
    CONFIG.after.store(0, Relaxed);
    let (server, client) = tcp();
    let (server, client) = (End::new(server), End::new(client));
    for _ in 0..20 {
        server.step();
        client.step();
    }
    assert!(server.settle() && client.settle(), "{} {}", server.describe(), client.describe());
    (server, client)
}

/// An honest connection that lives as long as the process.
fn neighbours_talk() {
    smc::setting::set(b"PREFER", b"loopback");
    thread_local!(static NEAR: OnceCell<(End, End)> = const { OnceCell::new() });
    NEAR.with(|near| {
        let (a, b) = near.get_or_init(rings);
        for (from, to) in [(a, b), (b, a)] {
            let (sent, mut got) = ([0x5a; 3000], [0; 3000]);
            assert_eq!(from.send(&sent), Ok(sent.len()));
            assert_eq!(to.recv(&mut got, 0), Ok(sent.len()));
            assert!(got == sent);
        }
    });
}

fn recv(end: &End, buf: &mut [u8], flags: i32) {
    let iov = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() }];
    if let smc::conn::Got::Bytes(n) = end.conn.recv(end.fd, &mut Pieces::new(&iov), flags) {
        assert!(n <= buf.len());
    }
}

/// Every call there is; the results don't matter.
fn use_it(end: &End) {
    let (c, fd): (&Conn, i32) = (end.conn, end.fd);
    let mut buf = [0; 9000];
    for flags in [libc::MSG_PEEK, libc::MSG_TRUNC, 0] {
        recv(end, &mut buf, flags);
    }
    let _ = end.send(&[1; 5000]);
    let _ = c.arm_data();
    c.arm_space();
    c.cover(3, 0);
    c.drain_doorbells(fd, c.doorbells_seen());
    let _ = (c.ready(fd), c.unread(fd), c.unsent(), c.has_news(), c.read_stamp(), c.space_epoch());
    let _ = (
        c.doorbells_due(),
        c.peer_elsewhere(),
        c.peer_gone(),
        c.dmb_is_quiet(),
        c.space_is_silent(),
    );
    let _ = (c.flush_takeback(fd), c.clear_stale(fd, c.doorbells_seen(), true, false));
    c.check_stray(fd);
    end.poll(libc::POLLIN | libc::POLLOUT);
}

/// Steps of 10 bytes: what, where, value. The peer writes any word that it shares with us, between
/// any of our calls.
pub fn control_page(bytes: &[u8]) {
    neighbours_talk();
    CONFIG.copy.store(bytes.first().is_some_and(|b| b & 0x80 != 0), Relaxed);
    let over_ism = bytes.first().is_some_and(|b| b & 0x40 != 0);
    smc::setting::set(b"PREFER", if over_ism { b"ism" } else { b"loopback" });
    let (victim, other) = rings();
    // SAFETY: an exposed buffer, which stays mapped; all atomics.
    let header: &DmbHeader = unsafe { &*victim.conn.my_header() };
    let page = group::own_page(victim.conn.kind(), victim.conn.identity.my_token.load(Relaxed));
    // SAFETY: the control page of that buffer's arena; null only where peers have none.
    let page: Option<&Waits> = unsafe { page.as_ref() };
    assert_eq!(page.is_none(), over_ism);
    let mut buf = [0; 9000];
    for step in bytes.chunks_exact(10).take(40) {
        let at = usize::from(step[1]);
        let value = u64::from_le_bytes(step[2..].try_into().unwrap());
        let n = value as usize % buf.len();
        match step[0] % 16 {
            0..=5 => match at % 10 {
                0 => header.kind.store(value, SeqCst),
                1 => header.prod.store(value, SeqCst),
                2 => header.cons.store(value, SeqCst),
                3 => header.switch.store(value, SeqCst),
                4 => header.takeback.store(value, SeqCst),
                5 => header.rx_arm.store(value as u32, SeqCst),
                6 => header.tx_arm.store(value as u32, SeqCst),
                7 => header.cover.store(value as u32, SeqCst),
                8 => header.cpu.store(value as u32, SeqCst),
                _ => header.rung.store(value as u32, SeqCst),
            },
            // Next to what is there now: the values that look most like honest ones.
            6 => _ = header.prod.fetch_add(value % 0x1_0000_0000, SeqCst),
            7 => _ = header.cons.fetch_add(value % 0x1_0000_0000, SeqCst),
            8 => match page {
                Some(page) => {
                    page.armed[at].store(value as u32, SeqCst);
                    page.rung[at].store((value >> 32) as u32, SeqCst);
                }
                None => header.kin.store(value as u32, SeqCst),
            },
            9 => {
                // SAFETY: the ring behind the header, written as its peer would.
                unsafe {
                    (&raw const *header)
                        .cast_mut()
                        .cast::<u8>()
                        .add(HEADER_LEN as usize + n)
                        .write(step[9])
                };
            }
            10 => _ = victim.send(&buf[..n]),
            11 => recv(&victim, &mut buf[..n], if at & 1 == 0 { 0 } else { libc::MSG_PEEK }),
            12 => _ = raw_send(other.fd, &buf[..n.min(500)]),
            13 => _ = other.send(&buf[..n]),
            14 => use_it(&victim),
            _ => {
                // Doorbells that were counted and never sent cost a second of waiting; not here.
                let rung = header.rung.load(Relaxed) & RUNG_REVOKED;
                header
                    .rung
                    .store(rung | victim.conn.rx.snapshot().drained & !RUNG_REVOKED, Relaxed);
                match at % 3 {
                    0 => {
                        _ = victim.conn.go_back_or_break(
                            victim.fd,
                            reason::PASSED_FD.code(),
                            value & 1 != 0,
                        )
                    }
                    1 => _ = victim.shutdown(value as i32 % 3),
                    _ => _ = other.shutdown(value as i32 % 3),
                }
            }
        }
    }
    use_it(&victim);
    drop((victim, other));
    neighbours_talk();
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let (now, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        now.to_vec()
    }
}

/// Messages and memory of a stranger at the rendezvous of our end, which has either role: right
/// ones, changed ones and nonsense, in any order. Nothing of them is kept when the connection has
/// ended.
pub fn rendezvous(bytes: &[u8]) {
    neighbours_talk();
    CONFIG.copy.store(false, Relaxed);
    let mut input = Input(bytes);
    let role = input.byte();
    if role & 2 != 0 {
        raw::next_stranger();
    }
    let files = open_files();
    let (low, high) = tcp();
    // A stranger comes by the connection's name.
    smc::group::lanes::forget_peers();
    let (own, other) = if role & 1 == 0 { (low, high) } else { (high, low) };
    let victim = End::new(own);
    let listener = (role & 1 != 0).then(|| raw::listen(other));
    victim.step();
    let channel = match &listener {
        Some(listener) => Some(raw::accept(listener)),
        None => raw::connect(other),
    };
    let Some(channel) = channel else { panic!("nobody there: {}", victim.describe()) };
    let mut given: Vec<OwnedFd> = Vec::new();
    let mut token = 0;
    for _ in 0..4 {
        if input.0.is_empty() {
            break;
        }
        let (message, fds) = message(&mut input, other, token);
        let raw_fds: Vec<i32> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        raw::say(&channel, &message, &raw_fds);
        drop(fds);
        victim.step();
        victim.step();
        if let Some((answer, fd)) = raw::hear(channel.as_raw_fd(), false) {
            given.extend(fd);
            if let Ok(
                Message::Accept(smc::clc::Accept::SmcD(half))
                | Message::Confirm(smc::clc::Accept::SmcD(half)),
            ) = Message::decode(&answer)
            {
                token = half.token;
            }
        }
    }
    if victim.conn.is_exposed() {
        use_it(&victim);
    }
    drop((channel, listener));
    victim.step();
    drop((victim, given));
    sys::close(other);
    neighbours_talk();
    // Link groups without connections are kept for a while, each with at most one arena that its
    // peer has not got.
    assert!(
        open_files() <= files.max(BASE.load(Relaxed)) + 10,
        "descriptors of strangers are kept"
    );
    let _ = BASE.compare_exchange(0, files, Relaxed, Relaxed);
}

static BASE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Counted by the lowest free number: cheaper than /proc, and as good for a bound.
fn open_files() -> usize {
    // SAFETY: a literal path; the descriptor is closed again.
    unsafe {
        let fd = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
        libc::close(fd);
        fd as usize
    }
}

/// What the stranger says next, and the memory that it passes with it. `token` is that of our
/// buffer, if it has heard it.
fn message(input: &mut Input, other: i32, token: u64) -> (Vec<u8>, Vec<OwnedFd>) {
    let (kind, memory) = (input.byte(), input.byte());
    let mut half = raw::half();
    if kind & 0x10 != 0 {
        half.token = token;
    }
    if kind & 0x20 != 0 {
        raw::v2(&mut half).first_contact = None;
    }
    let good = match kind % 5 {
        0 => Some(Message::Proposal(raw::proposal(if kind & 0x40 != 0 { 0x07c1 } else { 0xffff }))),
        1 => Some(raw::accept_of(half)),
        2 => Some(raw::confirm_of(half)),
        3 => Some(raw::decline_of(Reason(u32::from(memory) << 24))),
        _ => None,
    };
    let mut said = match good {
        Some(good) => raw::write(&good, other),
        None => {
            let n = usize::from(input.byte()) * 4;
            input.bytes(n)
        }
    };
    for _ in 0..input.byte() % 8 {
        let at = usize::from(input.byte());
        if let Some(byte) = said.get_mut(at) {
            *byte ^= input.byte();
        }
    }
    if said.is_empty() {
        said.push(0);
    }
    let sealed = |slots| raw::memfd(raw::arena(slots), raw::SEALED);
    let fds = match memory % 8 {
        0 | 1 => vec![sealed(2)],
        2 => vec![],
        3 => vec![raw::memfd(raw::arena(2), 0)],
        4 => vec![sealed(1), sealed(2)],
        5 => vec![raw::memfd(u64::from(memory) * 4096, raw::SEALED)],
        6 => vec![raw::memfd(raw::arena(2), raw::SEALED | libc::F_SEAL_WRITE)],
        _ => vec![std::fs::File::open("/dev/null").expect("/dev/null").into()],
    };
    (said, fds)
}
