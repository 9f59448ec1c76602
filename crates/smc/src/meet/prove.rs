//! Whether a process in a rendezvous directory holds the other end of this very connection.
//!
//! Addresses do not tell, and neither do bytes: two clients ask two servers the same. So two things are shown. Both ends have
//! seen the same first bytes in both directions: a hash of them, keyed by what both have just made up. And what one end
//! sends arrives at the other: it sends a part of what the application sends, of random length, asks how far the other end's
//! kernel has come, and sends the rest when that has answered. A stranger's connection is at that position by chance only,
//! and is asked until that chance is below 2^-40.
//!
//! The application's stream is as ever; only its first sends to a process that answers wait a little.
#![allow(unsafe_code)]

use super::*;
use crate::directory::{self, Name, random};
use crate::hash::keyed as hash;
use crate::proof::{Candidate, Hello, Proof, Said};
use crate::witness::{self, Head};

/// Longest part of a send that goes ahead.
const LONGEST: usize = 1024;
/// Sends that the end which accepted leaves to the other one to ask by, so that two that each run in one thread do not wait
/// for each other.
const YIELDS: u32 = 8;
/// First bytes that a name is made of.
const CHECKED: usize = 16;
/// Listeners made, of which each so many-th sweeps the directory.
const SWEEP_EVERY: u32 = 64;

/// Only processes of our own user: nobody vouches for another one's claim to a connection of another network namespace.
/// 65534 is what any user looks like that our user namespace does not know.
pub(super) fn same_user(cred: Cred, same: bool) -> Result<(), Reason> {
    if same && cred.uid != 65_534 { Ok(()) } else { Err(reason::PEER_UID) }
}

pub(super) fn is_undecided(conn: &Conn) -> bool {
    matches!(conn.stage.load(Relaxed), stage::START | stage::LISTENING | stage::CALLING | stage::PROVING)
}

/// Whether the search goes on however many operations there have been.
pub(super) fn has_time(conn: &Conn) -> bool {
    witness::proof(conn).is_some_and(|proof| proof.has_time())
}

pub(super) fn why_not(conn: &Conn) -> Reason {
    let tried = witness::proof(conn).is_some_and(|proof| !proof.tried().is_empty());
    if tried || conn.stage.load(Relaxed) == stage::PROVING { reason::UNPROVEN } else { reason::PEER_NO_SMC }
}

/// A check over the first bytes of the opener's; 0 while they are too few.
fn check(head: &Head) -> u16 {
    let first = head.first(CHECKED);
    if first.len() < CHECKED { 0 } else { (hash([0; 2], &[first]) as u16).max(1) }
}

/// Takes a role: who accepted the connection listens.
pub(super) fn start(conn: &Conn, fd: i32) -> Next {
    let Some(proof) = witness::proof(conn) else { return Next::Tcp(reason::MEMORY) };
    if proof.is_spent() || !proof.may_wait() {
        return Next::Tcp(reason::UNPROVEN);
    }
    if !hidden::room_to_stay() {
        conn.reason.store(reason::FD_LIMIT.code(), Relaxed);
        return Next::Later;
    }
    if !witness::saw_all(conn, fd) {
        // Another thread may be about to note what it moved.
        return if conn.looks.load(Relaxed) < 16 { Next::Later } else { Next::Tcp(reason::UNSEEN) };
    }
    let (Some(opener), Some([_, came])) = (inet::opened(fd), witness::heads(conn)) else { return Next::Later };
    proof.opener = opener;
    if opener {
        conn.stage.store(stage::CALLING, Relaxed);
        return Next::On;
    }
    static LISTENERS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
    if LISTENERS.fetch_add(1, Relaxed).is_multiple_of(SWEEP_EVERY) {
        directory::sweep();
    }
    let name = Name::fresh(conn.names()[1].port, check(&came));
    match name.listen() {
        Ok(listener) => {
            conn.meeting.store(listener, Relaxed);
            witness::listens_under(conn, name);
            conn.stage.store(stage::LISTENING, Relaxed);
            Next::On
        }
        Err(libc::EMFILE | libc::ENFILE | libc::EADDRINUSE) => Next::Later,
        Err(_) => Next::Tcp(reason::DIRECTORY),
    }
}

/// Opener: looks for somebody who has not been asked yet.
pub(super) fn call(conn: &Conn, fd: i32) -> Next {
    let (Some(proof), Some([sent, _])) = (witness::proof(conn), witness::heads(conn)) else { return Next::Later };
    if proof.is_spent() {
        return Next::Tcp(reason::UNPROVEN);
    }
    let mut names = [Name::default(); 4];
    let port = conn.names()[0].port;
    let elsewhere = if proof.may_try_far() { check(&sent) } else { 0 };
    let found = match directory::candidates(port, elsewhere, proof.tried(), &mut names) {
        Ok(n) => n,
        Err(libc::EMFILE | libc::ENFILE) => 0,
        Err(_) => return Next::Tcp(reason::DIRECTORY),
    };
    let mut why = reason::PEER_NO_SMC;
    for name in &names[..found] {
        let Ok(ch) = name.connect() else { continue };
        match admit(conn, ch) {
            Ok(_) => {
                return meet_with(conn, fd, proof, ch, Candidate::new(name.chance, name.port != port));
            }
            Err(refused) => why = refused,
        }
        hidden::close(ch);
        proof.set_aside(name.chance);
        if proof.is_spent() {
            break;
        }
    }
    conn.reason.store(why.code(), Relaxed);
    Next::Later
}

/// Acceptor: has anybody come? One who may not is sent away, and others are waited for.
pub(super) fn meet(conn: &Conn, fd: i32) -> Next {
    let Some(proof) = witness::proof(conn) else { return Next::Tcp(reason::MEMORY) };
    match channel::accept(conn.meeting.load(Relaxed)) {
        Ok(ch) => {
            if let Err(why) = admit(conn, ch) {
                let _ = decline(conn, ch, why);
                hidden::close(ch);
                conn.reason.store(why.code(), Relaxed);
                return Next::Later;
            }
            close_meeting(conn);
            meet_with(conn, fd, proof, ch, Candidate::default())
        }
        Err(libc::EAGAIN | libc::EINTR | libc::EMFILE | libc::ENFILE | libc::ECONNABORTED) => Next::Later,
        Err(_) => Next::Tcp(reason::RENDEZVOUS),
    }
}

fn meet_with(conn: &Conn, fd: i32, proof: &mut Proof, ch: i32, with: Candidate) -> Next {
    conn.meeting.store(ch, Relaxed);
    conn.looks.store(0, Relaxed);
    conn.stage.store(stage::PROVING, Relaxed);
    witness::keep_short(conn, fd);
    let known = witness::heads(conn).map_or([0; 2], |heads| heads.map(|head| head.kept as u64));
    let ours = Hello { opener: proof.opener, nonce: [random(), random()], known };
    proof.meets(with, ours);
    if !say(ch, Said::Hello(ours)) {
        return reject(conn, proof, reason::RENDEZVOUS);
    }
    go_on(conn, fd)
}

/// It is somebody else, or nobody can tell.
fn reject(conn: &Conn, proof: &mut Proof, why: Reason) -> Next {
    close_meeting(conn);
    proof.set_aside(proof.now.chance);
    proof.now = Candidate::default();
    conn.reason.store(why.code(), Relaxed);
    conn.stage.store(stage::START, Relaxed);
    conn.looks.store(0, Relaxed);
    // Who waits to be found waits on; who looks has looked now.
    if proof.opener { Next::Later } else { Next::On }
}

/// Both: reads what was said, answers, and goes on to the handshake once one end is sure.
pub(super) fn go_on(conn: &Conn, fd: i32) -> Next {
    let Some(proof) = witness::proof(conn) else { return Next::Tcp(reason::MEMORY) };
    let ch = conn.meeting.load(Relaxed);
    if let Err(why) = listen_to(conn, fd, ch, proof) {
        return reject(conn, proof, why);
    }
    let now = &mut proof.now;
    if now.proposed {
        conn.stage.store(stage::MET, Relaxed);
        conn.looks.store(0, Relaxed);
        return Next::On;
    }
    if now.convinced && now.same_bytes && !now.told {
        now.told = true;
        if proof.opener {
            return client::propose(conn, fd, ch);
        }
        if !say(ch, Said::Convinced) {
            return reject(conn, proof, reason::RENDEZVOUS);
        }
    }
    if proof.now.failed || proof.now.is_overdue(conn.looks.load(Relaxed)) {
        return reject(conn, proof, reason::UNPROVEN);
    }
    Next::Later
}

fn say(ch: i32, what: Said) -> bool {
    channel::send(ch, &what.encode(), None).is_ok()
}

/// Takes what the candidate has said, and answers what it asked if that can be answered now.
fn listen_to(conn: &Conn, fd: i32, ch: i32, proof: &mut Proof) -> Result<(), Reason> {
    let mut buffer = [0u8; channel::MAX];
    let now = &mut proof.now;
    for _ in 0..16 {
        let n = match server::peek(conn, ch, &mut buffer) {
            Ok(n) => n,
            Err(libc::EAGAIN) => break,
            Err(_) => return Err(reason::RENDEZVOUS),
        };
        let Some(said) = Said::decode(&buffer[..n]) else {
            // A Proposal stays where it is.
            if !proof.opener && now.same_bytes {
                now.proposed = true;
                return Ok(());
            }
            if let Ok(Message::Decline(d)) = Message::decode(&buffer[..n]) {
                conn.peer_reason.store(d.diagnosis.code(), Relaxed);
                return Err(reason::PEER_DECL);
            }
            return Err(reason::CNF_ERR);
        };
        // Not a message of the handshake: it is not for its record.
        if let Ok((_, Some(uninvited))) = channel::recv(ch, &mut [0; channel::MAX]) {
            sys::close(uninvited);
        }
        let fits = match (said, now.theirs) {
            (Said::Hello(theirs), None) => {
                now.theirs = Some(theirs);
                theirs.opener != proof.opener && tell_hash(conn, ch, now, &theirs)
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
        let Some(info) = TcpInfo::of(fd).filter(TcpInfo::established) else { return Err(reason::UNPROVEN) };
        if info.arrived() > from {
            now.due = None;
            if !say(ch, Said::Answer { number, at: info.arrived() }) {
                return Err(reason::RENDEZVOUS);
            }
        }
    }
    Ok(())
}

fn tell_hash(conn: &Conn, ch: i32, now: &Candidate, theirs: &Hello) -> bool {
    own_hash(conn, &now.ours, theirs, now.ours.opener).is_some_and(|hash| say(ch, Said::Hash(hash)))
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
    len: usize,
    choices: usize,
    from: u64,
    undelay: bool,
}

/// How much of a send of `n` bytes is to go ahead, if this send may show who the candidate is.
#[inline]
pub fn stake(conn: &Conn, fd: i32, n: usize, flags: i32) -> Option<Stake<'_>> {
    if !witness::watches(conn) || conn.stage.load(Relaxed) != stage::PROVING { None } else { lay(conn, fd, n, flags) }
}

#[cold]
fn lay(conn: &Conn, fd: i32, n: usize, flags: i32) -> Option<Stake<'_>> {
    const CORKED: u32 = 2;
    let user = conn.user_nodelay.load(Relaxed);
    if n < 3 || flags & libc::MSG_MORE != 0 || user & CORKED != 0 || !conn.hold_upgrade() {
        return None;
    }
    // From here on `drop` lets go.
    let mut stake = Stake { conn, fd, len: 0, choices: (n - 1).min(LONGEST), from: 0, undelay: false };
    let proof = witness::proof(conn).filter(|_| conn.stage.load(Relaxed) == stage::PROVING)?;
    let ch = conn.meeting.load(Relaxed);
    if listen_to(conn, fd, ch, proof).is_err() {
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
    if !say(ch, Said::Ask { number: now.asked, from: stake.from }) {
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
        let ch = self.conn.meeting.load(Relaxed);
        let began = sys::now_ns();
        let patience = proof.now.patience();
        loop {
            if listen_to(self.conn, self.fd, ch, proof).is_err() {
                proof.now.failed = true;
                break;
            }
            if let Some(at) = proof.now.answer {
                proof.now.judge(at, self.from, self.len as u64, self.choices);
                break;
            }
            let waited = sys::now_ns() - began;
            if waited >= patience || !wait(ch, patience - waited) {
                proof.now.is_silent();
                break;
            }
        }
        proof.waited += sys::now_ns() - began;
    }
}

/// False when nothing came in time, or a signal did.
fn wait(ch: i32, ns: u64) -> bool {
    let mut p = libc::pollfd { fd: ch, events: libc::POLLIN, revents: 0 };
    let mut limit = [0i64, ns as i64];
    // SAFETY: both pointers are to live locals.
    unsafe { sys::syscall(libc::SYS_ppoll, &raw mut p as usize, 1, limit.as_mut_ptr() as usize, 0, 0, 0) > 0 }
}

impl Drop for Stake<'_> {
    fn drop(&mut self) {
        if self.undelay && self.conn.user_nodelay.load(SeqCst) & 1 == 0 {
            sys::setsockopt(self.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &0i32);
        }
        self.conn.release_upgrade();
    }
}
