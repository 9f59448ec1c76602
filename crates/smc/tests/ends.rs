//! How connections end: whatever either side does, both see what they would have seen on TCP.

mod common;

use std::fmt::Write as _;
use std::time::Duration;

use common::{End, bytes, raw_recv, raw_send, serial, tcp, upgrade};
use proptest::prelude::*;
use smc::conn::phase as p;
use smc::sys;

/// One end of a connection, plain or upgraded.
trait Side {
    fn fd(&self) -> i32;
    fn recv(&self, buf: &mut [u8], flags: i32) -> Result<usize, i32>;
    fn send(&self, data: &[u8]) -> Result<usize, i32>;
    fn poll(&self) -> i16;
    fn shutdown(&self, how: i32) -> isize;
    fn close(self: Box<Self>);
}

const EVENTS: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;

struct Plain(i32);

impl Side for Plain {
    fn fd(&self) -> i32 {
        self.0
    }
    fn recv(&self, buf: &mut [u8], flags: i32) -> Result<usize, i32> {
        raw_recv(self.0, buf, flags)
    }
    fn send(&self, data: &[u8]) -> Result<usize, i32> {
        raw_send(self.0, data)
    }
    fn poll(&self) -> i16 {
        sys::poll_now(self.0, EVENTS)
    }
    fn shutdown(&self, how: i32) -> isize {
        sys::shutdown(self.0, how)
    }
    fn close(self: Box<Self>) {
        sys::close(self.0);
    }
}

impl Side for End {
    fn fd(&self) -> i32 {
        self.fd
    }
    fn recv(&self, buf: &mut [u8], flags: i32) -> Result<usize, i32> {
        let got = End::recv(self, buf, flags)?;
        // A receive may stop at the switch: what TCP gives at once then takes two.
        if flags == 0 && got > 0 && got < buf.len() && self.conn.switched() && self.conn.unread(self.fd) > 0 {
            return Ok(got + End::recv(self, &mut buf[got..], 0)?);
        }
        Ok(got)
    }
    fn send(&self, data: &[u8]) -> Result<usize, i32> {
        End::send(self, data)
    }
    fn poll(&self) -> i16 {
        End::poll(self, EVENTS)
    }
    fn shutdown(&self, how: i32) -> isize {
        End::shutdown(self, how)
    }
    fn close(self: Box<Self>) {
        End::close(*self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Send(usize),
    Recv(usize),
    Peek(usize),
    Poll,
    /// Fetches SO_ERROR.
    Error,
    Shut(i32),
    Linger0,
    Close,
    /// The process is killed: for the kernel that is a close.
    Crash,
}
use Op::*;

/// Which directions have left TCP: server to client, client to server.
#[derive(Clone, Copy, Debug)]
struct Switched(bool, bool);

type Script = [(bool, Op)];

/// A script and what it shows at each step, on a plain or on an upgraded connection that has `pre` unread bytes in each
/// direction.
fn run(script: &Script, pre: [usize; 2], switched: Option<Switched>, pause: Duration) -> Vec<String> {
    let (server, client) = tcp(false);
    for fd in [server, client] {
        sys::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as usize);
    }
    let mut sent = pre.map(|n| n as u64);
    for (i, fd) in [server, client].into_iter().enumerate() {
        assert_eq!(raw_send(fd, &bytes(i as u8, 0, pre[i])), Ok(pre[i]));
    }
    let mut ends: [Option<Box<dyn Side>>; 2] = match switched {
        None => [Some(Box::new(Plain(server))), Some(Box::new(Plain(client)))],
        Some(which) => {
            let (server, client) = (End::new(server), End::new(client));
            for (end, on) in [(&server, which.0), (&client, which.1)] {
                // As a thread would that stays inside a send.
                assert!(on || end.conn.enter_kernel_send());
            }
            for _ in 0..10 {
                server.step();
                client.step();
            }
            assert!(server.has(p::TX_RING) == which.0 && client.has(p::TX_RING) == which.1);
            server.settle();
            client.settle();
            [Some(Box::new(server)), Some(Box::new(client))]
        }
    };
    let mut at = [0u64; 2];
    let mut log = Vec::new();
    for &(which, op) in script {
        let i = usize::from(which);
        let Some(end) = &ends[i] else { continue };
        let mut line = format!("{} {op:?}: ", ["server", "client"][i]);
        match op {
            Send(n) => {
                let r = end.send(&bytes(i as u8, sent[i], n));
                sent[i] += r.unwrap_or(0) as u64;
                let _ = write!(line, "{r:?}");
            }
            Recv(n) | Peek(n) => {
                let mut buf = vec![0; n];
                let flags = if op == Peek(n) { libc::MSG_PEEK } else { 0 };
                let r = end.recv(&mut buf, flags);
                let got = r.unwrap_or(0);
                assert!(buf[..got] == bytes(1 - i as u8, at[i], got), "wrong bytes");
                if op == Recv(n) {
                    at[i] += got as u64;
                }
                let _ = write!(line, "{:?}", if op == Peek(n) { r.map(|n| n.min(1)) } else { r });
            }
            Poll => {
                let _ = write!(line, "{:#x}", end.poll());
            }
            Error => {
                let mut e = 0i32;
                sys::getsockopt(end.fd(), libc::SOL_SOCKET, libc::SO_ERROR, &mut e);
                let _ = write!(line, "{e}");
            }
            Shut(how) => {
                let _ = write!(line, "{}", end.shutdown(how));
            }
            Linger0 => {
                sys::setsockopt(end.fd(), libc::SOL_SOCKET, libc::SO_LINGER, &[1i32, 0]);
            }
            Close => ends[i].take().expect("open").close(),
            Crash => match switched {
                None => ends[i].take().expect("open").close(),
                Some(_) => {
                    // SAFETY: with `switched`, every side is an End.
                    let end = unsafe { Box::from_raw(Box::into_raw(ends[i].take().expect("open")).cast::<End>()) };
                    end.crash();
                }
            },
        }
        log.push(line);
        std::thread::sleep(pause);
    }
    log
}

/// The same script on TCP and upgraded; the kernel gets time to deliver what it delivers if there seems to be a
/// difference.
fn compare(script: &Script, pre: [usize; 2], which: Switched) -> Result<(), String> {
    let mut said = String::new();
    for pause in [0, 200, 5000].map(Duration::from_micros) {
        let (want, got) = (run(script, pre, None, pause), run(script, pre, Some(which), pause));
        if want == got {
            return Ok(());
        }
        said = format!("unread before: {pre:?}, on rings: {which:?}\n");
        for (want, got) in want.iter().zip(&got) {
            let _ = writeln!(said, "  {got}{}", if want == got { String::new() } else { format!("   <-- TCP: {want}") });
        }
    }
    Err(said)
}

const BOTH: Switched = Switched(true, true);
const SERVER: bool = false;
const CLIENT: bool = true;

/// Runs a script as seen from either role.
fn like_tcp(script: &Script) {
    let _serial = serial();
    let mirrored: Vec<_> = script.iter().map(|(who, op)| (!who, *op)).collect();
    let mut failed = String::new();
    for script in [script, &mirrored[..]] {
        for which in [BOTH, Switched(true, false), Switched(false, true)] {
            for pre in [[0, 0], [100, 0], [0, 100]] {
                failed += &compare(script, pre, which).err().unwrap_or_default();
            }
        }
    }
    assert!(failed.is_empty(), "\n{failed}");
}

#[test]
fn half_close_then_data_then_the_end() {
    like_tcp(&[
        (SERVER, Send(1000)), (SERVER, Shut(libc::SHUT_WR)), (CLIENT, Poll), (CLIENT, Recv(400)), (CLIENT, Poll),
        (CLIENT, Recv(5000)), (CLIENT, Recv(10)), (CLIENT, Poll), (CLIENT, Send(500)), (SERVER, Poll), (SERVER, Send(1)),
        (SERVER, Recv(5000)), (CLIENT, Shut(libc::SHUT_WR)), (SERVER, Poll), (SERVER, Recv(10)), (SERVER, Recv(10)),
        (CLIENT, Poll), (SERVER, Close), (CLIENT, Poll), (CLIENT, Recv(1)), (CLIENT, Error),
    ]);
}

#[test]
fn close_with_everything_read() {
    like_tcp(&[
        (CLIENT, Send(300)), (SERVER, Recv(5000)), (SERVER, Send(700)), (SERVER, Close), (CLIENT, Poll), (CLIENT, Peek(10)),
        (CLIENT, Recv(200)), (CLIENT, Recv(5000)), (CLIENT, Recv(1)), (CLIENT, Poll), (CLIENT, Error), (CLIENT, Recv(1)),
    ]);
}

#[test]
fn close_with_unread_data() {
    like_tcp(&[
        (CLIENT, Send(300)), (SERVER, Recv(30)), (SERVER, Send(700)), (SERVER, Close), (CLIENT, Poll), (CLIENT, Recv(200)),
        (CLIENT, Recv(5000)), (CLIENT, Recv(1)), (CLIENT, Recv(1)), (CLIENT, Poll), (CLIENT, Send(1)), (CLIENT, Error),
    ]);
}

#[test]
fn an_error_is_fetched_once() {
    like_tcp(&[(CLIENT, Send(300)), (SERVER, Close), (CLIENT, Error), (CLIENT, Error), (CLIENT, Recv(1)), (CLIENT, Poll), (CLIENT, Send(1))]);
    like_tcp(&[(CLIENT, Send(300)), (SERVER, Close), (CLIENT, Send(1)), (CLIENT, Recv(1)), (CLIENT, Error), (CLIENT, Send(1))]);
}

#[test]
fn linger_zero() {
    like_tcp(&[
        (SERVER, Send(50)), (SERVER, Linger0), (SERVER, Close), (CLIENT, Poll), (CLIENT, Recv(500)), (CLIENT, Recv(1)),
        (CLIENT, Recv(1)), (CLIENT, Poll),
    ]);
    like_tcp(&[(SERVER, Shut(libc::SHUT_WR)), (SERVER, Linger0), (SERVER, Close), (CLIENT, Poll), (CLIENT, Recv(500)), (CLIENT, Error)]);
}

#[test]
fn sends_to_a_peer_that_closed() {
    like_tcp(&[
        (SERVER, Close), (CLIENT, Poll), (CLIENT, Send(10)), (CLIENT, Poll), (CLIENT, Send(10)), (CLIENT, Poll), (CLIENT, Recv(10)),
        (CLIENT, Error), (CLIENT, Send(1)),
    ]);
    like_tcp(&[(SERVER, Send(40)), (SERVER, Close), (CLIENT, Send(10)), (CLIENT, Recv(500)), (CLIENT, Recv(1)), (CLIENT, Send(1))]);
}

#[test]
fn shutdown_of_receives_and_of_both() {
    like_tcp(&[(SERVER, Shut(libc::SHUT_RD)), (SERVER, Poll), (SERVER, Recv(500)), (SERVER, Recv(1)), (SERVER, Send(5)), (CLIENT, Recv(500)), (SERVER, Close), (CLIENT, Poll)]);
    like_tcp(&[(SERVER, Send(5)), (SERVER, Shut(libc::SHUT_RDWR)), (SERVER, Poll), (SERVER, Recv(500)), (SERVER, Recv(1)), (SERVER, Send(5)), (CLIENT, Poll), (CLIENT, Recv(500)), (CLIENT, Recv(1)), (CLIENT, Close), (SERVER, Poll)]);
}

#[test]
fn both_close() {
    like_tcp(&[(SERVER, Shut(libc::SHUT_WR)), (CLIENT, Shut(libc::SHUT_WR)), (SERVER, Poll), (CLIENT, Poll), (SERVER, Recv(500)), (CLIENT, Recv(500)), (SERVER, Close), (CLIENT, Poll), (CLIENT, Recv(1)), (CLIENT, Close)]);
}

#[test]
fn killed() {
    like_tcp(&[(SERVER, Send(100)), (SERVER, Recv(500)), (SERVER, Crash), (CLIENT, Poll), (CLIENT, Recv(30)), (CLIENT, Recv(500)), (CLIENT, Recv(1)), (CLIENT, Poll)]);
    like_tcp(&[(CLIENT, Send(100)), (SERVER, Send(100)), (SERVER, Crash), (CLIENT, Poll), (CLIENT, Recv(500)), (CLIENT, Recv(1)), (CLIENT, Recv(1)), (CLIENT, Send(1))]);
    like_tcp(&[(SERVER, Recv(500)), (SERVER, Crash), (CLIENT, Recv(500)), (CLIENT, Send(10)), (CLIENT, Send(10)), (CLIENT, Poll)]);
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..3000usize).prop_map(Send),
        5 => (1..5000usize).prop_map(Recv),
        1 => (1..5000usize).prop_map(Peek),
        5 => Just(Poll),
        1 => Just(Error),
        2 => (0..3i32).prop_map(Shut),
        1 => Just(Linger0),
        2 => Just(Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_script_is_like_tcp(
        script in prop::collection::vec((any::<bool>(), op()), 1..16), a in 0..200usize, b in 0..200usize, which in 0..3,
    ) {
        let _serial = serial();
        let which = [BOTH, Switched(true, false), Switched(false, true)][which as usize];
        if let Err(said) = compare(&script, [a, b], which) {
            return Err(TestCaseError::fail(said));
        }
    }
}
