//! Datagrams, as `std::net::UdpSocket` has them.
#![allow(unsafe_code)]

use super::{Owned, addr};
use crate::socket;
use rustix::fd::{AsRawFd, RawFd};
use shm::Errno;
use std::io::Result;
use std::net::{SocketAddr, ToSocketAddrs};

/// A datagram rsocket: messages of up to what one UDP packet holds, which may be lost or change
/// their order.
#[derive(Debug)]
pub struct RsocketDatagram(Owned);

impl RsocketDatagram {
    /// A socket at an address; port 0 is any that is free.
    pub fn bind(address: impl ToSocketAddrs) -> Result<Self> {
        addr::each(address, |address| {
            let socket = Owned(socket::open(addr::domain(address), libc::SOCK_DGRAM, 0)?);
            // SAFETY: a complete address.
            addr::with(address, |ptr, len| unsafe { socket::bind(socket.0, ptr, len) })?;
            Ok(Self(socket))
        })
    }

    /// From now on [`Self::send`] goes there, and [`Self::recv`] hears nobody else.
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<()> {
        addr::each(address, |address| {
            // SAFETY: a complete address.
            addr::with(address, |ptr, len| unsafe { socket::connect(self.0.0, ptr, len) })
        })
    }

    /// Sends to where [`Self::connect`] said; the bytes of the message.
    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        // SAFETY: a slice.
        Ok(unsafe { socket::send(self.0.0, &[(bytes.as_ptr(), bytes.len())], 0) }?)
    }

    /// Sends to the first of these addresses that it can be sent to; the bytes of the message.
    pub fn send_to(&self, bytes: &[u8], address: impl ToSocketAddrs) -> Result<usize> {
        let bufs = [(bytes.as_ptr(), bytes.len())];
        addr::each(address, |address| {
            // SAFETY: a slice and a complete address.
            addr::with(address, |ptr, len| unsafe {
                socket::send_to(self.0.0, &bufs, 0, Some((ptr, len)))
            })
        })
    }

    /// What does not fit is cut off.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: a slice.
        Ok(unsafe { socket::recv(self.0.0, &[(buffer.as_mut_ptr(), buffer.len())], 0) }?)
    }

    /// The next message and its sender. What does not fit is cut off.
    pub fn recv_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
        let bufs = [(buffer.as_mut_ptr(), buffer.len())];
        // SAFETY: all of it may be zero.
        let mut from: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
        let mut len = size_of_val(&from) as u32;
        // SAFETY: a slice and room for any address.
        let got =
            unsafe { socket::recv_from(self.0.0, &bufs, 0, (&raw mut from).cast(), &mut len) };
        let (n, _) = got?;
        // SAFETY: the kernel has written an address of that length.
        let from = unsafe { rustix::net::SocketAddrAny::read((&raw const from).cast(), len) };
        Ok((n, from.try_into().map_err(|_| Errno::AFNOSUPPORT)?))
    }

    /// Where it receives, with the port that was chosen for port 0.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        addr::local(self.0.0)
    }

    /// Whether calls answer `WouldBlock` where they would wait (O_NONBLOCK).
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.0.set_nonblocking(on)
    }
}

impl AsRawFd for RsocketDatagram {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0
    }
}
