//! The other end is in another guest that shares the bar: found through the broker there
//! (`crate::broker`).
//!
//! Roles are as on one machine: the end with the lower address listens under the connection's name,
//! for the broker of its own guest to come; the other calls. One call per address and tenth of a
//! second until it is answered, and none for a while to an address where no broker was.

use core::sync::atomic::AtomicU64;

use super::rendezvous::{Channel, Found, Rendezvous, listen, often, seldom};
use super::*;
use crate::bar;
use crate::broker::{Kind, Message, port, proof};
use crate::channel::{Silence, stream};
use crate::conn::upgrade::{Broker, Met, Seeking};
use crate::directory::random;
use crate::hash::keyed as hash;
use crate::inet::Addr;

/// How long an address without a broker is left alone.
const REFUSED: u64 = 60_000_000_000;
/// How long an address is left alone whose broker had no time for us.
const BUSY: u64 = 5_000_000_000;
/// A broker that hangs up sooner has no time for us; later, we have said nothing for too long.
const SOON: u64 = 500_000_000;
/// How long others wait for the first call to an address: who made it may fall silent before it
/// looks for the answer.
const OTHERS: u64 = 100_000_000;
/// How long a call may take to get through.
const PATIENCE: u64 = 2_000_000_000;
/// Looks at a broker, or a process, that says nothing.
const LOOKS: u32 = 2048;

/// One address that was called, and until when it is not to be called again.
struct Called {
    key: AtomicU64,
    until: AtomicU64,
    /// The last call.
    since: AtomicU64,
}

static CALLED: [Called; 64] = [const {
    Called { key: AtomicU64::new(0), until: AtomicU64::new(0), since: AtomicU64::new(0) }
}; 64];

fn called(address: &Addr) -> &'static Called {
    let key = hash([0; 2], &[&address.mapped()]).max(1);
    // The place of another that is as likely as any is taken over: then one call too many is made.
    let at = &CALLED[key as usize % CALLED.len()];
    if at.key.swap(key, Relaxed) != key {
        at.until.store(0, Relaxed);
    }
    at
}

impl Rendezvous for Broker {
    fn begin(conn: &Conn, _: i32, role: Role) -> Found {
        if role == Role::Client {
            conn.upgrade.seek(Seeking::Broker(Broker::Calls));
            return Found::Again;
        }
        match listen(conn) {
            Ok(listener) => {
                conn.upgrade.seek(Seeking::Broker(Broker::Listens(listener)));
                Found::Again
            }
            Err(found) => found,
        }
    }

    fn look(self, conn: &Conn, _: i32) -> Found {
        match self {
            Broker::Calls => call(conn),
            Broker::Dials(fd) => dialling(conn, fd),
            Broker::Asks(fd) => asking(conn, fd),
            Broker::Hands(fd) => handing(conn, fd),
            Broker::Listens(listener) => meet(conn, listener),
            Broker::Handed(socket) => handed(conn, socket),
        }
    }

    fn gap(self, ops: u32, looks: u32) -> u32 {
        match self {
            Broker::Calls => seldom(ops),
            Broker::Listens(_) => often(ops, looks),
            // A network lies between.
            _ => ops / 64 + 1,
        }
    }

    fn tires(self, conn: &Conn, ops: u32) -> Option<Reason> {
        (ops > GIVE_UP_FAR).then(|| match conn.reason() {
            why @ (reason::NO_BROKER | reason::BROKER | reason::FD_LIMIT) => why,
            _ => reason::PEER_NO_SMC,
        })
    }

    fn is_alone(self) -> bool {
        matches!(self, Broker::Calls | Broker::Listens(_))
    }

    fn close(self, _: &Conn) {
        match self {
            Broker::Calls => {}
            Broker::Dials(fd)
            | Broker::Asks(fd)
            | Broker::Hands(fd)
            | Broker::Listens(fd)
            | Broker::Handed(fd) => hidden::close(fd),
        }
    }
}

/// Goes on to the next step, whose looks are counted anew.
fn next(conn: &Conn, at: Broker) -> Found {
    conn.upgrade.seek(Seeking::Broker(at));
    conn.upgrade.looks.store(0, Relaxed);
    Found::Nobody
}

/// Calls the broker at the peer's address.
fn call(conn: &Conn) -> Found {
    let [local, peer] = conn.identity.names();
    let (place, now) = (called(&peer), sys::coarse_ns());
    if now < place.until.load(Relaxed) {
        conn.set_reason(reason::NO_BROKER);
        return Found::Nobody;
    }
    if !hidden::room_to_stay() {
        conn.set_reason(reason::FD_LIMIT);
        return Found::Nobody;
    }
    place.since.store(now, Relaxed);
    place.until.store(now + OTHERS, Relaxed);
    if bar::is_short() {
        // The broker does the same for its guest, so that there is room when buffers are taken.
        bar::reclaim();
    }
    match stream::dial(&local, &peer, port()) {
        Ok(fd) => next(conn, Broker::Dials(fd)),
        Err(NoSocket::NoRoom) => Found::Nobody,
        Err(_) => nobody(conn, reason::NO_BROKER),
    }
}

/// No broker is there, or none for us: the address is left alone for a while.
fn nobody(conn: &Conn, why: Reason) -> Found {
    called(&conn.identity.names()[1]).until.store(sys::coarse_ns() + REFUSED, Relaxed);
    again(conn, why)
}

/// This call came to nothing; there may be another.
fn again(conn: &Conn, why: Reason) -> Found {
    rendezvous::close(conn);
    conn.set_reason(why);
    conn.upgrade.seek(Seeking::Broker(Broker::Calls));
    Found::Nobody
}

/// What we say first. The same whenever it is asked for, so that nothing has to be kept.
fn hello(conn: &Conn, fd: i32) -> Option<Message> {
    static KEY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    let key = [0, 1].map(|i| {
        let fresh = random() | 1;
        KEY[i].compare_exchange(0, fresh, Relaxed, Relaxed).map_or_else(|old| old, |_| fresh)
    });
    let [local, peer] = conn.identity.names();
    let ends = [local.key(), peer.key()];
    let own = inet::names(fd)?[0].key();
    let at = [sys::getpid().to_ne_bytes(), conn.own().inode.load(Relaxed).to_ne_bytes()];
    let word = |n: u8| hash(key, &[&[n], &ends[0], &ends[1], &own, &at[0], &at[1]]);
    Some(Message { kind: Kind::Hello, bar: bar::id(), words: [word(0), word(1)], ends })
}

/// Whether the broker has answered the call.
fn dialling(conn: &Conn, fd: i32) -> Found {
    let mut error = 0i32;
    let ready = sys::poll_now(fd, libc::POLLOUT) != 0;
    if !ready && sys::coarse_ns() < called(&conn.identity.names()[1]).since.load(Relaxed) + PATIENCE
    {
        return Found::Nobody;
    }
    let asked = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    if !ready || asked < 0 || error != 0 {
        return nobody(conn, reason::NO_BROKER);
    }
    let said = hello(conn, fd).is_some_and(|hello| stream::send(fd, &hello.encode()));
    if !said {
        return nobody(conn, reason::NO_BROKER);
    }
    next(conn, Broker::Asks(fd))
}

fn listen_to(conn: &Conn, fd: i32) -> Result<Option<Message>, Reason> {
    let mut buffer = [0u8; channel::MAX];
    match stream::recv(fd, &mut buffer) {
        Ok(n) => Message::decode(&buffer[..n]).map(Some).ok_or(reason::BROKER),
        Err(Silence::HungUp) => Err(reason::NO_BROKER),
        Err(Silence::Nothing) if may_be_silent(conn) => Ok(None),
        Err(_) => Err(reason::BROKER),
    }
}

fn may_be_silent(conn: &Conn) -> bool {
    conn.upgrade.looks.load(Relaxed) < LOOKS
}

/// The broker has to show that it shares the bar; then we do.
fn asking(conn: &Conn, fd: i32) -> Found {
    let told = match listen_to(conn, fd) {
        Ok(None) => return Found::Nobody,
        Ok(Some(told)) => told,
        Err(reason::NO_BROKER) => {
            let (place, now) = (called(&conn.identity.names()[1]), sys::coarse_ns());
            if now.saturating_sub(place.since.load(Relaxed)) < SOON {
                place.until.store(now + BUSY, Relaxed);
            }
            return again(conn, reason::NO_BROKER);
        }
        Err(why) => return nobody(conn, why),
    };
    let (Some(hello), Some(secret)) = (hello(conn, fd), bar::secret()) else {
        return nobody(conn, reason::BROKER);
    };
    let [challenge, theirs] = told.words;
    if told.kind != Kind::Challenge || theirs != proof(secret, Kind::Challenge, &hello, challenge) {
        return nobody(conn, reason::BROKER);
    }
    let own = proof(secret, Kind::Proof, &hello, challenge);
    let answer = Message { words: [own, 0], ..Message::new(Kind::Proof) };
    if !stream::send(fd, &answer.encode()) {
        return nobody(conn, reason::BROKER);
    }
    // There is a broker of ours: others may call it at once.
    called(&conn.identity.names()[1]).until.store(0, Relaxed);
    next(conn, Broker::Hands(fd))
}

/// Has the other end got the channel? Then it is asked as any other.
fn handing(conn: &Conn, fd: i32) -> Found {
    match listen_to(conn, fd) {
        Ok(None) => Found::Nobody,
        Ok(Some(Message { kind: Kind::Go, .. })) => {
            conn.upgrade.meet(Met::Broker(fd));
            Found::Peer(Role::Client)
        }
        Ok(Some(Message { kind: Kind::Nobody, .. })) => again(conn, reason::PEER_NO_SMC),
        Ok(_) => nobody(conn, reason::BROKER),
        Err(why) => again(conn, why),
    }
}

/// The end that listens: has the broker of this guest come?
fn meet(conn: &Conn, listener: i32) -> Found {
    let socket = match channel::accept(listener) {
        Ok(socket) => socket,
        Err(NoSocket::NotYet | NoSocket::NoRoom) => return Found::Nobody,
        Err(_) => return Found::Never(reason::RENDEZVOUS),
    };
    // A broker is root's or our own user's.
    let own = rustix::process::geteuid().as_raw();
    if !channel::peer(socket).is_some_and(|cred| cred.uid == 0 || cred.uid == own) {
        hidden::close(socket);
        return Found::Nobody;
    }
    channel::take_descriptors(socket);
    if !channel::send(socket, &Message::new(Kind::Ready).encode(), None) {
        hidden::close(socket);
        return Found::Nobody;
    }
    // The name is not needed until that has come to nothing.
    rendezvous::close(conn);
    next(conn, Broker::Handed(socket));
    Found::Again
}

/// The channel from the broker, which leads to where the connection leads.
fn handed(conn: &Conn, socket: i32) -> Found {
    let mut buffer = [0u8; channel::MAX];
    let (n, passed) = match channel::recv(socket, &mut buffer) {
        Err(Silence::Nothing) if may_be_silent(conn) => return Found::Nobody,
        Ok(got) => got,
        Err(_) => (0, None),
    };
    // Whatever comes of it, looking begins anew.
    rendezvous::close(conn);
    let is_ours = |&fd: &i32| {
        let hosts = |names: [Addr; 2]| names.map(|name| name.mapped());
        Message::decode(&buffer[..n]).is_some_and(|told| told.kind == Kind::Handed)
            && TcpInfo::of(fd).is_some_and(|info| info.established())
            && inet::names(fd).is_some_and(|names| hosts(names) == hosts(conn.identity.names()))
    };
    match passed {
        Some(fd) if is_ours(&fd) => {
            conn.upgrade.meet(Met::Broker(hidden::park(fd)));
            Found::Peer(Role::Server)
        }
        other => {
            if let Some(fd) = other {
                sys::close(fd);
            }
            // Somebody else's broker, or one that has ended: another may come.
            Found::Nobody
        }
    }
}

/// A channel to a process of another guest. It has shown that it shares the bar, or its broker has;
/// that is all that is known.
#[derive(Clone, Copy)]
pub(super) struct Stream(pub i32);

impl Channel for Stream {
    fn admit(self, _: &Conn) -> Result<Cred, Reason> {
        Ok(Cred::ELSEWHERE)
    }

    fn peer(self, conn: &Conn) -> Result<Cred, Reason> {
        self.admit(conn)
    }

    fn say(self, _: &Conn, message: &[u8], pass: Option<i32>) -> bool {
        pass.is_none() && stream::send(self.0, message)
    }

    fn hear(self, _: &Conn, out: &mut [u8; channel::MAX]) -> Result<(usize, Option<i32>), Silence> {
        stream::recv(self.0, out).map(|n| (n, None))
    }

    fn peek(self, _: &Conn, out: &mut [u8; channel::MAX]) -> Result<usize, Silence> {
        stream::peek(self.0, out)
    }

    fn close(self, _: &Conn) {
        hidden::close(self.0);
    }
}
