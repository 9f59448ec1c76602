//! By the connection's name: one end listens under it, in the abstract namespace, and the other
//! calls.

use core::sync::atomic::AtomicU32;

use super::rendezvous::{Channel, Found, Rendezvous, listen, no_room, often, seldom, vouched};
use super::*;
use crate::conn::upgrade::{Meeting, Met, Name, Seeking};

impl Rendezvous for Name {
    fn begin(conn: &Conn, fd: i32, role: Role) -> Found {
        if role == Role::Server {
            return Name::Opens.look(conn, fd);
        }
        conn.upgrade.seek(Seeking::Name(Name::Calls));
        Found::Again
    }

    fn look(self, conn: &Conn, _: i32) -> Found {
        match self {
            Name::Listens(listener) => meet(conn, listener),
            _ if !hidden::room() => no_room(conn),
            Name::Calls => call(conn),
            Name::Opens => open(conn),
        }
    }

    fn gap(self, ops: u32, looks: u32) -> u32 {
        if let Name::Listens(_) = self { often(ops, looks) } else { seldom(ops) }
    }

    fn is_alone(self) -> bool {
        true
    }

    fn close(self, _: &Conn) {
        if let Name::Listens(listener) = self {
            hidden::close(listener);
        }
    }
}

/// Client: is the server there?
fn call(conn: &Conn) -> Found {
    let [local, peer] = conn.identity.names();
    match channel::connect(&peer, &local) {
        Ok(fd) => {
            conn.upgrade.meet(Met::Name(fd));
            Found::Peer(Role::Client)
        }
        Err(NoSocket::Refused | NoSocket::NotYet | NoSocket::NoRoom) => {
            conn.set_reason(reason::PEER_NO_SMC);
            Found::Nobody
        }
        Err(_) => Found::Never(reason::RENDEZVOUS),
    }
}

/// Server: takes the name.
fn open(conn: &Conn) -> Found {
    match listen(conn) {
        Ok(listener) => {
            conn.upgrade.listens.store(sys::coarse_ms(), Relaxed);
            conn.upgrade.seek(Seeking::Name(Name::Listens(listener)));
            Found::Again
        }
        Err(found) => found,
    }
}

/// Server: has the client come?
fn meet(conn: &Conn, listener: i32) -> Found {
    match channel::accept(listener) {
        Ok(fd) => {
            rendezvous::close(conn);
            conn.upgrade.meet(Met::Name(fd));
            Found::Peer(Role::Server)
        }
        Err(NoSocket::NotYet | NoSocket::NoRoom) => Found::Nobody,
        Err(_) => Found::Never(reason::RENDEZVOUS),
    }
}

/// Those of our connections that listen under their names, and have for so long that nobody is
/// likely to come, start afresh with their next operation.
pub(super) fn release() {
    const LONG: u32 = 1000;
    static LAST: AtomicU32 = AtomicU32::new(0);
    let now = sys::coarse_ms();
    let Some(table) = table::get().filter(|_| now.wrapping_sub(LAST.load(Relaxed)) > LONG / 8)
    else {
        return;
    };
    LAST.store(now, Relaxed);
    let own = sys::getpid();
    let is_old = |conn: &Conn| {
        conn.identity.pid.load(Relaxed) == own
            && now.wrapping_sub(conn.upgrade.listens.load(Relaxed)) > LONG
    };
    for (_, conn) in table.here() {
        let at = conn.upgrade.meeting();
        let Meeting::Seeking(Seeking::Name(Name::Listens(listener))) = at else { continue };
        if !is_old(conn) || !conn.hold_upgrade() {
            continue;
        }
        if conn.upgrade.leave_if(at) {
            hidden::close(listener);
            pace::soon(conn);
        }
        conn.release_upgrade();
    }
}

/// A channel to another process of this network namespace.
#[derive(Clone, Copy)]
pub(super) struct Socket(pub i32);

impl Channel for Socket {
    fn admit(self, conn: &Conn) -> Result<Cred, Reason> {
        let cred = vouched(conn, self.peer(conn)?)?;
        channel::take_descriptors(self.0);
        Ok(cred)
    }

    fn peer(self, _: &Conn) -> Result<Cred, Reason> {
        channel::peer(self.0).ok_or(reason::RENDEZVOUS)
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
