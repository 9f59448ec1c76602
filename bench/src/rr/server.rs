//! The answering side of `rr` and `short`.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use super::channel::{Channel, Input};
use crate::address::Listener;
use crate::args::Mode;
use crate::epoll::{Epoll, Ready};
use crate::failure::{Doing, Failure, Result};
use crate::pattern::{Pattern, message_start};
use crate::preamble::{self, Preamble};

const LISTENER: u64 = u64::MAX;

struct Session {
    channel: Channel,
    preamble: Option<Preamble>,
    answered: u64,
}

struct Server {
    mode: Mode,
    epoll: Epoll,
    sessions: HashMap<u64, Session>,
    /// By message size: clients of one run use one size.
    patterns: HashMap<usize, (Pattern, Pattern)>,
    accepted: u64,
}

/// Serves until `limit` connections have come and gone; for ever when it is 0.
pub fn serve(listener: &Listener, limit: u64, mode: Mode) -> Result<()> {
    listener.set_nonblocking().doing("cannot make the listener nonblocking")?;
    let epoll = Epoll::new().doing("cannot make an epoll set")?;
    epoll.add(listener.as_raw_fd(), LISTENER).doing("cannot watch the listener")?;
    let mut server =
        Server { mode, epoll, sessions: HashMap::new(), patterns: HashMap::new(), accepted: 0 };
    while limit == 0 || server.accepted < limit || !server.sessions.is_empty() {
        for ready in server.epoll.wait(None).doing("cannot wait for events")? {
            if ready.token == LISTENER {
                server.accept_all(listener)?;
            } else {
                server.serve_one(ready)?;
            }
        }
    }
    Ok(())
}

impl Server {
    fn accept_all(&mut self, listener: &Listener) -> Result<()> {
        loop {
            let stream = match listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(error).doing("cannot accept a connection"),
            };
            let token = self.accepted;
            self.accepted += 1;
            let channel =
                Channel::new(stream, token, &self.epoll).doing("cannot watch a new connection")?;
            self.sessions.insert(token, Session { channel, preamble: None, answered: 0 });
        }
    }

    /// Only wrong data ends the server: a client may go away whenever it likes.
    fn serve_one(&mut self, ready: Ready) -> Result<()> {
        let Some(session) = self.sessions.get_mut(&ready.token) else {
            return Ok(());
        };
        match session.advance(ready, self.mode, &self.epoll, &mut self.patterns) {
            Ok(true) => {}
            Ok(false) => drop(self.sessions.remove(&ready.token)),
            Err(failure @ Failure::WrongData { .. }) => return Err(failure),
            Err(failure) => {
                eprintln!("shortwire-peers: a connection ended early: {failure}");
                self.sessions.remove(&ready.token);
            }
        }
        Ok(())
    }
}

impl Session {
    /// Answers what has arrived; `false` when the connection is done.
    fn advance(
        &mut self,
        ready: Ready,
        mode: Mode,
        epoll: &Epoll,
        patterns: &mut HashMap<usize, (Pattern, Pattern)>,
    ) -> Result<bool> {
        if ready.writable {
            self.channel.flush(epoll).doing("cannot send")?;
        }
        if ready.readable && self.channel.receive().doing("cannot read")? == Input::Ended {
            return Ok(false);
        }
        let preamble = match self.preamble {
            Some(preamble) => preamble,
            None => match self.channel.received().first_chunk::<{ preamble::LENGTH }>() {
                Some(head) => {
                    let preamble = Preamble::decode(head, mode)?;
                    self.channel.consume(preamble::LENGTH);
                    *self.preamble.insert(preamble)
                }
                None => return Ok(true),
            },
        };
        let size = preamble.size;
        let (requests, responses) = patterns
            .entry(size)
            .or_insert_with(|| (Pattern::request(size), Pattern::response(size)));
        while let Some(request) = self.channel.received().get(..size) {
            let at = message_start(preamble.id, self.answered, size);
            requests.check(at, request).map_err(|bad| Failure::WrongData {
                offset: self.answered * size as u64 + (bad - at),
                what: "request",
            })?;
            self.channel.consume(size);
            self.answered += 1;
            self.channel
                .send(responses.slice(at, size), epoll)
                .doing("cannot send the response")?;
        }
        let is_last = preamble.requests > 0 && self.answered >= u64::from(preamble.requests);
        Ok(!is_last || self.channel.has_output())
    }
}
