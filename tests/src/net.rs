//! Ports, and waiting for a server.
#![allow(unsafe_code)]

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::millis;
use crate::probe::is_without_ipv6;

/// Where a server's port lies decides which end of a connection has the lower address, and so which
/// role each end takes in the rendezvous: clients get theirs from the kernel's ephemeral range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    Low,
    High,
}

impl Ports {
    pub fn free(self) -> u16 {
        match self {
            Ports::Low => low_port(),
            Ports::High => high_port(),
        }
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

fn free(first: u32, count: u32) -> u16 {
    for _ in 0..count {
        let at = NEXT.fetch_add(1, Relaxed).wrapping_add(std::process::id().wrapping_mul(97));
        let port = (first + at % count) as u16;
        let any = TcpListener::bind(("::", port)).map_or_else(|e| is_without_ipv6(&e), |_| true);
        if any && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port in {first}..{}", first + count);
}

fn ephemeral() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|n| n.parse().ok());
    (numbers.next().unwrap_or(32768), numbers.next().unwrap_or(60999))
}

/// A free port below those that clients get.
fn low_port() -> u16 {
    let (first, _) = ephemeral();
    free(10_000.min(first - 1000), first.saturating_sub(10_000).max(1000))
}

/// A free port above those that clients get.
fn high_port() -> u16 {
    let (_, last) = ephemeral();
    if last > 65_000 { low_port() } else { free(last + 1, 65_535 - last) }
}

/// Whether anything listens on the port, from /proc: a trial connection would be one more for the
/// server.
pub(crate) fn listening(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&wanted))
                && fields.nth(1) == Some("0A")
        })
    })
}

/// A number of struct tcp_info.
fn tcp_info(conn: &TcpStream, at: usize) -> u64 {
    let mut info = [0u8; 232];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`.
    let done = unsafe {
        libc::getsockopt(
            conn.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    assert!(done == 0 && length as usize >= at + 8, "TCP_INFO of this kernel is too short");
    u64::from_ne_bytes(info[at..at + 8].try_into().unwrap_or_default())
}

/// What the kernel has received on this connection, in bytes of the stream: also those that nobody
/// has read.
pub fn bytes_received(conn: &TcpStream) -> u64 {
    tcp_info(conn, 128)
}

/// What the kernel has sent on this connection, once all of it is on its way.
pub fn bytes_sent(conn: &TcpStream) -> u64 {
    tcp_info(conn, 200) - tcp_info(conn, 208)
}

/// The peer has said all it has to say: in a while of silence nothing more may come.
pub fn expect_silence(conn: &mut TcpStream, received: u64) {
    conn.set_read_timeout(Some(millis(400))).expect("a time limit");
    let mut extra = [0; 64];
    match conn.read(&mut extra) {
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
        other => panic!("in idle time came {other:?} {extra:?}"),
    }
    assert_eq!(
        bytes_received(conn),
        received,
        "the kernel has received another number of bytes than the program"
    );
    conn.set_read_timeout(None).expect("no time limit");
}
