//! The handshake on record, for `shortwire trace-clc`: each message as a TCP segment between the
//! connection's real addresses, appended to a pcap file whose packets begin with the IP header
//! (link type 101).
//!
//! The messages travel beside the TCP stream, so the sequence numbers are those of a stream that
//! has nothing else in it.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::channel;
use crate::conn::Conn;
use crate::inet::Addr;
use crate::sys;

/// Link type of the file.
pub const LINKTYPE_RAW: u32 = 101;
/// Longest path that is taken.
pub const MAX_PATH: usize = 255;

const RECORD: usize = 16;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const MAX: usize = RECORD + IPV6 + TCP + channel::MAX;
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// How far back a message is looked for that its sender may have noted.
const TAIL: i64 = 64 << 10;

/// Which way a message goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From here.
    Sent,
    /// To here.
    Received,
}

struct Path(UnsafeCell<[u8; MAX_PATH + 1]>);
// SAFETY: written once, while the library is loaded and before any other thread of ours reads.
unsafe impl Sync for Path {}
static PATH: Path = Path(UnsafeCell::new([0; MAX_PATH + 1]));
static PATH_LEN: AtomicUsize = AtomicUsize::new(0);

/// The file, which exists and has its header. None if the name is empty or too long.
pub(crate) fn set_path(name: &[u8]) {
    // SAFETY: see `Path`.
    let path = unsafe { &mut *PATH.0.get() };
    *path = [0; MAX_PATH + 1];
    let fits = name.len() <= MAX_PATH;
    if fits {
        path[..name.len()].copy_from_slice(name);
    }
    PATH_LEN.store(if fits { name.len() } else { 0 }, Relaxed);
}

/// The header of such a file.
pub fn file_header() -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&0xa1b2_c3d4u32.to_ne_bytes());
    header[4..6].copy_from_slice(&2u16.to_ne_bytes());
    header[6..8].copy_from_slice(&4u16.to_ne_bytes());
    header[16..20].copy_from_slice(&65_535u32.to_ne_bytes());
    header[20..].copy_from_slice(&LINKTYPE_RAW.to_ne_bytes());
    header
}

/// Puts a message on record, if that was asked for. A sender does so before it sends: a receiver
/// with the same file then finds it there and leaves it at that.
pub(crate) fn note(conn: &Conn, way: Way, message: &[u8]) {
    if PATH_LEN.load(Relaxed) != 0 && !message.is_empty() {
        append(conn, way, message);
    }
}

#[cold]
fn append(conn: &Conn, way: Way, raw: &[u8]) {
    // What the rendezvous puts behind a message is none of it.
    let says =
        raw.get(5..7).map_or(raw.len(), |len| usize::from(u16::from_be_bytes([len[0], len[1]])));
    let message = if (8..=raw.len()).contains(&says) { &raw[..says] } else { raw };
    let [own, other] = conn.identity.names();
    if own.family == 0 || message.len() > channel::MAX {
        return;
    }
    let (from, to) = if way == Way::Sent { (own, other) } else { (other, own) };
    let [sent, received] = &conn.upgrade.traced;
    let (seq, ack) = if way == Way::Sent { (sent, received) } else { (received, sent) };
    let mut packet = [0; MAX];
    let len =
        frame(&mut packet, [&from, &to], [seq.load(Relaxed) + 1, ack.load(Relaxed) + 1], message);
    seq.fetch_add(message.len() as u32, Relaxed);
    // SAFETY: PATH was written before PATH_LEN, and ends with a NUL.
    let path = unsafe { CStr::from_ptr(PATH.0.get().cast()) };
    let fd = sys::open(path, libc::O_RDWR | libc::O_APPEND, 0);
    if fd < 0 {
        return;
    }
    if way == Way::Sent || !is_there(fd, &packet[RECORD..len]) {
        // One write, so that records of several processes do not mix.
        sys::write(fd, &packet[..len]);
    }
    sys::close(fd);
}

/// Whether the end of the file has this packet.
fn is_there(fd: i32, packet: &[u8]) -> bool {
    let mut window = [0u8; 4096];
    let end = sys::lseek(fd, 0, libc::SEEK_END).unwrap_or(0);
    let mut at = (end - TAIL).max(0);
    loop {
        // SAFETY: a live buffer.
        let n = unsafe { sys::read_into(fd, window.as_mut_ptr(), window.len(), Some(at)) };
        if n < packet.len() as isize {
            return false;
        }
        if window[..n as usize].windows(packet.len()).any(|part| part == packet) {
            return true;
        }
        at += (n as usize - packet.len() + 1) as i64;
    }
}

/// Writes record header, IP, TCP and message; the length of all.
fn frame(
    out: &mut [u8; MAX],
    [from, to]: [&Addr; 2],
    [seq, ack]: [u32; 2],
    message: &[u8],
) -> usize {
    let (source, target) = (from.mapped(), to.mapped());
    let v4 = source[..12] == MAPPED && target[..12] == MAPPED;
    let ip_len = if v4 { IPV4 } else { IPV6 };
    let (head, packet) = out.split_at_mut(RECORD);
    let tcp_len = TCP + message.len();
    let (ip, rest) = packet.split_at_mut(ip_len);
    let tcp = &mut rest[..tcp_len];
    let addresses = if v4 {
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&((ip_len + tcp_len) as u16).to_be_bytes());
        ip[6] = 0x40;
        ip[8] = 64;
        ip[9] = libc::IPPROTO_TCP as u8;
        ip[12..16].copy_from_slice(&source[12..]);
        ip[16..20].copy_from_slice(&target[12..]);
        let sum = fold(add(0, ip));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        add(0, &ip[12..20])
    } else {
        ip[0] = 0x60;
        ip[4..6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
        ip[6] = libc::IPPROTO_TCP as u8;
        ip[7] = 64;
        ip[8..24].copy_from_slice(&source);
        ip[24..40].copy_from_slice(&target);
        add(0, &ip[8..40])
    };
    tcp[0..2].copy_from_slice(&from.port.to_be_bytes());
    tcp[2..4].copy_from_slice(&to.port.to_be_bytes());
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&ack.to_be_bytes());
    tcp[12] = (TCP as u8 / 4) << 4;
    // PSH and ACK.
    tcp[13] = 0x18;
    tcp[14..16].fill(0xff);
    tcp[TCP..].copy_from_slice(message);
    let sum = fold(add(addresses + libc::IPPROTO_TCP as u32 + tcp_len as u32, tcp));
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());

    let now = sys::realtime();
    let len = (ip_len + tcp_len) as u32;
    for (field, word) in head.chunks_exact_mut(4).zip([now.0 as u32, now.1 / 1000, len, len]) {
        field.copy_from_slice(&word.to_ne_bytes());
    }
    RECORD + len as usize
}

fn add(sum: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(sum, |sum, pair| {
        sum + (u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
    })
}

fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    !((once & 0xffff) as u16).wrapping_add((once >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(ip: &[u8], port: u16) -> Addr {
        let family = if ip.len() == 4 { libc::AF_INET } else { libc::AF_INET6 } as u16;
        let mut all = [0; 16];
        all[..ip.len()].copy_from_slice(ip);
        Addr { family, port, ip: all }
    }

    /// A checksum that is right sums up to all ones.
    fn is_right(sum: u32) -> bool {
        fold(sum) == 0
    }

    #[test]
    fn a_packet_of_ipv4() {
        let (a, b) = (addr(&[127, 0, 0, 1], 40_000), addr(&[127, 0, 0, 2], 80));
        let mut out = [0; MAX];
        let n = frame(&mut out, [&a, &b], [1, 9], b"an odd text");
        let packet = &out[RECORD..n];
        assert_eq!((packet.len(), packet[0]), (IPV4 + TCP + 11, 0x45));
        assert!(is_right(add(0, &packet[..IPV4])));
        assert!(is_right(add(6 + (TCP as u32 + 11), &packet[12..])), "pseudo header, segment");
        assert_eq!(out[8..12], (packet.len() as u32).to_ne_bytes());
        assert_eq!(
            (&packet[20..24], &packet[24..32]),
            (&[0x9c, 0x40, 0, 80][..], &[0, 0, 0, 1, 0, 0, 0, 9][..])
        );
    }

    #[test]
    fn a_packet_of_ipv6_and_one_of_mapped_addresses() {
        let one = addr(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 1);
        let mut out = [0; MAX];
        let n = frame(&mut out, [&one, &one], [1, 1], &[7; channel::MAX]);
        assert_eq!((n, out[RECORD] >> 4), (MAX, 6));
        assert!(is_right(add(6 + (TCP + channel::MAX) as u32, &out[RECORD + 8..n])));
        let mapped = addr(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1], 1);
        let n = frame(&mut out, [&mapped, &addr(&[127, 0, 0, 1], 2)], [1, 1], b"");
        assert_eq!((n, out[RECORD] >> 4), (RECORD + IPV4 + TCP, 4));
    }
}
