//! Ports, and waiting for a server.

use std::fs;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{millis, report};

/// Where a server's port lies decides which end of a connection has the lower address, and so which role each end
/// takes in the rendezvous: clients get theirs from the kernel's ephemeral range.
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
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && TcpListener::bind(("::", port)).is_ok() {
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
pub fn low_port() -> u16 {
    let (first, _) = ephemeral();
    free(10_000.min(first - 1000), first.saturating_sub(10_000).max(1000))
}

/// A free port above those that clients get.
pub fn high_port() -> u16 {
    let (_, last) = ephemeral();
    if last > 65_000 { low_port() } else { free(last + 1, 65_535 - last) }
}

/// Whether anything listens on the port, from /proc: a trial connection would be one more for the server.
pub(crate) fn listening(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&wanted)) && fields.nth(1) == Some("0A")
        })
    })
}

pub fn wait_listening(port: u16, limit: Duration) {
    let end = Instant::now() + limit;
    while !listening(port) {
        assert!(Instant::now() < end, "nothing listens on port {port} after {limit:?}\n{}", report::everything(&[]));
        sleep(millis(10));
    }
}
