//! One call of a process of another machine, until its channel is in the hands of the other end of
//! its connection.
#![allow(unsafe_code)]

use std::net::{IpAddr, TcpStream};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::time::{Duration, Instant};

use dibs::ivshmem::Bar;
use smc::broker::{Kind, Message, proof};
use smc::channel::{Silence, stream};
use smc::inet::Addr;
use smc::{channel, hidden, inet};

use super::lease::Lease;

/// How long a call may take; somebody who is to be met may still be about to listen.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first two messages take no longer.
const SLOWEST: Duration = Duration::from_secs(1);

/// What comes of a turn.
pub enum Turn {
    Wait,
    Over,
}

enum State {
    Greeting,
    Challenged {
        hello: Message,
        word: u64,
    },
    /// Its proof was right: the end that it wants is to be found.
    Looking {
        ends: [Addr; 2],
    },
    /// It was found, and is about to say that it takes the channel.
    Handing {
        to: i32,
    },
}

pub struct Call {
    stream: i32,
    from: IpAddr,
    since: Instant,
    state: State,
}

impl Drop for Call {
    fn drop(&mut self) {
        hidden::close(self.stream);
        if let State::Handing { to } = self.state {
            hidden::close(to);
        }
    }
}

fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
    // SAFETY: a descriptor of a call, which closes it when it ends.
    #[expect(unsafe_code, reason = "the library's descriptors are numbers")]
    unsafe {
        BorrowedFd::borrow_raw(fd)
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

/// What `heard` is the length of.
fn read(raw: &[u8], heard: Result<usize, Silence>) -> Result<Option<Message>, ()> {
    match heard {
        Ok(n) => Message::decode(&raw[..n]).map(Some).ok_or(()),
        Err(Silence::Nothing) => Ok(None),
        Err(_) => Err(()),
    }
}

impl Call {
    /// None if it cannot be waited for.
    pub fn new(stream: TcpStream, from: IpAddr) -> Option<Call> {
        stream.set_nodelay(true).ok()?;
        stream.set_nonblocking(true).ok()?;
        hidden::room().then(|| Call {
            stream: hidden::park(stream.into_raw_fd()),
            from,
            since: Instant::now(),
            state: State::Greeting,
        })
    }

    pub fn from(&self) -> IpAddr {
        self.from
    }

    /// Whether it has not proved itself.
    pub fn is_stranger(&self) -> bool {
        matches!(self.state, State::Greeting | State::Challenged { .. })
    }

    /// Whether it has to be looked at though nothing comes.
    pub fn waits(&self) -> bool {
        matches!(self.state, State::Looking { .. })
    }

    /// What the next turn comes from.
    pub fn awaited(&self) -> BorrowedFd<'_> {
        borrow(if let State::Handing { to } = self.state { to } else { self.stream })
    }

    fn say(&self, message: Message) -> bool {
        stream::send(self.stream, &message.encode())
    }

    fn end(&self, kind: Kind) -> Turn {
        self.say(Message::new(kind));
        Turn::Over
    }

    /// The next message of the other guest; an error if there is none to come.
    fn hear(&self) -> Result<Option<Message>, ()> {
        let mut buffer = [0; channel::MAX];
        let heard = stream::recv(self.stream, &mut buffer);
        read(&buffer, heard)
    }

    /// The next message of the process that listens here.
    fn hear_local(to: i32) -> Result<Option<Message>, ()> {
        let mut buffer = [0; channel::MAX];
        let heard = channel::recv(to, &mut buffer).map(|(n, passed)| {
            let uninvited = passed.map(smc::sys::close);
            if uninvited.is_some() { 0 } else { n }
        });
        read(&buffer, heard)
    }

    pub fn go_on(&mut self, lease: &mut Lease) -> Turn {
        let waited = self.since.elapsed();
        match &self.state {
            State::Greeting | State::Challenged { .. } if waited > SLOWEST => return Turn::Over,
            _ if waited > PATIENCE => return self.end(Kind::Nobody),
            _ => {}
        }
        match self.state {
            State::Greeting => match self.hear() {
                Ok(None) => Turn::Wait,
                Ok(Some(hello)) if hello.kind == Kind::Hello => self.challenge(lease.bar(), hello),
                _ => Turn::Over,
            },
            State::Challenged { hello, word } => match self.hear() {
                Ok(None) => Turn::Wait,
                Ok(Some(told)) if told.kind == Kind::Proof => {
                    if told.words[0] != proof(lease.bar().secret(), Kind::Proof, &hello, word) {
                        return self.end(Kind::Refused);
                    }
                    lease.make_room();
                    self.state = State::Looking { ends: hello.ends.map(|key| Addr::of_key(&key)) };
                    self.look()
                }
                _ => Turn::Over,
            },
            State::Looking { .. } => match self.hear() {
                Ok(None) => self.look(),
                // It has no more to say before it is answered.
                _ => Turn::Over,
            },
            State::Handing { to } => match Call::hear_local(to) {
                Ok(None) => Turn::Wait,
                Ok(Some(told)) if told.kind == Kind::Ready => {
                    let handed = Message::new(Kind::Handed).encode();
                    if !channel::send(to, &handed, Some(self.stream)) {
                        return self.end(Kind::Nobody);
                    }
                    // The channel is the other end's now: it speaks only when it was spoken to.
                    self.end(Kind::Go)
                }
                _ => self.end(Kind::Nobody),
            },
        }
    }

    /// Only a machine itself may ask for its connections, and only for those to us.
    fn challenge(&mut self, bar: &Bar, hello: Message) -> Turn {
        let hosts = inet::names(self.stream).map(|[own, theirs]| [theirs.mapped(), own.mapped()]);
        let claimed = hello.ends.map(|key| Addr::of_key(&key).mapped());
        if hello.bar != bar.id() || hosts != Some(claimed) {
            return self.end(Kind::Refused);
        }
        let word = random();
        let told = proof(bar.secret(), Kind::Challenge, &hello, word);
        self.state = State::Challenged { hello, word };
        if self.say(Message { words: [word, told], ..Message::new(Kind::Challenge) }) {
            Turn::Wait
        } else {
            Turn::Over
        }
    }

    /// Calls who listens under the connection's name, if that is who owns the connection.
    fn look(&mut self) -> Turn {
        let State::Looking { ends: [theirs, own] } = self.state else { return Turn::Over };
        if theirs.key() <= own.key() {
            return self.end(Kind::Refused);
        }
        let Ok(to) = channel::connect(&own, &theirs) else { return Turn::Wait };
        // Anybody can listen under any name.
        let owner = inet::peer_uid(&[theirs, own]).ok().flatten();
        let listens = channel::peer(to).map(|cred| cred.uid);
        if owner.is_none() || listens != owner && listens != Some(0) {
            hidden::close(to);
            return Turn::Wait;
        }
        channel::take_descriptors(to);
        self.state = State::Handing { to };
        Turn::Wait
    }
}
