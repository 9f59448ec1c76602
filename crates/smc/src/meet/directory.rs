//! In a directory that both network namespaces see: who accepted the connection listens there, who
//! opened it calls, and both prove first that they are the ends of one connection (`prove.rs`).

use core::sync::atomic::AtomicU32;

use super::prove::{listen_to, say};
use super::rendezvous::{Channel, Found, Rendezvous, often, seldom};
use super::*;
use crate::conn::upgrade::{Directory, Met, Seeking};
use crate::directory::{Name, candidates, random, sweep};
use crate::hash::keyed as hash;
use crate::proof::{Candidate, Hello, Proof, Said};
use crate::witness::Head;

/// First bytes that a name is made of.
const CHECKED: usize = 16;
/// Listeners made, of which each so many-th sweeps the directory.
const SWEEP_EVERY: u32 = 64;
/// Looks at a connection of which not all bytes were seen: another thread may be about to note what
/// it moved.
const NOTES: u32 = 16;

impl Rendezvous for Directory {
    /// Addresses may differ at the two ends, and say nothing.
    fn begin(conn: &Conn, fd: i32, _: Role) -> Found {
        let Some(proof) = witness::proof(conn) else { return Found::Never(reason::MEMORY) };
        if proof.is_spent() || !proof.may_wait() {
            return Found::Never(reason::UNPROVEN);
        }
        if !hidden::room_to_stay() {
            conn.set_reason(reason::FD_LIMIT);
            return Found::Nobody;
        }
        if !witness::saw_all(conn, fd) {
            let may_see = conn.upgrade.looks.load(Relaxed) < NOTES;
            return if may_see { Found::Nobody } else { Found::Never(reason::UNSEEN) };
        }
        let (Some(opener), Some([_, came])) = (inet::opened(fd), witness::heads(conn)) else {
            return Found::Nobody;
        };
        proof.opener = opener;
        if opener {
            conn.upgrade.seek(Seeking::Directory(Directory::Calls));
            return Found::Again;
        }
        open(conn, &came)
    }

    fn look(self, conn: &Conn, fd: i32) -> Found {
        let Some(proof) = witness::proof(conn) else { return Found::Never(reason::MEMORY) };
        match self {
            Directory::Calls => call(conn, fd, proof),
            Directory::Listens(listener) => meet(conn, fd, listener, proof),
            Directory::Proves(socket) => go_on(conn, fd, socket, proof),
        }
    }

    fn gap(self, ops: u32, looks: u32) -> u32 {
        match self {
            Directory::Calls => seldom(ops),
            Directory::Listens(_) => often(ops, looks),
            Directory::Proves(_) => 1,
        }
    }

    fn tires(self, conn: &Conn, ops: u32) -> Option<Reason> {
        let proof = witness::proof(conn);
        if ops <= GIVE_UP_FAR || proof.as_ref().is_some_and(|proof| proof.has_time()) {
            return None;
        }
        let tried = proof.is_some_and(|proof| !proof.tried().is_empty());
        Some(if tried || !self.is_alone() { reason::UNPROVEN } else { reason::PEER_NO_SMC })
    }

    fn is_alone(self) -> bool {
        !matches!(self, Directory::Proves(_))
    }

    fn close(self, conn: &Conn) {
        match self {
            Directory::Calls => {}
            Directory::Listens(listener) => {
                witness::forget_name(conn, listener);
                hidden::close(listener);
            }
            Directory::Proves(socket) => hidden::close(socket),
        }
    }
}

/// A check over the first bytes of the opener's; 0 while they are too few.
fn check(head: &Head) -> u16 {
    let first = head.first(CHECKED);
    if first.len() < CHECKED { 0 } else { (hash([0; 2], &[first]) as u16).max(1) }
}

/// Acceptor: listens under a name that says what was received first.
fn open(conn: &Conn, came: &Head) -> Found {
    static LISTENERS: AtomicU32 = AtomicU32::new(0);
    if LISTENERS.fetch_add(1, Relaxed).is_multiple_of(SWEEP_EVERY) {
        sweep();
    }
    let name = Name::fresh(conn.identity.names()[1].port, check(came));
    match name.listen() {
        Ok(listener) => {
            conn.upgrade.seek(Seeking::Directory(Directory::Listens(listener)));
            witness::listens_under(conn, name);
            Found::Again
        }
        Err(NoSocket::NoRoom | NoSocket::Taken) => Found::Nobody,
        Err(_) => Found::Never(reason::DIRECTORY),
    }
}

/// Opener: looks for somebody who has not been asked yet.
fn call(conn: &Conn, fd: i32, proof: &mut Proof) -> Found {
    let Some([sent, _]) = witness::heads(conn) else { return Found::Nobody };
    if proof.is_spent() {
        return Found::Never(reason::UNPROVEN);
    }
    let mut names = [Name::default(); 4];
    let port = conn.identity.names()[0].port;
    let elsewhere = if proof.may_try_far() { check(&sent) } else { 0 };
    let found = match candidates(port, elsewhere, proof.tried(), &mut names) {
        Ok(n) => n,
        Err(NoSocket::NoRoom) => 0,
        Err(_) => return Found::Never(reason::DIRECTORY),
    };
    let mut why = reason::PEER_NO_SMC;
    for name in &names[..found] {
        let Ok(socket) = name.connect() else { continue };
        match Socket(socket).admit(conn) {
            Ok(_) => {
                return meet_with(
                    conn,
                    fd,
                    socket,
                    proof,
                    Candidate::new(name.chance, name.port != port),
                );
            }
            Err(refused) => why = refused,
        }
        hidden::close(socket);
        proof.set_aside(name.chance);
        if proof.is_spent() {
            break;
        }
    }
    conn.set_reason(why);
    Found::Nobody
}

/// Acceptor: has anybody come? One who may not is sent away, and others are waited for.
fn meet(conn: &Conn, fd: i32, listener: i32, proof: &mut Proof) -> Found {
    match channel::accept(listener) {
        Ok(socket) => {
            if let Err(why) = Socket(socket).admit(conn) {
                let _ = decline(conn, Met::Directory(socket), why);
                hidden::close(socket);
                conn.set_reason(why);
                return Found::Nobody;
            }
            rendezvous::close(conn);
            meet_with(conn, fd, socket, proof, Candidate::default())
        }
        Err(NoSocket::NotYet | NoSocket::NoRoom) => Found::Nobody,
        Err(_) => Found::Never(reason::RENDEZVOUS),
    }
}

fn meet_with(conn: &Conn, fd: i32, socket: i32, proof: &mut Proof, with: Candidate) -> Found {
    conn.upgrade.seek(Seeking::Directory(Directory::Proves(socket)));
    conn.upgrade.looks.store(0, Relaxed);
    witness::keep_short(conn, fd);
    let known = witness::heads(conn).map_or([0; 2], |heads| heads.map(|head| head.kept as u64));
    let ours = Hello { opener: proof.opener, nonce: [random(), random()], known };
    proof.meets(with, ours);
    if !say(socket, Said::Hello(ours)) {
        return reject(conn, proof, reason::RENDEZVOUS);
    }
    go_on(conn, fd, socket, proof)
}

/// It is somebody else, or nobody can tell.
fn reject(conn: &Conn, proof: &mut Proof, why: Reason) -> Found {
    rendezvous::close(conn);
    proof.set_aside(proof.now.chance);
    proof.now = Candidate::default();
    conn.set_reason(why);
    conn.upgrade.looks.store(0, Relaxed);
    // Who waits to be found waits on; who looks has looked now.
    if proof.opener { Found::Nobody } else { Found::Again }
}

/// Both: reads what was said, answers, and has found the other end once one of them is sure.
fn go_on(conn: &Conn, fd: i32, socket: i32, proof: &mut Proof) -> Found {
    if let Err(why) = listen_to(conn, fd, socket, proof) {
        return reject(conn, proof, why);
    }
    let now = &mut proof.now;
    if now.proposed {
        return found(conn, socket, Role::Server);
    }
    if now.convinced && now.same_bytes && !now.told {
        now.told = true;
        if proof.opener {
            return found(conn, socket, Role::Client);
        }
        if !say(socket, Said::Convinced) {
            return reject(conn, proof, reason::RENDEZVOUS);
        }
    }
    if proof.now.failed || proof.now.is_overdue(conn.upgrade.looks.load(Relaxed)) {
        return reject(conn, proof, reason::UNPROVEN);
    }
    Found::Nobody
}

fn found(conn: &Conn, socket: i32, role: Role) -> Found {
    conn.upgrade.meet(Met::Directory(socket));
    Found::Peer(role)
}

/// A channel to a process of another network namespace.
#[derive(Clone, Copy)]
pub(super) struct Socket(pub i32);

impl Channel for Socket {
    /// Only processes of our own user: nobody vouches for another one's claim to a connection of
    /// another network namespace, whose socket table cannot be asked, and user namespaces may
    /// differ too. 65534 is what any user looks like that our user namespace does not know.
    fn admit(self, _: &Conn) -> Result<Cred, Reason> {
        let cred = channel::peer(self.0).ok_or(reason::RENDEZVOUS)?;
        if !user::is_own(cred.uid) {
            let is_somebody = user::is_somebody(cred.uid);
            return Err(if is_somebody { reason::OTHER_USER } else { reason::NOBODY });
        }
        channel::take_descriptors(self.0);
        Ok(cred)
    }

    fn peer(self, conn: &Conn) -> Result<Cred, Reason> {
        self.admit(conn)
    }

    fn say(self, _: &Conn, message: &[u8], pass: Option<i32>) -> bool {
        channel::send(self.0, message, pass)
    }

    fn hear(self, _: &Conn, out: &mut [u8; channel::MAX]) -> Result<(usize, Option<i32>), Silence> {
        channel::recv(self.0, out)
    }

    fn peek(self, _: &Conn, out: &mut [u8; channel::MAX]) -> Result<usize, Silence> {
        channel::peek(self.0, out)
    }

    fn close(self, _: &Conn) {
        hidden::close(self.0);
    }
}
