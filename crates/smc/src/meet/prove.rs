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
use crate::witness::{self, Head};

const MAGIC: &[u8; 8] = b"SHORTWP1";
/// Magic, kind, number, four words.
const LEN: usize = 48;

mod kind {
    pub const HELLO: u32 = 1;
    pub const HASH: u32 = 2;
    pub const ASK: u32 = 3;
    pub const ANSWER: u32 = 4;
    pub const CONVINCED: u32 = 5;
}

/// Bits of chance that must have been against it.
const BITS: u32 = 40;
/// Bits more for each answer that is neither right nor impossible.
const STRAY: u32 = 4;
/// Longest part of a send that goes ahead.
const LONGEST: usize = 1024;
/// How long a send waits for an answer: twice as long as the last time if that was too short, for an end that is busy with
/// what it has received, and for the window to open. And how long all sends of a connection together: at first, and beyond
/// that such a share of the time since somebody was met.
const PATIENCE: u64 = 4_000_000;
const DOUBLINGS: u32 = 2;
const BUDGET: u64 = 15 * PATIENCE;
const SHARE: u64 = 32;
/// Operations that one candidate is given, if they take longer than `AT_LEAST`: a busy end does thousands of them before
/// the other one has its turn.
const LOOKS: u32 = 512;
const AT_LEAST: u64 = 1_000_000_000;
/// Of these times, what one is given that was asked although its port is another; it may be silent `DOUBLINGS` times.
const PATIENCE_FAR: u64 = PATIENCE / 4;
const AT_LEAST_FAR: u64 = AT_LEAST / 16;
/// Messages of one candidate.
const MESSAGES: u32 = 4 * LOOKS;
/// Processes that are asked whether they hold the other end.
const TRIES: usize = 16;
/// Of these processes, how many may be asked whose name is of another port than ours: NAT may have changed it, or they are strangers.
const TRIES_FAR: u32 = 4;
/// Sends that the end which accepted leaves to the other one to ask by, so that two that each run in one thread do not wait
/// for each other.
const YIELDS: u32 = 8;
/// First bytes that a name is made of.
const CHECKED: usize = 16;
/// Listeners made, of which each so many-th sweeps the directory.
const SWEEP_EVERY: u32 = 64;

/// State of the search for a connection's other end.
#[derive(Clone, Copy, Default)]
pub struct Proof {
    /// This end opened the connection.
    opener: bool,
    tried: [u32; TRIES],
    tries: usize,
    tries_far: u32,
    /// Nanoseconds that sends have waited.
    waited: u64,
    /// When the first candidate was met.
    since: Option<u64>,
    now: Candidate,
}

impl Proof {
    fn may_wait(&self) -> bool {
        let share = self.since.map_or(0, |since| (sys::now_ns() - since) / SHARE);
        self.waited < BUDGET + share
    }
}

/// What is known of the one who is asked at present.
#[derive(Clone, Copy, Default)]
struct Candidate {
    chance: u32,
    /// When it was met.
    since: u64,
    /// Its name is of another port than ours.
    far: bool,
    ours: Hello,
    theirs: Option<Hello>,
    same_bytes: bool,
    /// One of the ends is sure.
    convinced: bool,
    told: bool,
    proposed: bool,
    failed: bool,
    bits: u32,
    strays: u32,
    /// Our question: its number, and the answer to it.
    asked: u32,
    answer: Option<u64>,
    /// The last one was not answered: no more are asked before it is.
    silent: bool,
    silences: u32,
    /// Their question, to be answered once more than so much has arrived.
    due: Option<(u32, u64)>,
    yields: u32,
    messages: u32,
}

#[derive(Clone, Copy, Default)]
struct Hello {
    opener: bool,
    nonce: [u64; 2],
    /// First bytes that are known of what was sent, and of what came.
    known: [u64; 2],
}

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
    let since = witness::proof(conn).and_then(|proof| proof.since);
    since.is_some_and(|since| sys::now_ns() - since < 2 * AT_LEAST)
}

pub(super) fn why_not(conn: &Conn) -> Reason {
    let tried = witness::proof(conn).is_some_and(|proof| proof.tries > 0);
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
    if proof.tries == TRIES || !proof.may_wait() {
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
    if proof.tries == TRIES {
        return Next::Tcp(reason::UNPROVEN);
    }
    let mut names = [Name::default(); 4];
    let tried = &proof.tried[..proof.tries];
    let port = conn.names()[0].port;
    let elsewhere = if proof.tries_far < TRIES_FAR { check(&sent) } else { 0 };
    let found = match directory::candidates(port, elsewhere, tried, &mut names) {
        Ok(n) => n,
        Err(libc::EMFILE | libc::ENFILE) => 0,
        Err(_) => return Next::Tcp(reason::DIRECTORY),
    };
    let mut why = reason::PEER_NO_SMC;
    for name in &names[..found] {
        let Ok(ch) = name.connect() else { continue };
        match admit(conn, ch) {
            Ok(_) => {
                let far = name.port != port;
                proof.tries_far += u32::from(far);
                return meet_with(conn, fd, proof, ch, Candidate { chance: name.chance, far, ..Candidate::default() });
            }
            Err(refused) => why = refused,
        }
        hidden::close(ch);
        set_aside(proof, name.chance);
        if proof.tries == TRIES {
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
    let since = sys::now_ns();
    proof.since.get_or_insert(since);
    proof.now = Candidate { ours, since, ..with };
    let [a, b] = ours.nonce;
    if !say(ch, kind::HELLO, ours.opener.into(), [a, b, known[0], known[1]]) {
        return reject(conn, proof, reason::RENDEZVOUS);
    }
    go_on(conn, fd)
}

fn set_aside(proof: &mut Proof, chance: u32) {
    if let Some(place) = proof.tried.get_mut(proof.tries) {
        *place = chance;
        proof.tries += 1;
    }
}

/// It is somebody else, or nobody can tell.
fn reject(conn: &Conn, proof: &mut Proof, why: Reason) -> Next {
    close_meeting(conn);
    set_aside(proof, proof.now.chance);
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
        if !say(ch, kind::CONVINCED, 0, [0; 4]) {
            return reject(conn, proof, reason::RENDEZVOUS);
        }
    }
    let at_least = if proof.now.far { AT_LEAST_FAR } else { AT_LEAST };
    let over = || conn.looks.load(Relaxed) > LOOKS && sys::now_ns() - proof.now.since > at_least;
    if proof.now.failed || over() {
        return reject(conn, proof, reason::UNPROVEN);
    }
    Next::Later
}

fn say(ch: i32, kind: u32, number: u32, words: [u64; 4]) -> bool {
    let mut out = [0u8; LEN];
    out[..8].copy_from_slice(MAGIC);
    out[8..12].copy_from_slice(&kind.to_be_bytes());
    out[12..16].copy_from_slice(&number.to_be_bytes());
    out[16..].as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_be_bytes());
    channel::send(ch, &out, None).is_ok()
}

fn read(raw: &[u8]) -> Option<(u32, u32, [u64; 4])> {
    let raw: &[u8; LEN] = raw.try_into().ok()?;
    let words = raw[16..].as_chunks::<8>().0;
    let half = |at: usize| u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    (raw[..8] == *MAGIC).then(|| (half(8), half(12), core::array::from_fn(|i| u64::from_be_bytes(words[i]))))
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
        let Some((kind, number, words)) = read(&buffer[..n]) else {
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
        now.messages += 1;
        let fits = match (kind, now.theirs) {
            (kind::HELLO, None) => {
                let [a, b, sent, came] = words;
                let theirs = Hello { opener: number == 1, nonce: [a, b], known: [sent, came] };
                now.theirs = Some(theirs);
                theirs.opener != proof.opener && tell_hash(conn, ch, now, &theirs)
            }
            (kind::HASH, Some(theirs)) => {
                now.same_bytes = own_hash(conn, &now.ours, &theirs, theirs.opener) == Some(words[0]);
                now.same_bytes
            }
            (kind::ASK, Some(_)) => {
                now.yields = 0;
                now.due = Some((number, words[0]));
                true
            }
            (kind::ANSWER, Some(_)) => {
                now.silent = false;
                now.answer = (number == now.asked).then_some(words[0]);
                true
            }
            (kind::CONVINCED, Some(_)) => {
                now.convinced = true;
                true
            }
            _ => false,
        };
        if !fits || now.messages > MESSAGES {
            return Err(reason::UNPROVEN);
        }
    }
    if let Some((number, from)) = now.due {
        let Some(info) = TcpInfo::of(fd).filter(TcpInfo::established) else { return Err(reason::UNPROVEN) };
        if info.arrived() > from {
            now.due = None;
            if !say(ch, kind::ANSWER, number, [info.arrived(), 0, 0, 0]) {
                return Err(reason::RENDEZVOUS);
            }
        }
    }
    Ok(())
}

fn tell_hash(conn: &Conn, ch: i32, now: &Candidate, theirs: &Hello) -> bool {
    own_hash(conn, &now.ours, theirs, now.ours.opener).is_some_and(|hash| say(ch, kind::HASH, 0, [hash, 0, 0, 0]))
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
    if !say(ch, kind::ASK, now.asked, [stake.from, 0, 0, 0]) {
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
        let first = if proof.now.far { PATIENCE_FAR } else { PATIENCE };
        let patience = first << proof.now.silences.min(DOUBLINGS);
        loop {
            if listen_to(self.conn, self.fd, ch, proof).is_err() {
                proof.now.failed = true;
                break;
            }
            if let Some(at) = proof.now.answer {
                judge(&mut proof.now, at, self.from, self.len as u64, self.choices);
                break;
            }
            let waited = sys::now_ns() - began;
            if waited >= patience || !wait(ch, patience - waited) {
                proof.now.silent = true;
                proof.now.silences += 1;
                proof.now.failed |= proof.now.far && proof.now.silences > DOUBLINGS;
                break;
            }
        }
        proof.waited += sys::now_ns() - began;
    }
}

fn judge(now: &mut Candidate, at: u64, from: u64, staked: u64, choices: usize) {
    let end = from + staked;
    if at == end {
        now.bits += choices.ilog2();
    } else if at > from && at < end {
        // Cut on its way, perhaps.
        now.strays += 1;
    } else {
        now.failed = true;
    }
    now.convinced = !now.failed && now.bits >= BITS + STRAY * now.strays;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(choices: usize) -> Candidate {
        let mut now = Candidate::default();
        for i in 0.. {
            if now.convinced {
                assert_eq!(i, BITS.div_ceil(choices.ilog2()));
                break;
            }
            judge(&mut now, 100 + 7, 100, 7, choices);
        }
        now
    }

    #[test]
    fn right_answers_convince_the_sooner_the_less_likely_they_were() {
        assert!(!asked(LONGEST).failed && !asked(13).failed && !asked(2).failed);
    }

    #[test]
    fn one_wrong_answer_is_enough() {
        for at in [0, 99, 100, 108, u64::MAX] {
            let mut now = asked(LONGEST);
            judge(&mut now, at, 100, 7, LONGEST);
            assert!(now.failed && !now.convinced, "{at}");
        }
    }

    #[test]
    fn an_answer_in_between_costs_bits() {
        let mut now = Candidate::default();
        judge(&mut now, 103, 100, 7, LONGEST);
        for _ in 0..4 {
            judge(&mut now, 107, 100, 7, LONGEST);
            assert!(!now.convinced && !now.failed);
        }
        judge(&mut now, 107, 100, 7, LONGEST);
        assert!(now.convinced);
    }

    #[test]
    fn messages_are_read_as_they_are_written_and_garbage_is_not() {
        assert_eq!(read(&[0; LEN]), None);
        assert_eq!(read(MAGIC), None);
        let mut raw = [7u8; LEN];
        raw[..8].copy_from_slice(MAGIC);
        let all = u32::from_ne_bytes([7; 4]);
        assert_eq!(read(&raw), Some((all, all, [u64::from_ne_bytes([7; 8]); 4])));
    }
}
