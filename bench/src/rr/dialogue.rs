//! What is asked and what must be answered: of our own server, of anybody's echo, of memcached, of
//! redis.

use std::io::Write;

use crate::address::{Address, Stream};
use crate::args::{Mode, Protocol};
use crate::failure::{Doing, Failure, Result};
use crate::pattern::{Pattern, message_start};
use crate::preamble::Preamble;

/// Where memcached keeps the value that is asked for.
const KEY: &str = "shortwire-peers";

pub struct Dialogue {
    protocol: Protocol,
    size: usize,
    /// In our own words, which differ from message to message.
    requests: Pattern,
    responses: Pattern,
    /// In others' words, which are always the same.
    request: Vec<u8>,
    response: Vec<u8>,
}

impl Dialogue {
    pub fn new(protocol: Protocol, size: usize) -> Dialogue {
        let responses = if protocol == Protocol::Echo {
            Pattern::request(size)
        } else {
            Pattern::response(size)
        };
        let (request, response) = match protocol {
            Protocol::Peers | Protocol::Echo => Default::default(),
            Protocol::Memcached => (
                format!("get {KEY}\r\n"),
                format!("VALUE {KEY} 0 {size}\r\n{}\r\nEND\r\n", value(size)),
            ),
            Protocol::Redis => ("PING\r\n".into(), "+PONG\r\n".into()),
        };
        let (request, response) = (request.into_bytes(), response.into_bytes());
        Dialogue { protocol, size, requests: Pattern::request(size), responses, request, response }
    }

    /// Once, before all connections: the value that they will ask for.
    pub fn prepare(&self, address: &Address) -> Result<()> {
        if self.protocol != Protocol::Memcached {
            return Ok(());
        }
        let mut stream = address.connect()?;
        let set = format!("set {KEY} 0 0 {}\r\n{}\r\n", self.size, value(self.size));
        stream.write_all(set.as_bytes()).doing("cannot store the value")?;
        let mut answer = [0; b"STORED\r\n".len()];
        if !stream.read_message(&mut answer).doing("cannot read whether the value was stored")?
            || answer != *b"STORED\r\n"
        {
            return Err(Failure::Protocol(format!("memcached answered {}", answer.escape_ascii())));
        }
        Ok(())
    }

    /// What a connection says before its first request.
    pub fn opening(&self, id: u32) -> Vec<u8> {
        match self.protocol {
            Protocol::Peers => {
                Preamble { mode: Mode::Rr, size: self.size, id, requests: 0 }.encode().to_vec()
            }
            _ => Vec::new(),
        }
    }

    pub fn request(&self, id: u32, counter: u64) -> &[u8] {
        if self.request.is_empty() {
            self.requests.slice(message_start(id, counter, self.size), self.size)
        } else {
            &self.request
        }
    }

    pub fn response_size(&self) -> usize {
        if self.response.is_empty() { self.size } else { self.response.len() }
    }

    /// Both ways.
    pub fn bytes_per_message(&self) -> usize {
        self.request(0, 0).len() + self.response_size()
    }

    pub fn check(&self, id: u32, counter: u64, received: &[u8]) -> Result<()> {
        let bad = if self.response.is_empty() {
            let at = message_start(id, counter, self.size);
            self.responses.check(at, received).map_err(|bad| bad - at)
        } else {
            let same = |(got, want): (&u8, &u8)| got == want;
            let bad = received.iter().zip(&self.response).position(|pair| !same(pair));
            bad.map_or(Ok(()), |bad| Err(bad as u64))
        };
        let offset = |bad| counter * self.response_size() as u64 + bad;
        bad.map_err(|bad| Failure::WrongData { offset: offset(bad), what: "response" })
    }

    /// One request on a connection that waits for the answer.
    pub fn exchange(
        &self,
        stream: &mut Stream,
        id: u32,
        counter: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        stream.write_all(self.request(id, counter)).doing("cannot send a request")?;
        buffer.resize(self.response_size(), 0);
        if !stream.read_message(buffer).doing("cannot read a response")? {
            return Err(Failure::Protocol(
                "the server closed a connection instead of answering".into(),
            ));
        }
        self.check(id, counter, buffer)
    }
}

/// Text, so that no byte of it ends the value.
fn value(size: usize) -> String {
    ('a'..='z').cycle().take(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_accepts_its_answer_and_no_other() {
        let echo = Dialogue::new(Protocol::Echo, 100);
        echo.check(3, 7, echo.request(3, 7)).unwrap();
        assert!(echo.check(3, 8, echo.request(3, 7)).is_err());
        let peers = Dialogue::new(Protocol::Peers, 100);
        assert!(peers.check(3, 7, peers.request(3, 7)).is_err(), "an echo is no answer");
        let redis = Dialogue::new(Protocol::Redis, 100);
        redis.check(0, 0, b"+PONG\r\n").unwrap();
        assert!(matches!(
            redis.check(0, 2, b"+PING\r\n"),
            Err(Failure::WrongData { offset: 16, .. })
        ));
        let memcached = Dialogue::new(Protocol::Memcached, 3);
        memcached.check(0, 0, b"VALUE shortwire-peers 0 3\r\nabc\r\nEND\r\n").unwrap();
        assert_eq!(memcached.response_size(), b"VALUE shortwire-peers 0 3\r\nabc\r\nEND\r\n".len());
    }
}
