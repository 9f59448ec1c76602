//! A nonblocking connection with what is waiting to go out and what has come in.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;

use crate::address::Stream;
use crate::epoll::Epoll;

pub struct Channel {
    stream: Stream,
    token: u64,
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
    written: usize,
    waits_for_space: bool,
}

#[derive(PartialEq, Eq, Debug)]
pub enum Input {
    More,
    Ended,
}

impl Channel {
    pub fn new(stream: Stream, token: u64, epoll: &Epoll) -> io::Result<Channel> {
        stream.set_nodelay()?;
        stream.set_nonblocking()?;
        epoll.add(stream.as_raw_fd(), token)?;
        Ok(Channel {
            stream,
            token,
            input: vec![0; 4096],
            filled: 0,
            output: Vec::new(),
            written: 0,
            waits_for_space: false,
        })
    }

    /// One read, as far as the buffer has room: the set is level-triggered and will say if there is
    /// more.
    pub fn receive(&mut self) -> io::Result<Input> {
        if self.filled == self.input.len() {
            self.input.resize(self.input.len() * 2, 0);
        }
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => Ok(Input::Ended),
            Ok(count) => {
                self.filled += count;
                Ok(Input::More)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(Input::More)
            }
            Err(error) => Err(error),
        }
    }

    pub fn received(&self) -> &[u8] {
        &self.input[..self.filled]
    }

    pub fn consume(&mut self, count: usize) {
        self.input.copy_within(count..self.filled, 0);
        self.filled -= count;
    }

    /// Sends now what the socket takes; the rest when epoll says that there is room.
    pub fn send(&mut self, bytes: &[u8], epoll: &Epoll) -> io::Result<()> {
        self.output.extend_from_slice(bytes);
        self.flush(epoll)
    }

    pub fn flush(&mut self, epoll: &Epoll) -> io::Result<()> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.wait_for_space(true, epoll);
                }
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.written = 0;
        self.wait_for_space(false, epoll)
    }

    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    fn wait_for_space(&mut self, wanted: bool, epoll: &Epoll) -> io::Result<()> {
        if wanted != self.waits_for_space {
            epoll.want_write(self.stream.as_raw_fd(), self.token, wanted)?;
            self.waits_for_space = wanted;
        }
        Ok(())
    }
}
