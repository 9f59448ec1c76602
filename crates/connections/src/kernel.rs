//! The kernel's TCP sockets of a network namespace, from /proc/PID/net/tcp and tcp6.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const LISTEN: u8 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Socket {
    pub local: SocketAddr,
    pub peer: SocketAddr,
    pub uid: u32,
    state: u8,
}

impl Socket {
    pub fn is_listener(&self) -> bool {
        self.state == LISTEN
    }

    /// The SMC state that a TCP state comes nearest to.
    pub fn smc_state(&self) -> &'static str {
        match self.state {
            1 => "ACTIVE",
            4 | 11 => "PEERCLOSEWAIT1",
            5 => "PEERCLOSEWAIT2",
            8 => "APPCLOSEWAIT1",
            9 => "APPFINCLOSEWAIT",
            LISTEN => "LISTEN",
            6 | 7 => "CLOSED",
            _ => "INIT",
        }
    }
}

/// By inode, as `pid` sees them.
pub fn sockets(pid: u32) -> Vec<(u64, Socket)> {
    let mut sockets = Vec::new();
    for name in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
        sockets.extend(text.lines().skip(1).filter_map(row).filter(|&(inode, _)| inode != 0));
    }
    sockets
}

/// `sl: local peer state queues timer retransmits uid timeout inode ...`
fn row(line: &str) -> Option<(u64, Socket)> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, peer) = (address(fields.next()?)?, address(fields.next()?)?);
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    let uid = fields.nth(3)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some((inode, Socket { local, peer, uid, state }))
}

/// Words of the address as this machine stores them, then the port as a number.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':').filter(|(ip, _)| ip.len() == 8 || ip.len() == 32)?;
    let words = ip.as_bytes().chunks(8).map(|word| {
        u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok().map(u32::to_ne_bytes)
    });
    let bytes: Vec<u8> = words.collect::<Option<Vec<_>>>()?.concat();
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    fn inode(socket: impl AsFd) -> u64 {
        rustix::fs::fstat(socket).unwrap().st_ino
    }

    #[test]
    fn own_sockets_are_found() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(bind) else {
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let sockets = sockets(std::process::id());
            let find = |wanted| sockets.iter().find(|(inode, _)| *inode == wanted).unwrap().1;
            let found = find(inode(&listener));
            assert!(found.is_listener());
            assert_eq!(found.local, listener.local_addr().unwrap());
            let found = find(inode(&client));
            assert_eq!(
                (found.local, found.peer),
                (client.local_addr().unwrap(), client.peer_addr().unwrap())
            );
            assert_eq!(
                (found.smc_state(), found.uid),
                ("ACTIVE", rustix::process::getuid().as_raw())
            );
        }
    }

    #[test]
    fn strange_lines_are_left_out() {
        for line in [
            "",
            "0: junk",
            "0: 0100007F:0050 0100007F:ZZZZ 01 0 0 0 0 0 1",
            "0: 01:0050 0100007F:0051 01 0:0 0:0 0 0 0 1",
        ] {
            assert_eq!(row(line), None, "{line}");
        }
    }
}
