//! Whether a process in a rendezvous directory holds the other end of this very connection.
//!
//! Addresses do not tell, and neither do bytes: two clients ask two servers the same. So two things
//! are shown. Both ends have seen the same first bytes in both directions: a hash of them, keyed by
//! what both have just made up. And what one end sends arrives at the other: it sends a part of
//! what the application sends, of random length, asks how far the other end's kernel has come, and
//! sends the rest when that has answered. A stranger's connection is at that position by chance
//! only, and is asked until that chance is below 2^-40.
//!
//! The application's stream is as ever; only its first sends to a process that answers wait a
//! little.

use super::*;
use crate::conn::upgrade::{Directory, Meeting, Seeking};
use crate::directory::random;
use crate::hash::keyed as hash;
use crate::proof::{Candidate, Hello, Proof, Said};

/// Longest part of a send that goes ahead.
const LONGEST: usize = 1024;
/// Sends that the end which accepted leaves to the other one to ask by, so that two that each run
/// in one thread do not wait for each other.
const YIELDS: u32 = 8;

/// Says it to the candidate behind this socket; false if that one has gone.
pub(super) fn say(socket: i32, what: Said) -> bool {
    channel::send(socket, &what.encode(), None)
}

/// Takes what the candidate has said, and answers what it asked if that can be answered now.
pub(super) fn listen_to(
    conn: &Conn,
    fd: i32,
    socket: i32,
    proof: &mut Proof,
) -> Result<(), Reason> {
    let mut buffer = [0u8; channel::MAX];
    let now = &mut proof.now;
    for _ in 0..16 {
        let n = match channel::peek(socket, &mut buffer) {
            Ok(n) => n,
            Err(Silence::Nothing) => break,
            Err(_) => return Err(reason::RENDEZVOUS),
        };
        let Some(said) = Said::decode(&buffer[..n]) else {
            // A Proposal stays where it is.
            if !proof.opener && now.same_bytes {
                now.proposed = true;
                return Ok(());
            }
            if let Ok(Message::Decline(d)) = Message::decode(&buffer[..n]) {
                return Err(declined(conn, &d));
            }
            return Err(reason::CNF_ERR);
        };
        // Not a message of the handshake: it is not for its record.
        if let Ok((_, Some(uninvited))) = channel::recv(socket, &mut [0; channel::MAX]) {
            sys::close(uninvited);
        }
        let fits = match (said, now.theirs) {
            (Said::Hello(theirs), None) => {
                now.theirs = Some(theirs);
                theirs.opener != proof.opener && tell_hash(conn, socket, now, &theirs)
            }
            (Said::Hash(hash), Some(theirs)) => {
                now.same_bytes = own_hash(conn, &now.ours, &theirs, theirs.opener) == Some(hash);
                now.same_bytes
            }
            (Said::Ask { number, from }, Some(_)) => {
                now.yields = 0;
                now.due = Some((number, from));
                true
            }
            (Said::Answer { number, at }, Some(_)) => {
                now.silent = false;
                now.answer = (number == now.asked).then_some(at);
                true
            }
            (Said::Convinced, Some(_)) => {
                now.convinced = true;
                true
            }
            _ => false,
        };
        if !now.may_say_more() || !fits {
            return Err(reason::UNPROVEN);
        }
    }
    if let Some((number, from)) = now.due {
        let Some(info) = TcpInfo::of(fd).filter(TcpInfo::established) else {
            return Err(reason::UNPROVEN);
        };
        if info.arrived() > from {
            now.due = None;
            if !say(socket, Said::Answer { number, at: info.arrived() }) {
                return Err(reason::RENDEZVOUS);
            }
        }
    }
    Ok(())
}

fn tell_hash(conn: &Conn, socket: i32, now: &Candidate, theirs: &Hello) -> bool {
    own_hash(conn, &now.ours, theirs, now.ours.opener)
        .is_some_and(|hash| say(socket, Said::Hash(hash)))
}

/// Of the first bytes that both ends know, as one of them says it; None if there are none.
fn own_hash(conn: &Conn, ours: &Hello, theirs: &Hello, by_opener: bool) -> Option<u64> {
    let [sent, came] = witness::heads(conn)?;
    let both = |ours: u64, theirs: u64| ours.min(theirs) as usize;
    let sent = sent.first(both(ours.known[0], theirs.known[1]));
    let came = came.first(both(ours.known[1], theirs.known[0]));
    let ([from_opener, back], [first, second]) =
        if ours.opener { ([sent, came], [ours, theirs]) } else { ([came, sent], [theirs, ours]) };
    let key = [first.nonce[0] ^ second.nonce[1], first.nonce[1] ^ second.nonce[0]];
    (sent.len() + came.len() > 0).then(|| hash(key, &[&[by_opener.into()], from_opener, back]))
}

/// A part of a send that goes ahead of the rest. The upgrade is held as long as it lives.
pub struct Stake<'a> {
    conn: &'a Conn,
    fd: i32,
    /// To the candidate.
    socket: i32,
    len: usize,
    choices: usize,
    from: u64,
    undelay: bool,
}

/// How much of a send of `n` bytes is to go ahead, if this send may show who the candidate is.
#[inline]
pub fn stake(conn: &Conn, fd: i32, n: usize, flags: i32) -> Option<Stake<'_>> {
    if !witness::watches(conn) || candidate(conn).is_none() {
        None
    } else {
        lay(conn, fd, n, flags)
    }
}

/// The socket to the process that may be the other end.
fn candidate(conn: &Conn) -> Option<i32> {
    match conn.upgrade.meeting() {
        Meeting::Seeking(Seeking::Directory(Directory::Proves(socket))) => Some(socket),
        _ => None,
    }
}

#[cold]
fn lay(conn: &Conn, fd: i32, n: usize, flags: i32) -> Option<Stake<'_>> {
    const CORKED: u32 = 2;
    let user = conn.identity.user_nodelay.load(Relaxed);
    if n < 3 || flags & libc::MSG_MORE != 0 || user & CORKED != 0 || !conn.hold_upgrade() {
        return None;
    }
    // From here on `drop` lets go.
    let mut stake = Stake {
        conn,
        fd,
        socket: -1,
        len: 0,
        choices: (n - 1).min(LONGEST),
        from: 0,
        undelay: false,
    };
    let socket = candidate(conn)?;
    stake.socket = socket;
    let proof = witness::proof(conn)?;
    if listen_to(conn, fd, socket, proof).is_err() {
        proof.now.failed = true;
    }
    let may_wait = proof.may_wait();
    let now = &mut proof.now;
    let done = now.convinced || now.failed || now.proposed || now.silent;
    if done || !now.same_bytes || !may_wait {
        return None;
    }
    if !proof.opener && now.yields < YIELDS {
        now.yields += 1;
        return None;
    }
    stake.from = TcpInfo::of(fd).filter(TcpInfo::established)?.sent();
    stake.len = 1 + (random() % stake.choices as u64) as usize;
    now.asked = now.asked.wrapping_add(1);
    now.answer = None;
    if !say(socket, Said::Ask { number: now.asked, from: stake.from }) {
        return None;
    }
    if user & 1 == 0 {
        // Or the kernel might keep it back.
        stake.undelay = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32) == 0;
    }
    Some(stake)
}

impl Stake<'_> {
    /// Bytes that are to be sent now.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: something goes ahead.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// `sent` bytes have been: waits for the answer, and judges by it.
    pub fn settle(self, sent: isize) {
        let Some(proof) = witness::proof(self.conn) else { return };
        if sent != self.len as isize {
            return;
        }
        let began = sys::now_ns();
        let patience = proof.now.patience();
        loop {
            if listen_to(self.conn, self.fd, self.socket, proof).is_err() {
                proof.now.failed = true;
                break;
            }
            if let Some(at) = proof.now.answer {
                proof.now.judge(at, self.from, self.len as u64, self.choices);
                break;
            }
            let waited = sys::now_ns() - began;
            if waited >= patience || !wait(self.socket, patience - waited) {
                proof.now.is_silent();
                break;
            }
        }
        proof.waited += sys::now_ns() - began;
    }
}

/// False when nothing came in time, or a signal did.
fn wait(socket: i32, ns: u64) -> bool {
    sys::poll_for(&mut [libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 }], ns as u32)
        > 0
}

impl Drop for Stake<'_> {
    fn drop(&mut self) {
        if self.undelay && self.conn.identity.user_nodelay.load(SeqCst) & 1 == 0 {
            sys::setsockopt(self.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &0i32);
        }
        self.conn.release_upgrade();
    }
}
