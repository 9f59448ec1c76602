//! A connection over rsockets or TCP, and the three ways to wait for it.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use shortwire_rsocket::net::{self, Builder, RsocketListener, RsocketStream};
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

    /// As [`Self::accept`], of somebody who comes within this time.
    pub fn accept_within(&self, time: Duration, mode: Mode) -> Result<Wire> {
        let came = match self {
            Self::Rsocket(listener) => {
                let fd = listener.as_raw_fd();
                net::poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], Some(time))?
            }
            Self::Tcp(listener) => {
                let time = Timespec::try_from(time).ok();
                rustix::event::poll(&mut [PollFd::new(listener, PollFlags::IN)], time.as_ref())?
            }
        };
        if came == 0 { Err(ErrorKind::TimedOut.into()) } else { self.accept(mode) }
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

    /// The address of this end.
    pub fn here(&self) -> Result<IpAddr> {
        match &self.stream {
            Stream::Rsocket(stream) => stream.local_addr(),
            Stream::Tcp(stream) => stream.local_addr(),
        }
        .map(|address| address.ip())
    }

    /// Whether calls may block, which a thread with several streams cannot use.
    pub fn set_blocking(&self, on: bool) -> Result<()> {
        match &self.stream {
            Stream::Rsocket(stream) => stream.set_nonblocking(!on),
            Stream::Tcp(stream) => stream.set_nonblocking(!on),
        }
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Sleeps until there is something to read (or to write).
    pub fn wait(&self, write: bool) -> Result<()> {
        wait_any(std::iter::once((self, !write, write)))
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

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match &mut self.stream {
            Stream::Rsocket(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    /// Never 0: the end is an error.
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let got = match &mut self.stream {
            Stream::Rsocket(stream) => stream.read(buffer),
            Stream::Tcp(stream) => stream.read(buffer),
        };
        if matches!(got, Ok(0)) { Err(ErrorKind::UnexpectedEof.into()) } else { got }
    }

    /// What there is room for; 0 if there is none. Only while calls do not block.
    #[inline]
    pub fn send_now(&mut self, bytes: &[u8]) -> Result<usize> {
        or_later(self.write(bytes))
    }

    /// What has arrived; 0 if nothing has. Only while calls do not block.
    #[inline]
    pub fn recv_now(&mut self, buffer: &mut [u8]) -> Result<usize> {
        or_later(self.read(buffer))
    }

    /// All of `bytes`.
    #[inline]
    pub fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match self.write(bytes) {
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
            match self.read(buffer) {
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

#[inline]
fn or_later(result: Result<usize>) -> Result<usize> {
    match result {
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}

/// Sleeps until there is something to read of one of them, or room in one, where that is asked.
pub fn wait_any<'a>(wires: impl Iterator<Item = (&'a Wire, bool, bool)>) -> Result<()> {
    let (mut rsockets, mut tcp) = (Vec::new(), Vec::new());
    for (wire, read, write) in wires {
        match &wire.stream {
            Stream::Rsocket(stream) => {
                let events =
                    if read { libc::POLLIN } else { 0 } | if write { libc::POLLOUT } else { 0 };
                rsockets.push(libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 });
            }
            Stream::Tcp(stream) => {
                let mut events = PollFlags::empty();
                events.set(PollFlags::IN, read);
                events.set(PollFlags::OUT, write);
                tcp.push(PollFd::new(stream, events));
            }
        }
    }
    // All are of one transport.
    match tcp.is_empty() {
        true => net::poll(&mut rsockets, None)?,
        false => rustix::event::poll(&mut tcp, None)?,
    };
    Ok(())
}
