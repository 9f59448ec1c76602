//! A line for each connection that stays TCP, goes back to it or is reset, where the user wants
//! one: to a file, or to the journal.
//!
//! Of a family of processes no more than one line a minute has the same reason; the next says how
//! many it stands for. A line is one write, to a file that is opened for it, so that it can be
//! moved away at any time. Nothing waits for a reader: what a pipe or the journal has no room for is
//! lost. A file that takes a line longer than 50 ms, on a disk that is slow, gets no further ones.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::inet::Addr;
use crate::reason::Reason;
use crate::sys;

/// Longest path that is taken.
pub const LONGEST: usize = 255;
/// Stands for the journal.
pub const JOURNAL: &[u8] = b"journald";
/// Reasons that are told apart.
const PLACES: usize = 36;
/// Seconds between two lines with one reason.
const EVERY: u64 = 60;
/// A line that took longer was one too many.
const SLOW_NS: u64 = 50_000_000;
const SOCKET: &CStr = c"/run/systemd/journal/socket";

struct Path(UnsafeCell<[u8; LONGEST + 1]>);
// SAFETY: written once, while the library is loaded and before any other thread of ours reads.
unsafe impl Sync for Path {}
static PATH: Path = Path(UnsafeCell::new([0; LONGEST + 1]));
static IS_ON: AtomicBool = AtomicBool::new(false);

/// When lines were written, in the table of the family. Zero is none.
#[repr(C)]
pub struct Places([Place; PLACES]);

/// Of one reason: reason << 32 | second, and how many lines were left out since.
#[repr(C)]
struct Place {
    last: AtomicU64,
    more: AtomicU64,
}

/// The file, or the journal. None if the name is empty or too long.
pub(crate) fn set_path(name: &[u8]) {
    // SAFETY: see `Path`.
    let path = unsafe { &mut *PATH.0.get() };
    *path = [0; LONGEST + 1];
    let fits = !name.is_empty() && name.len() <= LONGEST;
    if fits {
        path[..name.len()].copy_from_slice(name);
    }
    IS_ON.store(fits, Relaxed);
}

/// Whether anybody wants to be told.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// What there is to say of a connection.
pub(crate) struct Note {
    /// Local and peer address, as far as they are known.
    pub names: [Addr; 2],
    /// It was reset; else it is TCP.
    pub was_reset: bool,
    /// Why.
    pub why: Reason,
}

impl Places {
    /// How many lines to leave out before this one: it is written if there is an answer.
    fn admit(&self, why: Reason, now: u64) -> Option<u64> {
        let code = u64::from(why.code());
        for place in &self.0 {
            let last = place.last.load(Relaxed);
            if last != 0 && last >> 32 != code {
                continue;
            }
            let second = last & u64::from(u32::MAX);
            let due = last == 0 || now.wrapping_sub(second) & u64::from(u32::MAX) >= EVERY;
            let next = code << 32 | now & u64::from(u32::MAX);
            if due && place.last.compare_exchange(last, next, Relaxed, Relaxed).is_ok() {
                return Some(place.more.swap(0, Relaxed));
            }
            if !due {
                place.more.fetch_add(1, Relaxed);
            }
            return None;
        }
        None
    }
}

/// A line in the making; what is too long is cut.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (to, byte) in self.bytes[self.len..].iter_mut().zip(text.bytes()) {
            *to = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// Says it, unless it was said a moment ago.
#[cold]
pub(crate) fn say(places: &Places, note: &Note) {
    let second = second();
    let Some(more) = places.admit(note.why, second) else { return };
    if put_out(note.why.name(), second, |line| describe(line, note, more)) {
        IS_ON.store(false, Relaxed);
    }
}

/// Of the calendar.
fn second() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is live.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    now.tv_sec as u64
}

/// Whether it took so long that no more should be said.
fn put_out(reason: &str, second: u64, describe: impl FnOnce(&mut Line)) -> bool {
    // SAFETY: see `Path`.
    let path = unsafe { &*PATH.0.get() };
    let Ok(path) = CStr::from_bytes_until_nul(path) else { return false };
    let mut line = Line { bytes: [0; 512], len: 0 };
    let is_journal = path.to_bytes() == JOURNAL;
    if is_journal {
        let head = "PRIORITY=6\nSYSLOG_IDENTIFIER=shortwire\n";
        let _ = write!(line, "{head}SHORTWIRE_REASON={reason}\nMESSAGE=");
    } else {
        stamp(&mut line, second);
        let _ = write!(line, " shortwire[{}] ", sys::getpid());
    }
    describe(&mut line);
    // Also where the line was cut: the next one would be part of it.
    line.len = line.len.min(line.bytes.len() - 1);
    let _ = line.write_str("\n");
    let bytes = &line.bytes[..line.len];
    let begun = sys::now_ns();
    if is_journal {
        to_journal(bytes);
    } else {
        let flags =
            libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NONBLOCK | libc::O_NOCTTY;
        let fd = sys::open(path, flags, 0o600);
        if fd >= 0 {
            sys::write(fd, bytes);
            sys::close(fd);
        }
    }
    sys::now_ns().saturating_sub(begun) > SLOW_NS
}

/// Says that a program that was to be followed is started without, if anybody wants to be told. It
/// may be said by the child of a vfork: nothing is kept.
#[cold]
pub fn say_program(path: &CStr, why: &str) {
    if !is_on() {
        return;
    }
    put_out("NOT_FOLLOWED", second(), |line| {
        put_path(line, path);
        let _ = write!(line, " is started as ever, on TCP: it {why}");
    });
}

/// Says that calls of this program come by signals, likewise.
#[cold]
pub fn say_dispatched(path: &CStr) {
    if is_on() {
        put_out("DISPATCHED", second(), |line| {
            put_path(line, path);
            let _ = line.write_str(
                " makes system calls that cannot be told, or cannot be made to jump: the kernel sends them by signals",
            );
        });
    }
}

/// Says that code which this program maps is not followed whole, likewise.
#[cold]
pub fn say_code(path: &CStr, why: &str) {
    if is_on() {
        put_out("NOT_FOLLOWED", second(), |line| {
            put_path(line, path);
            let _ = write!(line, ", which was mapped, makes calls that may pass unseen: {why}");
        });
    }
}

/// Of a path that is long enough to fill the line the end tells more; and a name may hold anything, also
/// what would pass for a line or a field of its own.
fn put_path(line: &mut Line, path: &CStr) {
    const MOST: usize = 256;
    let path = path.to_bytes();
    for byte in &path[path.len().saturating_sub(MOST)..] {
        let letter = if byte.is_ascii_graphic() || *byte == b' ' { *byte } else { b'?' };
        let _ = line.write_char(letter.into());
    }
}

fn describe(line: &mut Line, note: &Note, more: u64) {
    let mut comm = [0u8; 16];
    let fd = sys::open(c"/proc/self/comm", libc::O_RDONLY, 0);
    if fd >= 0 {
        sys::read(fd, &mut comm);
        sys::close(fd);
    }
    let name = comm.split(|byte| byte.is_ascii_control()).next().unwrap_or_default();
    let _ = line.write_str(core::str::from_utf8(name).unwrap_or("?"));
    let _ = line.write_str(": ");
    let Note { names: [local, peer], was_reset, why } = note;
    put(line, local);
    let _ = line.write_str(" to ");
    put(line, peer);
    let fate = if *was_reset { "was reset" } else { "is TCP" };
    let _ = write!(line, " {fate}: {}, {}", why.name(), why.words());
    if more > 0 {
        let _ = write!(line, " ({more} more since the last such line)");
    }
}

fn put(line: &mut Line, address: &Addr) {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
    let ip = match i32::from(address.family) {
        libc::AF_INET => {
            let [a, b, c, d, ..] = address.ip;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(address.ip)).to_canonical(),
        // Nobody has looked it up.
        _ => {
            let _ = line.write_str("?");
            return;
        }
    };
    let _ = write!(line, "{}", SocketAddr::new(ip, address.port));
}

/// `2026-11-25T17:30:00Z`.
fn stamp(line: &mut Line, second: u64) {
    let (days, rest) = (second / 86_400, second % 86_400);
    // From the first of March of the year 0 on leap days come last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let _ = write!(line, "{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z");
}

fn to_journal(bytes: &[u8]) {
    let mut address = [0u8; 64];
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    let name = SOCKET.to_bytes_with_nul();
    address[2..2 + name.len()].copy_from_slice(name);
    let fd = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0) as i32;
    if fd < 0 {
        return;
    }
    if sys::connect(fd, &address[..2 + name.len()]) == 0 {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: a live buffer.
        unsafe { sys::send(fd, bytes.as_ptr(), bytes.len(), flags) };
    }
    sys::close(fd);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason;

    fn text(fill: impl FnOnce(&mut Line)) -> String {
        let mut line = Line { bytes: [0; 512], len: 0 };
        fill(&mut line);
        String::from_utf8_lossy(&line.bytes[..line.len]).into_owned()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (second, says) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_541_400, "2026-11-24T17:30:00Z"),
        ] {
            assert_eq!(text(|line| stamp(line, second)), says);
        }
    }

    #[test]
    fn one_line_a_minute_has_a_reason_and_says_for_how_many_it_stands() {
        let places =
            Places([const { Place { last: AtomicU64::new(0), more: AtomicU64::new(0) } }; 36]);
        assert_eq!(places.admit(reason::OFF, 1000), Some(0));
        assert_eq!(places.admit(reason::MPTCP, 1000), Some(0), "another reason");
        for now in 1000..1059 {
            assert_eq!(places.admit(reason::OFF, now), None);
        }
        assert_eq!(places.admit(reason::OFF, 1060), Some(59));
        assert_eq!(places.admit(reason::OFF, 1061), None);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        let said = text(|line| (0..200).for_each(|_| _ = line.write_str("words ")));
        assert_eq!(said.len(), 512);
    }
}
