//! The other end is in another guest that shares the bar: found through the broker there (`broker.rs`).
//!
//! Roles are as on one machine: the end with the lower address listens under the connection's name, for the broker of its
//! own guest to come; the other calls. One call per address and tenth of a second until it is answered, and none for a while
//! to an address where no broker was.

use core::sync::atomic::AtomicU64;

use super::*;
use crate::bar;
use crate::broker::{self, Kind, Message};
use crate::hash::keyed as hash;
use crate::inet::Addr;

/// How long an address without a broker is left alone.
const REFUSED: u64 = 60_000_000_000;
/// How long an address is left alone whose broker had no time for us.
const BUSY: u64 = 5_000_000_000;
/// A broker that hangs up sooner has no time for us; later, we have said nothing for too long.
const SOON: u64 = 500_000_000;
/// How long others wait for the first call to an address: who made it may fall silent before it looks for the answer.
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

static CALLED: [Called; 64] =
    [const { Called { key: AtomicU64::new(0), until: AtomicU64::new(0), since: AtomicU64::new(0) } }; 64];

fn called(address: &Addr) -> &'static Called {
    let key = hash([0; 2], &[&address.mapped()]).max(1);
    // The place of another that is as likely as any is taken over: then one call too many is made.
    let at = &CALLED[key as usize % CALLED.len()];
    if at.key.swap(key, Relaxed) != key {
        at.until.store(0, Relaxed);
    }
    at
}

/// Whether this connection leads to another machine, perhaps to a guest that shares the bar.
pub(super) fn is_remote(conn: &Conn) -> bool {
    !witness::watches(conn) && !inet::is_local(&conn.names())
}

pub(super) fn is_undecided(conn: &Conn) -> bool {
    use stage::*;
    matches!(conn.stage.load(Relaxed), START | LISTENING | CALLING | DIALLING | ASKING | HANDING | HANDED)
}

/// Calls the broker at the peer's address.
pub(super) fn call(conn: &Conn) -> Next {
    let [local, peer] = conn.names();
    let (place, now) = (called(&peer), sys::coarse_ns());
    if now < place.until.load(Relaxed) {
        conn.reason.store(reason::NO_BROKER.code(), Relaxed);
        return Next::Later;
    }
    if !hidden::room_to_stay() {
        conn.reason.store(reason::FD_LIMIT.code(), Relaxed);
        return Next::Later;
    }
    place.since.store(now, Relaxed);
    place.until.store(now + OTHERS, Relaxed);
    if bar::is_short() {
        // The broker does the same for its guest, so that there is room when buffers are taken.
        bar::reclaim();
    }
    match channel::dial(&local, &peer, broker::port()) {
        Ok(ch) => {
            conn.meeting.store(ch, Relaxed);
            conn.looks.store(0, Relaxed);
            conn.stage.store(stage::DIALLING, Relaxed);
            Next::Later
        }
        Err(libc::EMFILE | libc::ENFILE) => Next::Later,
        Err(_) => nobody(conn, reason::NO_BROKER),
    }
}

/// No broker is there, or none for us: the address is left alone for a while.
fn nobody(conn: &Conn, why: Reason) -> Next {
    called(&conn.names()[1]).until.store(sys::coarse_ns() + REFUSED, Relaxed);
    again(conn, why)
}

/// This call came to nothing; there may be another.
fn again(conn: &Conn, why: Reason) -> Next {
    close_meeting(conn);
    conn.reason.store(why.code(), Relaxed);
    conn.stage.store(stage::CALLING, Relaxed);
    Next::Later
}

/// What we say first. The same whenever it is asked for, so that nothing has to be kept.
fn hello(conn: &Conn, ch: i32) -> Option<Message> {
    static KEY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    let key = [0, 1].map(|i| {
        let fresh = crate::directory::random() | 1;
        KEY[i].compare_exchange(0, fresh, Relaxed, Relaxed).map_or_else(|old| old, |_| fresh)
    });
    let [local, peer] = conn.names();
    let ends = [local.key(), peer.key()];
    let own = inet::names(ch)?[0].key();
    let at = [sys::getpid().to_ne_bytes(), conn.inode.load(Relaxed).to_ne_bytes()];
    let word = |n: u8| hash(key, &[&[n], &ends[0], &ends[1], &own, &at[0], &at[1]]);
    Some(Message { kind: Kind::Hello, bar: bar::id(), words: [word(0), word(1)], ends })
}

/// Whether the broker has answered the call.
pub(super) fn dialling(conn: &Conn) -> Next {
    let ch = conn.meeting.load(Relaxed);
    let mut error = 0i32;
    let ready = sys::poll_now(ch, libc::POLLOUT) != 0;
    if !ready && sys::coarse_ns() < called(&conn.names()[1]).since.load(Relaxed) + PATIENCE {
        return Next::Later;
    }
    let asked = sys::getsockopt(ch, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    if !ready || asked < 0 || error != 0 {
        return nobody(conn, reason::NO_BROKER);
    }
    let said = hello(conn, ch).is_some_and(|hello| channel::send(ch, &hello.encode(), None).is_ok());
    if !said {
        return nobody(conn, reason::NO_BROKER);
    }
    conn.looks.store(0, Relaxed);
    conn.stage.store(stage::ASKING, Relaxed);
    Next::Later
}

fn listen(conn: &Conn, ch: i32) -> Result<Option<Message>, Reason> {
    let mut buffer = [0u8; channel::MAX];
    match channel::recv(ch, &mut buffer) {
        Ok((0, None)) => Err(reason::NO_BROKER),
        Ok((n, None)) => Message::decode(&buffer[..n]).map(Some).ok_or(reason::BROKER),
        Err(libc::EAGAIN) if conn.looks.load(Relaxed) < LOOKS => Ok(None),
        _ => Err(reason::BROKER),
    }
}

/// The broker has to show that it shares the bar; then we do.
pub(super) fn asking(conn: &Conn) -> Next {
    let ch = conn.meeting.load(Relaxed);
    let told = match listen(conn, ch) {
        Ok(None) => return Next::Later,
        Ok(Some(told)) => told,
        Err(reason::NO_BROKER) => {
            let (place, now) = (called(&conn.names()[1]), sys::coarse_ns());
            if now.saturating_sub(place.since.load(Relaxed)) < SOON {
                place.until.store(now + BUSY, Relaxed);
            }
            return again(conn, reason::NO_BROKER);
        }
        Err(why) => return nobody(conn, why),
    };
    let (Some(hello), Some(secret)) = (hello(conn, ch), bar::secret()) else { return nobody(conn, reason::BROKER) };
    let [challenge, proof] = told.words;
    if told.kind != Kind::Challenge || proof != broker::proof(secret, Kind::Challenge, &hello, challenge) {
        return nobody(conn, reason::BROKER);
    }
    let own = broker::proof(secret, Kind::Proof, &hello, challenge);
    let answer = Message { words: [own, 0], ..Message::new(Kind::Proof) };
    if channel::send(ch, &answer.encode(), None).is_err() {
        return nobody(conn, reason::BROKER);
    }
    // There is a broker of ours: others may call it at once.
    called(&conn.names()[1]).until.store(0, Relaxed);
    conn.looks.store(0, Relaxed);
    conn.stage.store(stage::HANDING, Relaxed);
    Next::Later
}

/// Has the other end got the channel? Then it is asked as any other.
pub(super) fn handing(conn: &Conn, fd: i32) -> Next {
    let ch = conn.meeting.load(Relaxed);
    match listen(conn, ch) {
        Ok(None) => Next::Later,
        Ok(Some(Message { kind: Kind::Go, .. })) => client::propose(conn, fd, ch),
        Ok(Some(Message { kind: Kind::Nobody, .. })) => again(conn, reason::PEER_NO_SMC),
        Ok(_) => nobody(conn, reason::BROKER),
        Err(why) => again(conn, why),
    }
}

/// The end that listens: has the broker of this guest come?
pub(super) fn meet(conn: &Conn) -> Next {
    let ch = match channel::accept(conn.meeting.load(Relaxed)) {
        Ok(ch) => ch,
        Err(libc::EAGAIN | libc::EINTR | libc::EMFILE | libc::ENFILE | libc::ECONNABORTED) => return Next::Later,
        Err(_) => return Next::Tcp(reason::RENDEZVOUS),
    };
    // A broker is root's or our own user's.
    let own = rustix::process::geteuid().as_raw();
    if !channel::peer(ch).is_some_and(|cred| cred.uid == 0 || cred.uid == own) {
        hidden::close(ch);
        return Next::Later;
    }
    channel::take_descriptors(ch);
    if channel::send(ch, &Message::new(Kind::Ready).encode(), None).is_err() {
        hidden::close(ch);
        return Next::Later;
    }
    // The name is not needed until that has come to nothing.
    close_meeting(conn);
    conn.meeting.store(ch, Relaxed);
    conn.looks.store(0, Relaxed);
    conn.stage.store(stage::HANDED, Relaxed);
    Next::On
}

/// The channel from the broker, which leads to where the connection leads.
pub(super) fn handed(conn: &Conn) -> Next {
    let ch = conn.meeting.load(Relaxed);
    let mut buffer = [0u8; channel::MAX];
    let (n, passed) = match channel::recv(ch, &mut buffer) {
        Err(libc::EAGAIN) if conn.looks.load(Relaxed) < LOOKS => return Next::Later,
        Ok(got) => got,
        Err(_) => (0, None),
    };
    close_meeting(conn);
    let is_ours = |&fd: &i32| {
        let hosts = |names: [Addr; 2]| names.map(|name| name.mapped());
        Message::decode(&buffer[..n]).is_some_and(|told| told.kind == Kind::Handed)
            && TcpInfo::of(fd).is_some_and(|info| info.established())
            && inet::names(fd).is_some_and(|names| hosts(names) == hosts(conn.names()))
    };
    match passed {
        Some(fd) if is_ours(&fd) => {
            conn.meeting.store(hidden::park(fd), Relaxed);
            conn.looks.store(0, Relaxed);
            conn.stage.store(stage::MET, Relaxed);
            Next::On
        }
        other => {
            if let Some(fd) = other {
                sys::close(fd);
            }
            // Somebody else's broker, or one that has ended: another may come.
            conn.stage.store(stage::START, Relaxed);
            Next::Later
        }
    }
}
