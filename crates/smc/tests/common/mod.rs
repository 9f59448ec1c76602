//! Two ends of a real loopback TCP connection in one process, each used through its `Conn` as the
//! hooks of the preloaded library use it, but without ever waiting.
#![allow(unsafe_code)]
#![allow(dead_code, reason = "each test file uses its part")]

pub mod end;
pub mod flow;
pub mod queue;
pub mod raw;
pub mod script;
pub mod traffic;
pub mod wait;

pub use end::End;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use smc::sys;

/// The settings, the counters, the link groups and the descriptors of a process are one.
pub fn serial() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(|e| e.into_inner());
    let config = &smc::config::CONFIG;
    config.copy.store(false, Relaxed);
    // A step of a test is one of an upgrade whose time has come.
    config.after.store(0, Relaxed);
    config.dmb_size.store(64 << 10, Relaxed);
    let (device, checked) = device();
    smc::setting::set(b"PREFER", device);
    config.integrity.store(checked, Relaxed);
    raw::next_stranger();
    guard
}

/// Names the device, for the whole process.
const DEVICE: &str = "SHORTWIRE_TEST_DEVICE";

/// The device that this process tests, and whether its streams carry a checksum.
fn device() -> (&'static [u8], bool) {
    match std::env::var(DEVICE).as_deref() {
        Err(_) => (b"loopback", false),
        Ok("ism") => (b"ism", false),
        Ok("verbs") => (b"verbs", false),
        Ok("checked_ism") => (b"ism", true),
        Ok("checked_verbs") => (b"verbs", true),
        Ok(other) => panic!("{DEVICE}={other}"),
    }
}

/// Whether that device copies into the peer's own memory.
pub fn copying() -> bool {
    device().0 != b"loopback"
}

/// All tests of this binary over another device, in a process of their own, since link groups
/// outlive a test.
pub fn again(device: &str) {
    let mut tests = Command::new(std::env::current_exe().expect("own path"));
    tests.args(["--skip", "over::"]).env(DEVICE, device);
    // While no test counts descriptors; a pipe for what it prints would be there longer.
    let started = {
        let _serial = serial();
        tests.spawn()
    };
    let ended = started.and_then(|mut child| child.wait()).expect("this program runs");
    assert!(ended.success(), "over {device}: {ended}");
}

/// The tests of a file over these devices too; by itself a process tests loopback.
#[allow(unused_macros, reason = "each test file uses its part")]
macro_rules! over {
    ($($device:ident),*) => {
        mod over {
            $(#[test]
            fn $device() {
                super::common::again(stringify!($device));
            })*
        }
    };
}
#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use over;

/// Does `what` while `peer`, over a device on which it must be asked, looks at its connection as a
/// waiting program does.
pub fn while_looked_at<R>(peer: Option<&End>, what: impl FnOnce() -> R) -> R {
    let Some(peer) = peer.filter(|_| copying()) else { return what() };
    let (conn, fd, done) = (peer.conn, peer.fd, AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Acquire) {
                conn.ready(fd);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let result = what();
        done.store(true, Release);
        result
    })
}

pub fn raw_recv(fd: i32, buf: &mut [u8], flags: i32) -> Result<usize, i32> {
    // SAFETY: the buffer is live.
    let r = unsafe { sys::recv(fd, buf.as_mut_ptr(), buf.len(), flags | libc::MSG_DONTWAIT) };
    if r < 0 { Err(-r as i32) } else { Ok(r as usize) }
}

pub fn raw_send(fd: i32, data: &[u8]) -> Result<usize, i32> {
    // SAFETY: the data is live.
    let r = unsafe {
        sys::send(fd, data.as_ptr(), data.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if r < 0 { Err(-r as i32) } else { Ok(r as usize) }
}

/// A TCP connection: the end that listens at the rendezvous, and the end that calls. They meet by
/// its name, where a stranger can take part, and not in the memory of link groups that there are
/// already.
pub fn tcp(v6: bool) -> (i32, i32) {
    smc::group::lanes::forget_peers();
    connection(v6)
}

fn connection(v6: bool) -> (i32, i32) {
    let local = if v6 {
        SocketAddr::from((Ipv6Addr::LOCALHOST, 0))
    } else {
        (Ipv4Addr::LOCALHOST, 0).into()
    };
    let listener = TcpListener::bind(local).expect("a listener");
    let one =
        TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    let (other, _) = listener.accept().expect("its other end");
    let (one, other) = (one.into_raw_fd(), other.into_raw_fd());
    let [local, peer] = smc::inet::names(one).expect("both names");
    if local.key() < peer.key() { (one, other) } else { (other, one) }
}

/// The server and the client of an upgrade that has not begun.
pub fn pair() -> (End, End) {
    let (server, client) = connection(false);
    (End::new(server), End::new(client))
}

/// Steps until the sends of both are on rings.
pub fn upgrade(server: &End, client: &End) {
    for _ in 0..20 {
        server.step();
        client.step();
        if server.conn.sends_on_ring() && client.conn.sends_on_ring() {
            return;
        }
    }
    panic!("no upgrade: server {} client {}", server.describe(), client.describe());
}

/// Both directions of both ends on rings.
pub fn rings() -> (End, End) {
    let (server, client) = pair();
    upgrade(&server, &client);
    assert!(server.settle() && client.settle());
    (server, client)
}

/// Waits for what the kernel does by itself.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Open descriptors of this process.
pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// The byte at a position of a stream; `stream` tells streams apart. Its period divides no ring.
pub fn byte(stream: u8, at: u64) -> u8 {
    let x = (at.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ u64::from(stream).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (x ^ x >> 29) as u8
}

/// `n` bytes of a stream from `at` on.
pub fn bytes(stream: u8, at: u64, n: usize) -> Vec<u8> {
    (at..at + n as u64).map(|i| byte(stream, i)).collect()
}
