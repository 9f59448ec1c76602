//! TCP and Unix sockets behind one type each, so that every mode runs over both.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;

use crate::failure::{Doing, Failure, Result};

#[derive(Clone, Debug)]
pub enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("give a path after unix:".into())
            } else {
                Ok(Address::Unix(path.into()))
            };
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Address::Tcp(text.into()))
            }
            _ => Err("give ADDRESS:PORT such as 127.0.0.1:5000 or [::1]:0, or unix:PATH".into()),
        }
    }
}

impl Address {
    pub fn listen(&self) -> Result<Listener> {
        match self {
            Address::Tcp(address) => TcpListener::bind(address)
                .map(Listener::Tcp)
                .doing(format!("cannot listen on {address}")),
            Address::Unix(path) => UnixListener::bind(path).map(Listener::Unix).doing(format!(
                "cannot listen on {} (remove a left-over socket file first)",
                path.display()
            )),
        }
    }

    pub fn connect(&self) -> Result<Stream> {
        match self {
            Address::Tcp(address) => TcpStream::connect(address)
                .map(Stream::Tcp)
                .doing(format!("cannot connect to {address}; is the server running?")),
            Address::Unix(path) => UnixStream::connect(path)
                .map(Stream::Unix)
                .doing(format!("cannot connect to {}", path.display())),
        }
    }
}

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// The address in the form that `--connect` takes.
    pub fn chosen(&self) -> Result<String> {
        match self {
            Listener::Tcp(listener) => listener
                .local_addr()
                .map(|address| address.to_string())
                .doing("cannot read the listening address"),
            Listener::Unix(listener) => {
                let address = listener.local_addr().doing("cannot read the listening address")?;
                Ok(format!("unix:{}", address.as_pathname().unwrap_or("?".as_ref()).display()))
            }
        }
    }

    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }

    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener) => listener.set_nonblocking(true),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix(listener) => listener.as_raw_fd(),
        }
    }
}

pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// As every program does that sends small messages and waits for answers.
    pub fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nodelay(true),
            Stream::Unix(_) => Ok(()),
        }
    }

    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    pub fn finish_writing(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Fills `buffer`; `false` at an orderly end before its first byte.
    pub fn read_message(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the stream ended within a message",
                    ));
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

/// A thread per connection. Wrong data ends the server with that error; a client that went away
/// does not.
pub fn serve(listener: &Listener, limit: u64, handler: fn(Stream) -> Result<()>) -> Result<()> {
    let (report, ended) = mpsc::channel();
    let mut under_way = 0u64;
    let mut accepted = 0u64;
    loop {
        while under_way > 0 && accepted == limit {
            settle(ended.recv().expect("this thread holds a sender"))?;
            under_way -= 1;
        }
        if limit > 0 && accepted == limit {
            return Ok(());
        }
        let stream = listener.accept().doing("cannot accept a connection")?;
        accepted += 1;
        under_way += 1;
        let report = report.clone();
        thread::spawn(move || {
            let outcome = handler(stream);
            if let Err(failure @ Failure::WrongData { .. }) = &outcome {
                // The accepting thread may sleep in accept() for ever: say it and end from here.
                eprintln!("shortwire-peers: {failure}");
                std::process::exit(1);
            }
            let _ = report.send(outcome);
        });
        while let Ok(outcome) = ended.try_recv() {
            settle(outcome)?;
            under_way -= 1;
        }
    }
}

fn settle(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(failure @ Failure::WrongData { .. }) => Err(failure),
        Err(failure) => {
            eprintln!("shortwire-peers: a connection ended early: {failure}");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert!(matches!("127.0.0.1:0".parse(), Ok(Address::Tcp(_))));
        assert!(matches!("[::1]:80".parse(), Ok(Address::Tcp(_))));
        assert!(matches!("unix:/tmp/s".parse(), Ok(Address::Unix(_))));
        for bad in ["", "unix:", "127.0.0.1", ":80", "127.0.0.1:99999"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
