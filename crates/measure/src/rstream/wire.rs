//! A connection over rsockets or TCP, and the three ways to wait for it.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};

use rustix::event::{PollFd, PollFlags};
use shortwire_rsocket::net::{Builder, RsocketListener, RsocketStream};
use terminal::signals;

use super::{Mode, Rstream, Transport};

/// How many buffers the client may write directly.
const IOMAPS: u16 = 8;

pub enum Stream {
    Rsocket(RsocketStream),
    Tcp(TcpStream),
}

pub struct Wire {
    pub stream: Stream,
    mode: Mode,
}

pub enum Listener {
    Rsocket(RsocketListener),
    Tcp(TcpListener),
}

pub fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Polling => "polling",
        Mode::Block => "block",
        Mode::Async => "async",
    }
}

fn builder(args: &Rstream) -> Builder {
    let builder = Builder::new().iomaps(IOMAPS);
    match args.buffer {
        Some(bytes) => builder.send_buffer(bytes as usize).receive_buffer(bytes as usize),
        None => builder,
    }
}

impl Listener {
    pub fn bind(address: impl ToSocketAddrs, transport: Transport, args: &Rstream) -> Result<Self> {
        match transport {
            Transport::Rsocket => builder(args).listen(address).map(Self::Rsocket),
            Transport::Tcp => TcpListener::bind(address).map(Self::Tcp),
        }
    }

    pub fn port(&self) -> Result<u16> {
        match self {
            Self::Rsocket(listener) => listener.local_addr(),
            Self::Tcp(listener) => listener.local_addr(),
        }
        .map(|address| address.port())
    }

    pub fn accept(&self, mode: Mode) -> Result<Wire> {
        let stream = match self {
            Self::Rsocket(listener) => Stream::Rsocket(listener.accept()?.0),
            Self::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
        };
        Wire::new(stream, mode)
    }
}

impl Wire {
    pub fn connect(
        address: impl ToSocketAddrs,
        transport: Transport,
        args: &Rstream,
    ) -> Result<Self> {
        let stream = match transport {
            Transport::Rsocket => Stream::Rsocket(builder(args).connect(address)?),
            Transport::Tcp => Stream::Tcp(TcpStream::connect(address)?),
        };
        Self::new(stream, args.mode)
    }

    fn new(stream: Stream, mode: Mode) -> Result<Self> {
        match &stream {
            Stream::Rsocket(stream) => stream.set_nonblocking(mode != Mode::Block)?,
            Stream::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(mode != Mode::Block)?;
            }
        }
        Ok(Self { stream, mode })
    }

    /// Sleeps until there is something to read (or to write).
    pub fn wait(&self, write: bool) -> Result<()> {
        match &self.stream {
            Stream::Rsocket(stream) => {
                stream.wait(if write { libc::POLLOUT } else { libc::POLLIN }, None).map(drop)
            }
            Stream::Tcp(stream) => {
                let mut fds =
                    [PollFd::new(stream, if write { PollFlags::OUT } else { PollFlags::IN })];
                rustix::event::poll(&mut fds, None)?;
                Ok(())
            }
        }
    }

    #[inline]
    fn again(&self, e: &std::io::Error, write: bool) -> Result<bool> {
        match e.kind() {
            ErrorKind::WouldBlock if self.mode == Mode::Async => self.wait(write).map(|()| true),
            ErrorKind::WouldBlock => Ok(!signals::interrupted()),
            ErrorKind::Interrupted => Ok(!signals::interrupted()),
            _ => Ok(false),
        }
    }

    /// All of `bytes`.
    #[inline]
    pub fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let sent = match &mut self.stream {
                Stream::Rsocket(stream) => stream.write(bytes),
                Stream::Tcp(stream) => stream.write(bytes),
            };
            match sent {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if self.again(&e, true)? => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// What has arrived, at least one byte.
    #[inline]
    pub fn recv_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            let got = match &mut self.stream {
                Stream::Rsocket(stream) => stream.read(buffer),
                Stream::Tcp(stream) => stream.read(buffer),
            };
            match got {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => return Ok(n),
                Err(e) if self.again(&e, false)? => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Fills `buffer`.
    #[inline]
    pub fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            done += self.recv_some(&mut buffer[done..])?;
        }
        Ok(())
    }
}
