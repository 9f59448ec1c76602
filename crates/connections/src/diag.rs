//! How many bytes the kernel has carried for each TCP socket, from its own list (sock_diag).
//!
//! The list is that of the network namespace in which it is asked for: for another one a thread
//! goes there, which root may. Where that is refused nothing is known, and nothing is said.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::thread;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Serialize;

/// Bytes of a socket that went through the kernel, doorbells of upgraded connections included.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Carried {
    pub rx: u64,
    pub tx: u64,
}

/// `struct nlmsghdr`, `struct inet_diag_msg`, `struct rtattr`.
const HEADER: usize = 16;
const MESSAGE: usize = 72;
const ATTRIBUTE: usize = 4;
/// Types of messages and of the attribute that holds `struct tcp_info`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// All states but TIME_WAIT, whose sockets nobody holds, and LISTEN.
const STATES: u32 = !(1 << 6 | 1 << 10);

/// By inode, of the network namespace of `pid`.
pub fn carried(pid: u32) -> HashMap<u64, Carried> {
    let there = format!("/proc/{pid}/ns/net");
    if fs::read_link(&there).ok() == fs::read_link("/proc/self/ns/net").ok() {
        return here();
    }
    let Ok(namespace) = File::open(there) else { return HashMap::new() };
    let visit = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map(|()| here())
    };
    thread::spawn(visit).join().ok().and_then(Result::ok).unwrap_or_default()
}

fn here() -> HashMap<u64, Carried> {
    let mut all = HashMap::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        // What was heard until something went wrong is true.
        let _ = list(family, &mut all);
    }
    all
}

fn list(family: AddressFamily, all: &mut HashMap<u64, Carried>) -> Result<(), Errno> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    const REQUEST: usize = HEADER + 56;
    let mut request = [0u8; REQUEST];
    request[..4].copy_from_slice(&(REQUEST as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request[16] = family.as_raw() as u8;
    request[17] = libc::IPPROTO_TCP as u8;
    request[18] = 1 << (INET_DIAG_INFO - 1);
    request[20..24].copy_from_slice(&STATES.to_ne_bytes());
    send(&socket, &request, SendFlags::NOSIGNAL)?;
    let mut answer = vec![0u8; 64 << 10];
    loop {
        let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        if !messages(&answer[..length], all) {
            return Ok(());
        }
    }
}

/// Takes in what one answer says; whether there is more to come.
fn messages(mut rest: &[u8], all: &mut HashMap<u64, Carried>) -> bool {
    while let Some(length) = word(rest, 0).map(|length| length as usize) {
        let kind = rest.get(4..6).map_or(DONE, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
        if matches!(kind, ERROR | DONE) || length < HEADER {
            return false;
        }
        if kind == SOCK_DIAG_BY_FAMILY {
            all.extend(rest.get(HEADER..length).and_then(socket_of));
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    true
}

fn socket_of(message: &[u8]) -> Option<(u64, Carried)> {
    let inode = word(message, 68)?;
    let mut rest = message.get(MESSAGE..)?;
    while let Some(head) = rest.get(..ATTRIBUTE) {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]);
        if kind == INET_DIAG_INFO {
            return Some((u64::from(inode), told(rest.get(ATTRIBUTE..length)?)?));
        }
        rest = rest.get(length.max(ATTRIBUTE).next_multiple_of(4)..)?;
    }
    None
}

/// From `struct tcp_info`: `bytes_received`, and `bytes_sent` less `bytes_retrans` (Linux 4.19) or
/// `bytes_acked`.
fn told(info: &[u8]) -> Option<Carried> {
    let long = |at: usize| info.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let tx = match (long(200), long(208)) {
        (Some(sent), Some(again)) => sent.saturating_sub(again),
        _ => long(120)?,
    };
    Some(Carried { rx: long(128)?, tx })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn bytes_of_own_sockets_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        client.write_all(&[7; 1000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();
        let inode = |socket: &TcpStream| rustix::fs::fstat(socket).unwrap().st_ino;
        let all = carried(std::process::id());
        assert_eq!(all[&inode(&client)], Carried { rx: 0, tx: 1000 });
        assert_eq!(all[&inode(&server)], Carried { rx: 1000, tx: 0 });
    }

    #[test]
    fn a_process_that_is_gone_has_none() {
        assert!(carried(u32::MAX).is_empty());
    }

    #[test]
    fn half_an_answer_is_no_answer() {
        let mut all = HashMap::new();
        let mut bytes = vec![0u8; 40];
        bytes[..4].copy_from_slice(&200u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert!(messages(&bytes, &mut all) && all.is_empty());
        bytes[4..6].copy_from_slice(&DONE.to_ne_bytes());
        assert!(!messages(&bytes, &mut all));
        assert!(told(&[0; 100]).is_none());
    }
}
