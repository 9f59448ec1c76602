//! How a socket program knows, before it connects, that a listener of this machine takes rsockets:
//! the listener has bound an abstract Unix socket whose name is its address.
//!
//! A request for an rsocket that went to another server would be bytes that its client never sent.
//! The name proves nothing: who makes one for another's listener has its clients' connections
//! refused by that, as who takes the port would. Abstract names are those of a network namespace, as
//! ports are.
#![allow(unsafe_code)]

use crate::kernel;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// An address of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub ip: IpAddr,
    pub port: u16,
}

impl Place {
    /// None for another family, or less than an address.
    ///
    /// # Safety
    /// `addr` is null or readable for `len` bytes.
    pub unsafe fn of(addr: *const libc::sockaddr, len: u32) -> Option<Self> {
        if addr.is_null() || (len as usize) < size_of::<libc::sockaddr_in>() {
            return None;
        }
        // SAFETY: by the contract, as long as any address that is known here.
        match i32::from(unsafe { (*addr).sa_family }) {
            libc::AF_INET => {
                // SAFETY: by the contract and the length.
                let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into();
                Some(Self { ip, port: u16::from_be(v4.sin_port) })
            }
            libc::AF_INET6 if len as usize >= size_of::<libc::sockaddr_in6>() => {
                // SAFETY: as above.
                let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                let ip = IpAddr::from(Ipv6Addr::from(v6.sin6_addr.s6_addr)).to_canonical();
                Some(Self { ip, port: u16::from_be(v6.sin6_port) })
            }
            _ => None,
        }
    }

    /// The name of a socket.
    pub fn of_socket(fd: i32) -> Option<Self> {
        // SAFETY: zero is an address of no family.
        let mut name: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
        let mut len = size_of_val(&name) as u32;
        let at = (&raw mut name).cast();
        // SAFETY: as much room as it says.
        if unsafe { kernel::getsockname(fd, at, &mut len) } != 0 {
            return None;
        }
        // SAFETY: as much as was written.
        unsafe { Self::of(at, len) }
    }

    fn name(&self) -> Option<SocketAddrUnix> {
        let ip = if self.ip.is_unspecified() { "*".to_string() } else { self.ip.to_string() };
        let name = format!("shortwire-rsockets-at/{}/{ip}", self.port);
        SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()
    }

    fn anywhere(&self) -> Self {
        Self { ip: Ipv4Addr::UNSPECIFIED.into(), ..*self }
    }

    /// Whether it is one of this machine: then the way to it begins there.
    fn is_here(&self) -> bool {
        if self.ip.is_loopback() || self.ip.is_unspecified() {
            return true;
        }
        let any: IpAddr = match self.ip {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // A datagram socket that is connected has sent nothing, and knows its way.
        let asked = std::net::UdpSocket::bind((any, 0))
            .and_then(|socket| socket.connect((self.ip, self.port)).map(|()| socket))
            .and_then(|socket| socket.local_addr());
        asked.is_ok_and(|from| from.ip() == self.ip)
    }
}

fn datagram() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).ok()
}

/// Shines until it is closed. None where another listener has it already, which is as good.
pub fn light(at: &Place) -> Option<OwnedFd> {
    let beacon = datagram()?;
    rustix::net::bind(&beacon, &at.name()?).ok()?;
    Some(beacon)
}

/// Whether a listener there takes rsockets.
pub fn shines(at: &Place) -> bool {
    let Some(probe) = datagram() else { return false };
    let is_lit = |place: &Place| {
        place.name().is_some_and(|name| rustix::net::connect(&probe, &name).is_ok())
    };
    (is_lit(at) || is_lit(&at.anywhere())) && at.is_here()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_seen_while_it_shines() {
        let place = |ip: &str, port| Place { ip: ip.parse().unwrap(), port };
        // Port 0 is nobody's, so that no other test has this name.
        let (one, all) = (place("127.0.0.1", 0), place("0.0.0.0", 0));
        assert!(!shines(&one));
        let lit = light(&one).expect("a beacon");
        assert!(shines(&one) && !shines(&place("127.0.0.2", 0)) && light(&one).is_none());
        drop(lit);
        assert!(!shines(&one));
        let lit = light(&all).expect("a beacon");
        assert!(shines(&one) && shines(&place("::1", 0)));
        assert!(!shines(&place("192.0.2.1", 0)), "not an address of this machine");
        drop(lit);
    }
}
