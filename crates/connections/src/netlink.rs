//! What the kernel's lists of sockets (sock_diag) have in common: a request over netlink, and answers
//! of messages with attributes.
//!
//! A list is that of the network namespace in which it is asked for. For another one a thread goes
//! there, which root may.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::thread;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// `struct nlmsghdr`, `struct rtattr`.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// Types of messages.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// A flag beside the type of an attribute (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
const KIND: u16 = 0x3fff;

/// What `look` says in the network namespace of `pid`; None where one may not go there.
pub fn in_namespace_of<T: Send + 'static>(
    pid: u32,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let there = format!("/proc/{pid}/ns/net");
    if fs::read_link(&there).ok() == fs::read_link("/proc/self/ns/net").ok() {
        return Some(look());
    }
    let namespace = File::open(there).ok()?;
    let visit = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map(|()| look())
    };
    thread::spawn(visit).join().ok()?.ok()
}

/// Asks for all sockets of a family, in the words of that family, and hands on each message.
pub fn dump(request: &[u8], mut take: impl FnMut(&[u8])) -> Result<(), Errno> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut whole = vec![0u8; HEADER];
    whole[..4].copy_from_slice(&((HEADER + request.len()) as u32).to_ne_bytes());
    whole[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    whole[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    whole.extend_from_slice(request);
    send(&socket, &whole, SendFlags::NOSIGNAL)?;
    let mut answer = vec![0u8; 64 << 10];
    loop {
        let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        if !messages(&answer[..length], &mut take) {
            return Ok(());
        }
    }
}

/// Hands on what one answer says; whether there is more to come.
pub fn messages(mut rest: &[u8], take: &mut impl FnMut(&[u8])) -> bool {
    while let Some(length) = word(rest, 0).map(|length| length as usize) {
        let kind = rest.get(4..6).map_or(DONE, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
        if matches!(kind, ERROR | DONE) || length < HEADER {
            return false;
        }
        if kind == SOCK_DIAG_BY_FAMILY
            && let Some(message) = rest.get(HEADER..length)
        {
            take(message);
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    true
}

/// Type and content of each attribute, as far as they are whole.
pub fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = rest.get(..ATTRIBUTE)?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let content = rest.get(ATTRIBUTE..length)?;
        let kind = u16::from_ne_bytes([head[2], head[3]]) & KIND;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(length: u32, kind: u16) -> Vec<u8> {
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes
    }

    #[test]
    fn messages_until_the_end_is_said() {
        let mut taken = Vec::new();
        let mut take = |message: &[u8]| taken.push(message.to_vec());
        let mut bytes = header(19, SOCK_DIAG_BY_FAMILY);
        bytes.extend(b"abc\0");
        bytes.extend(header(16, 77));
        assert!(messages(&bytes, &mut take));
        bytes.extend(header(20, DONE));
        assert!(!messages(&bytes, &mut take));
        assert_eq!(taken, [b"abc", b"abc"]);
    }

    #[test]
    fn half_an_answer_is_no_answer() {
        let mut take = |_: &[u8]| panic!("nothing is whole");
        assert!(messages(&header(200, SOCK_DIAG_BY_FAMILY), &mut take));
        assert!(!messages(&header(15, SOCK_DIAG_BY_FAMILY), &mut take));
        assert!(!messages(&header(16, ERROR), &mut take) && messages(&[0; 3], &mut take));
    }

    #[test]
    fn attributes_end_at_damage() {
        let mut bytes = [6u16.to_ne_bytes(), 0x8002u16.to_ne_bytes()].concat();
        bytes.extend([1, 2, 0, 0]);
        bytes.extend([3u16.to_ne_bytes(), 1u16.to_ne_bytes()].concat());
        let all: Vec<_> = attributes(&bytes).collect();
        assert_eq!(all, [(2, &[1u8, 2][..])]);
        assert_eq!(attributes(&[200, 0, 1, 0, 5]).count(), 0);
    }
}
