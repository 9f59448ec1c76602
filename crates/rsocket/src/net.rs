//! rsockets that feel like `std::net`.
//!
//! A [`RsocketStream`] is read and written like a `TcpStream`, and a [`RsocketListener`] accepts
//! them. What rsockets have beyond TCP is here too: sizes of queues and buffers ([`Builder`]), and
//! memory that the peer writes without a message ([`RsocketStream::map`],
//! [`RsocketStream::write_at`]).
//!
//! ```no_run
//! use shortwire_rsocket::net::{RsocketListener, RsocketStream};
//! use std::io::{Read, Write};
//!
//! let listener = RsocketListener::bind("127.0.0.1:7471")?;
//! let mut client = RsocketStream::connect("127.0.0.1:7471")?;
//! let (mut server, _peer) = listener.accept()?;
//! client.write_all(b"hello")?;
//! server.read_exact(&mut [0; 5])?;
//! # Ok::<(), std::io::Error>(())
//! ```
#![allow(unsafe_code)]

pub(crate) mod addr;
mod datagram;
mod set;
#[cfg(test)]
mod tests;

pub use crate::poll::poll;
pub use datagram::RsocketDatagram;
pub use set::{Event, RsocketSet};

use crate::{socket, table};
use rustix::fd::{AsRawFd, RawFd};
use std::io::{IoSlice, IoSliceMut, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::Duration;

const SOL_RDMA: i32 = 0x10000;

/// Sizes of a connection, to be chosen before it exists. What is not set is the system's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Builder {
    rdma: [Option<u32>; 4],
    send_buffer: Option<usize>,
    receive_buffer: Option<usize>,
}

impl Builder {
    /// With nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends that can be under way (RDMA_SQSIZE).
    pub fn send_queue(mut self, requests: u16) -> Self {
        self.rdma[0] = Some(requests.into());
        self
    }

    /// Messages that can wait to be read (RDMA_RQSIZE).
    pub fn receive_queue(mut self, requests: u16) -> Self {
        self.rdma[1] = Some(requests.into());
        self
    }

    /// Bytes up to which the hardware takes data with the request (RDMA_INLINE).
    pub fn inline(mut self, bytes: u16) -> Self {
        self.rdma[2] = Some(bytes.into());
        self
    }

    /// Buffers that the *peer* may map for our direct writes (RDMA_IOMAPSIZE).
    pub fn iomaps(mut self, count: u16) -> Self {
        self.rdma[3] = Some(count.into());
        self
    }

    /// Bytes of SO_SNDBUF.
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// Bytes of SO_RCVBUF. The receive buffer has two halves of this size.
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// A stream to the first of these addresses that answers; the error is that of the last one.
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<RsocketStream> {
        addr::each(address, |address| {
            let socket = self.open(address)?;
            // SAFETY: a complete address.
            addr::with(address, |ptr, len| unsafe { socket::connect(socket.0, ptr, len) })?;
            Ok(RsocketStream(socket))
        })
    }

    /// Connections that are accepted get these sizes.
    pub fn listen(&self, address: impl ToSocketAddrs) -> Result<RsocketListener> {
        addr::each(address, |address| {
            let socket = self.open(address)?;
            set(socket.0, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
            // SAFETY: a complete address.
            addr::with(address, |ptr, len| unsafe { socket::bind(socket.0, ptr, len) })?;
            socket::listen(socket.0, 128)?;
            Ok(RsocketListener(socket))
        })
    }

    fn open(&self, address: &SocketAddr) -> Result<Owned> {
        let socket = Owned(socket::open(addr::domain(address), libc::SOCK_STREAM, 0)?);
        for (option, value) in self.rdma.iter().enumerate() {
            value.map_or(Ok(()), |value| set(socket.0, SOL_RDMA, option as i32, value as i32))?;
        }
        for (option, value) in
            [(libc::SO_SNDBUF, self.send_buffer), (libc::SO_RCVBUF, self.receive_buffer)]
        {
            let value = value.map(|n| i32::try_from(n).unwrap_or(i32::MAX));
            value.map_or(Ok(()), |value| set(socket.0, libc::SOL_SOCKET, option, value))?;
        }
        Ok(socket)
    }
}

fn set(fd: RawFd, level: i32, name: i32, value: i32) -> Result<()> {
    Ok(table::get(fd)?.set_option(level, name, &value.to_ne_bytes())?)
}

/// A number of the table, given back when dropped.
#[derive(Debug)]
struct Owned(RawFd);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = crate::set::close_any(self.0);
    }
}

impl Owned {
    fn set_nonblocking(&self, on: bool) -> Result<()> {
        let flags = if on { libc::O_NONBLOCK } else { 0 };
        Ok(table::get(self.0)?.fcntl(libc::F_SETFL, flags.into()).map(drop)?)
    }

    fn take_error(&self) -> Result<Option<std::io::Error>> {
        let mut value = [0; 4];
        table::get(self.0)?.get_option(libc::SOL_SOCKET, libc::SO_ERROR, &mut value)?;
        let error = i32::from_ne_bytes(value);
        Ok((error != 0).then(|| std::io::Error::from_raw_os_error(error)))
    }
}

/// Waits for connections of rsockets.
#[derive(Debug)]
pub struct RsocketListener(Owned);

impl RsocketListener {
    /// Waits for connections at an address; port 0 is any that is free.
    pub fn bind(address: impl ToSocketAddrs) -> Result<Self> {
        Builder::new().listen(address)
    }

    /// The next connection, and where it comes from. Waits for one, or is `WouldBlock`.
    pub fn accept(&self) -> Result<(RsocketStream, SocketAddr)> {
        // SAFETY: no address is asked for.
        let fd = unsafe { socket::accept(self.0.0, core::ptr::null_mut(), core::ptr::null_mut()) }?;
        let stream = RsocketStream(Owned(fd));
        let peer = stream.peer_addr()?;
        Ok((stream, peer))
    }

    /// The connections, without end.
    pub fn incoming(&self) -> impl Iterator<Item = Result<RsocketStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// Where it listens, with the port that was chosen for port 0.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        addr::local(self.0.0)
    }

    /// Whether [`Self::accept`] answers `WouldBlock` where it would wait (O_NONBLOCK).
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.0.set_nonblocking(on)
    }
}

impl AsRawFd for RsocketListener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0
    }
}

/// A connection. Both halves may be used by threads of their own, through `&RsocketStream`.
#[derive(Debug)]
pub struct RsocketStream(Owned);

impl RsocketStream {
    /// A stream with the usual sizes: [`Builder::connect`].
    pub fn connect(address: impl ToSocketAddrs) -> Result<Self> {
        Builder::new().connect(address)
    }

    /// Address of the other end.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        addr::peer(self.0.0)
    }

    /// Address of this end.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        addr::local(self.0.0)
    }

    /// Whether reads and writes answer `WouldBlock` where they would wait (O_NONBLOCK).
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.0.set_nonblocking(on)
    }

    /// SO_ERROR, which is thereby cleared.
    pub fn take_error(&self) -> Result<Option<std::io::Error>> {
        self.0.take_error()
    }

    /// Ends one direction, or both. What was written before still arrives.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        Ok(socket::shutdown(self.0.0, how)?)
    }

    /// Reads what the next read will read again.
    pub fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: a slice.
        Ok(unsafe {
            socket::recv(self.0.0, &[(buffer.as_mut_ptr(), buffer.len())], libc::MSG_PEEK)
        }?)
    }

    /// Waits until the stream is ready for one of the `poll` events, and says for which.
    pub fn wait(&self, events: i16, timeout: Option<Duration>) -> Result<i16> {
        let mut fds = [libc::pollfd { fd: self.0.0, events, revents: 0 }];
        poll(&mut fds, timeout)?;
        Ok(fds[0].revents)
    }

    /// Opens `len` bytes at `buffer` to the peer's [`Self::write_at`], at `offset` or else at their
    /// address; returns the offset. The peer knows of it once it has read what is sent next.
    ///
    /// # Safety
    /// The memory stays allocated until [`Self::unmap`] or the end of the stream; the peer changes
    /// it at any time, so that nothing else may be assumed of its content; no other thread writes
    /// to it during this call.
    pub unsafe fn map(&self, buffer: *mut u8, len: usize, offset: Option<u64>) -> Result<u64> {
        let offset = offset.map_or(Ok(-1), i64::try_from).map_err(|_| rustix::io::Errno::INVAL)?;
        Ok(socket::map(self.0.0, buffer, len, libc::PROT_WRITE, offset).map(i64::cast_unsigned)?)
    }

    /// Ends a [`Self::map`] of just this memory.
    pub fn unmap(&self, buffer: *mut u8, len: usize) -> Result<()> {
        Ok(socket::unmap(self.0.0, buffer, len)?)
    }

    /// Writes straight into what the peer has mapped, from `offset` on. Less than all where the map
    /// ends.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        let offset = i64::try_from(offset).map_err(|_| rustix::io::Errno::INVAL)?;
        // SAFETY: a slice.
        Ok(unsafe { socket::write_mapped(self.0.0, bytes.as_ptr(), bytes.len(), offset, 0) }?)
    }
}

impl AsRawFd for RsocketStream {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0
    }
}

impl Read for &RsocketStream {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: a slice.
        Ok(unsafe { socket::recv(self.0.0, &[(buffer.as_mut_ptr(), buffer.len())], 0) }?)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let buffers: Vec<_> = buffers.iter_mut().map(|b| (b.as_mut_ptr(), b.len())).collect();
        // SAFETY: slices.
        Ok(unsafe { socket::recv(self.0.0, &buffers, 0) }?)
    }
}

impl Write for &RsocketStream {
    #[inline]
    fn write(&mut self, buffer: &[u8]) -> Result<usize> {
        // SAFETY: a slice.
        Ok(unsafe { socket::send(self.0.0, &[(buffer.as_ptr(), buffer.len())], 0) }?)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> Result<usize> {
        let buffers: Vec<_> = buffers.iter().map(|b| (b.as_ptr(), b.len())).collect();
        // SAFETY: slices.
        Ok(unsafe { socket::send(self.0.0, &buffers, 0) }?)
    }

    /// What was written is on its way already.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Read for RsocketStream {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for RsocketStream {
    #[inline]
    fn write(&mut self, buffer: &[u8]) -> Result<usize> {
        (&*self).write(buffer)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> Result<usize> {
        (&*self).write_vectored(buffers)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
