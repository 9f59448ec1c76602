//! A channel in memory, whose messages a test may lose, repeat or change on their way. One for each
//! thread.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::super::*;

/// What becomes of a message on its way.
pub enum Fate {
    Arrives,
    IsLost,
    ComesTwice,
    /// Another one comes in its place.
    Becomes(Vec<u8>),
}

/// Decides by the number of the message, from 0 on, and its bytes.
type Way = Box<dyn FnMut(usize, &[u8]) -> Fate>;

struct Talk {
    way: Way,
    said: usize,
    /// What is there for the server, and for the client.
    inbox: [VecDeque<(Vec<u8>, Option<i32>)>; 2],
    hung_up: [bool; 2],
    refused: [Option<Reason>; 2],
    instead: Option<Seeking>,
}

thread_local! {
    static TALK: RefCell<Option<Talk>> = const { RefCell::new(None) };
}

fn with<R>(f: impl FnOnce(&mut Talk) -> R) -> R {
    TALK.with_borrow_mut(|talk| f(talk.as_mut().expect("a talk has begun")))
}

/// A new conversation, whose messages pass this way.
pub fn begin(way: impl FnMut(usize, &[u8]) -> Fate + 'static) {
    let talk = Talk {
        way: Box::new(way),
        said: 0,
        inbox: Default::default(),
        hung_up: [false; 2],
        refused: [None; 2],
        instead: None,
    };
    TALK.set(Some(talk));
}

/// This side takes the other for somebody who may not be its peer.
pub fn refuse(side: Side, why: Reason) {
    with(|talk| talk.refused[side.0 as usize] = Some(why));
}

/// Who is not answered looks there.
pub fn look_instead(at: Seeking) {
    with(|talk| talk.instead = Some(at));
}

/// Messages that were said.
pub fn said() -> usize {
    with(|talk| talk.said)
}

/// Says something in the place of the other side.
pub fn forge(to: Side, raw: &[u8]) {
    with(|talk| talk.inbox[to.0 as usize].push_back((raw.to_vec(), None)));
}

/// Whether a side has hung up.
pub fn has_hung_up(side: Side) -> bool {
    with(|talk| talk.hung_up[side.0 as usize])
}

/// A side of the conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side(pub u32);

pub const SERVER: Side = Side(0);
pub const CLIENT: Side = Side(1);

impl Side {
    fn other(self) -> usize {
        1 - self.0 as usize
    }
}

impl Channel for Side {
    fn admit(self, conn: &Conn) -> Result<Cred, Reason> {
        let refused = with(|talk| talk.refused[self.0 as usize]);
        refused.filter(|_| !port::is_shown(conn)).map_or_else(|| self.peer(conn), Err)
    }

    fn peer(self, _: &Conn) -> Result<Cred, Reason> {
        Ok(Cred { pid: sys::getpid() as i32, uid: rustix::process::geteuid().as_raw(), id: 0 })
    }

    fn say(self, _: &Conn, message: &[u8], pass: Option<i32>) -> bool {
        // As over a socket, the sender keeps its own.
        let passed = || pass.map(|fd| sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) as i32);
        with(|talk| {
            if talk.hung_up[self.other()] {
                return false;
            }
            let fate = (talk.way)(talk.said, message);
            talk.said += 1;
            let (times, bytes) = match fate {
                Fate::Arrives => (1, message.to_vec()),
                Fate::IsLost => (0, Vec::new()),
                Fate::ComesTwice => (2, message.to_vec()),
                Fate::Becomes(other) => (1, other),
            };
            (0..times).for_each(|_| talk.inbox[self.other()].push_back((bytes.clone(), passed())));
            true
        })
    }

    fn hear(
        self,
        conn: &Conn,
        out: &mut [u8; channel::MAX],
    ) -> Result<(usize, Option<i32>), Silence> {
        let n = self.peek(conn, out)?;
        let passed =
            with(|talk| talk.inbox[self.0 as usize].pop_front()).and_then(|(_, passed)| passed);
        Ok((n, passed))
    }

    fn peek(self, _: &Conn, out: &mut [u8; channel::MAX]) -> Result<usize, Silence> {
        with(|talk| match talk.inbox[self.0 as usize].front() {
            Some((bytes, _)) if bytes.is_empty() => Err(Silence::HungUp),
            Some((bytes, _)) => {
                out[..bytes.len()].copy_from_slice(bytes);
                Ok(bytes.len())
            }
            None if talk.hung_up[self.other()] => Err(Silence::HungUp),
            None => Err(Silence::Nothing),
        })
    }

    fn instead(self) -> Option<Seeking> {
        with(|talk| talk.instead)
    }

    fn close(self, _: &Conn) {
        with(|talk| {
            talk.hung_up[self.0 as usize] = true;
            talk.inbox[self.0 as usize]
                .drain(..)
                .filter_map(|(_, passed)| passed)
                .for_each(|fd| _ = sys::close(fd));
        });
    }
}
