//! How many bytes the kernel has carried for each TCP socket, from its own list (sock_diag).
//!
//! The list is that of the network namespace in which it is asked for: for another one a thread
//! goes there, which root may. Where that is refused nothing is known, and nothing is said.

use std::collections::HashMap;

use rustix::net::AddressFamily;
use serde::Serialize;

use crate::netlink::{self, attributes, word};

/// Bytes of a socket that went through the kernel, doorbells of upgraded connections included.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Carried {
    pub rx: u64,
    pub tx: u64,
}

/// `struct inet_diag_req_v2` and `struct inet_diag_msg`.
const REQUEST: usize = 56;
const MESSAGE: usize = 72;
/// The attribute that holds `struct tcp_info`.
const INET_DIAG_INFO: u16 = 2;
/// All states but TIME_WAIT, whose sockets nobody holds, and LISTEN.
const STATES: u32 = !(1 << 6 | 1 << 10);

/// By inode, of the network namespace of `pid`.
pub fn carried(pid: u32) -> HashMap<u64, Carried> {
    netlink::in_namespace_of(pid, here).unwrap_or_default()
}

fn here() -> HashMap<u64, Carried> {
    let mut all = HashMap::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        let mut request = [0u8; REQUEST];
        request[0] = family.as_raw() as u8;
        request[1] = libc::IPPROTO_TCP as u8;
        request[2] = 1 << (INET_DIAG_INFO - 1);
        request[4..8].copy_from_slice(&STATES.to_ne_bytes());
        // What was heard until something went wrong is true.
        let _ = netlink::dump(&request, |message| all.extend(socket_of(message)));
    }
    all
}

fn socket_of(message: &[u8]) -> Option<(u64, Carried)> {
    let inode = word(message, 68)?;
    let (_, info) =
        attributes(message.get(MESSAGE..)?).find(|(kind, _)| *kind == INET_DIAG_INFO)?;
    Some((u64::from(inode), told(info)?))
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
        assert!(socket_of(&[0; MESSAGE - 1]).is_none() && socket_of(&[0; MESSAGE]).is_none());
        assert!(told(&[0; 100]).is_none());
    }
}
