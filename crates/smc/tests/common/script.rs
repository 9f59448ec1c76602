//! Scripts of calls that are run on plain TCP and on an upgraded connection, to see whether an
//! application could tell the two apart.
#![allow(unsafe_code)]

use std::fmt::Write as _;
use std::time::Duration;

use smc::sys;

use super::{End, bytes, raw_recv, raw_send, serial, tcp};

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
        if flags == 0
            && got > 0
            && got < buf.len()
            && self.conn.switched()
            && self.conn.unread(self.fd) > 0
        {
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
pub enum Op {
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
pub struct Switched(pub bool, pub bool);

pub type Script = [(bool, Op)];

/// A script and what it shows at each step, on a plain or on an upgraded connection that has `pre`
/// unread bytes in each direction.
fn run(
    script: &Script,
    pre: [usize; 2],
    switched: Option<Switched>,
    pause: Duration,
) -> Vec<String> {
    let (server, client) = tcp(false);
    for fd in [server, client] {
        sys::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as usize);
        // Nagle's waits are no part of the comparison.
        sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32);
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
            assert!(
                server.conn.sends_on_ring() == which.0 && client.conn.sends_on_ring() == which.1,
                "server {} client {}",
                server.describe(),
                client.describe()
            );
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
                    let end = unsafe {
                        Box::from_raw(Box::into_raw(ends[i].take().expect("open")).cast::<End>())
                    };
                    end.crash();
                }
            },
        }
        log.push(line);
        std::thread::sleep(pause);
    }
    log
}

/// The same script on TCP and upgraded; the kernel gets time to deliver what it delivers if there
/// seems to be a difference.
pub fn compare(script: &Script, pre: [usize; 2], which: Switched) -> Result<(), String> {
    let mut said = String::new();
    for pause in [0, 200, 5000, 100_000].map(Duration::from_micros) {
        let (want, got) = (run(script, pre, None, pause), run(script, pre, Some(which), pause));
        if want == got {
            return Ok(());
        }
        said = format!("unread before: {pre:?}, on rings: {which:?}\n");
        for (want, got) in want.iter().zip(&got) {
            let _ = writeln!(
                said,
                "  {got}{}",
                if want == got { String::new() } else { format!("   <-- TCP: {want}") }
            );
        }
    }
    Err(said)
}

pub const BOTH: Switched = Switched(true, true);
pub const SERVER: bool = false;
pub const CLIENT: bool = true;

/// Runs a script as seen from either role.
pub fn like_tcp(script: &Script) {
    like_tcp_if(script, |_, _| true);
}

/// As `like_tcp`, where the sends of the server and of the client are on rings as `when` says.
pub fn like_tcp_if(script: &Script, when: impl Fn(bool, bool) -> bool) {
    let _serial = serial();
    let mut failed = String::new();
    for which in
        [BOTH, Switched(true, false), Switched(false, true)].into_iter().filter(|s| when(s.0, s.1))
    {
        for pre in [[0, 0], [100, 0], [0, 100]] {
            failed += &compare(script, pre, which).err().unwrap_or_default();
            let mirrored: Vec<_> = script.iter().map(|(who, op)| (!who, *op)).collect();
            failed += &compare(&mirrored, [pre[1], pre[0]], Switched(which.1, which.0))
                .err()
                .unwrap_or_default();
        }
    }
    assert!(failed.is_empty(), "\n{failed}");
}
