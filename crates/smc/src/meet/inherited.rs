//! Options that a connection may have without anybody having set them on it: accept gives on what
//! the listener has, and a descriptor from another process has what that one has set.
//!
//! Asking the kernel for each of them would cost every upgrade ten system calls. So it is asked for
//! those alone that this process has set anywhere, and for all once something came from outside.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering::*};

use crate::conn::Conn;
use crate::sys;

// Not in the libc crate.
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
const TCP_INQ: c_int = 36;
const TCP_TX_DELAY: c_int = 37;
const TCP_MD5SIG_EXT: c_int = 32;
const TCP_AO_ADD_KEY: c_int = 38;

/// An option, with the value that it has where nobody has set it.
struct Named {
    level: c_int,
    name: c_int,
    unset: u32,
}

const fn socket(name: c_int, unset: u32) -> Named {
    Named { level: libc::SOL_SOCKET, name, unset }
}

const fn tcp(name: c_int) -> Named {
    Named { level: libc::IPPROTO_TCP, name, unset: 0 }
}

/// Those that only the kernel's stream can give.
const FOR_TCP: [Named; 15] = [
    socket(libc::SO_ZEROCOPY, 0),
    socket(libc::SO_TIMESTAMP, 0),
    socket(libc::SO_TIMESTAMPNS, 0),
    socket(libc::SO_TIMESTAMPING, 0),
    socket(SO_TIMESTAMP_NEW, 0),
    socket(SO_TIMESTAMPNS_NEW, 0),
    socket(SO_TIMESTAMPING_NEW, 0),
    socket(libc::SO_PEEK_OFF, u32::MAX),
    socket(libc::SO_MAX_PACING_RATE, u32::MAX),
    tcp(TCP_TX_DELAY),
    socket(libc::SO_ATTACH_FILTER, 0),
    socket(libc::SO_ATTACH_BPF, 0),
    tcp(libc::TCP_MD5SIG),
    tcp(TCP_MD5SIG_EXT),
    tcp(TCP_AO_ADD_KEY),
];
/// The last of them, which sign every segment of a stream (RFC 2385, RFC 5925).
const KEYS: usize = 3;
/// Those that are kept to on a ring: what is left behind a receive, and how long a peer may leave
/// something unread.
const KEPT: [Named; 2] = [tcp(TCP_INQ), tcp(libc::TCP_USER_TIMEOUT)];
const INQ: u32 = 1 << FOR_TCP.len();
const USER_TIMEOUT: u32 = INQ << 1;
const KEY_BITS: u32 = ((1 << KEYS) - 1) << (FOR_TCP.len() - KEYS);

/// Options that were set somewhere, by their places in `FOR_TCP` and behind that in `KEPT`.
static SET: AtomicU32 = AtomicU32::new(0);

impl Named {
    fn is(&self, level: c_int, name: c_int) -> bool {
        (self.level, self.name) == (level, name)
    }

    /// Whether the socket has it.
    fn is_set(&self, fd: c_int) -> bool {
        if self.is_key() {
            // The kernel tells nobody which connections of a listener have one; a stream whose peer
            // must sign it does not leave its signatures.
            return true;
        }
        if self.is_filter() {
            // Its length is told to who has no room for it; one of eBPF cannot be told, which is an
            // error.
            return sys::getsockopt(fd, self.level, libc::SO_ATTACH_FILTER, &mut [0u8; 0]) != 0;
        }
        let mut value = self.unset;
        sys::getsockopt(fd, self.level, self.name, &mut value);
        value != self.unset
    }

    fn is_key(&self) -> bool {
        is_key(self.level, self.name)
    }

    fn is_filter(&self) -> bool {
        self.level == libc::SOL_SOCKET
            && matches!(self.name, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF)
    }
}

/// Whether this option gives a key by which a stream is signed.
pub fn is_key(level: c_int, name: c_int) -> bool {
    FOR_TCP[FOR_TCP.len() - KEYS..].iter().any(|key| key.is(level, name))
}

/// Whether only the kernel's stream can give this option.
pub fn is_for_tcp(level: c_int, name: c_int) -> bool {
    FOR_TCP.iter().any(|option| option.is(level, name))
}

/// Whether this value of one of those says that the program does without it.
pub fn is_unset(level: c_int, name: c_int, value: u32) -> bool {
    let does_without =
        |option: &Named| !option.is_filter() && !option.is_key() && option.unset == value;
    FOR_TCP.iter().any(|option| option.is(level, name) && does_without(option))
}

/// The program sets an option of some socket, which may come to be a connection's.
pub fn note(level: c_int, name: c_int) {
    let mut all = FOR_TCP.iter().chain(&KEPT);
    if let Some(at) = all.position(|option| option.is(level, name)) {
        note_bits(1 << at);
    }
}

/// A socket comes from another program, which may have set anything; of keys nobody can be asked.
pub fn note_all() {
    note_bits(((USER_TIMEOUT << 1) - 1) & !KEY_BITS);
}

fn note_bits(bits: u32) {
    if SET.load(Relaxed) & bits != bits {
        SET.fetch_or(bits, Relaxed);
    }
}

/// Looks at a connection that is about to be upgraded; whether it is to stay with TCP.
pub(super) fn look(conn: &Conn, fd: c_int) -> bool {
    let set = SET.load(Relaxed);
    set != 0 && look_for(conn, fd, set)
}

#[cold]
fn look_for(conn: &Conn, fd: c_int, set: u32) -> bool {
    let number = |option: &Named| {
        let mut value = 0u32;
        sys::getsockopt(fd, option.level, option.name, &mut value);
        value
    };
    if set & INQ != 0 {
        conn.identity.user_inq.store(number(&KEPT[0]), Relaxed);
    }
    if set & USER_TIMEOUT != 0 {
        conn.set_patience(number(&KEPT[1]));
    }
    FOR_TCP.iter().enumerate().any(|(at, option)| set & 1 << at != 0 && option.is_set(fd))
}
