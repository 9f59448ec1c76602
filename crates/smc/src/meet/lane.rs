//! By a lane: in the memory of a link group that the two processes have already (`group/lanes.rs`).

use super::rendezvous::{Channel, Found, Rendezvous, often, seldom, vouched};
use super::*;
use crate::conn::upgrade::{Lane, Met, NOT, Name, Place, REFUSES, Seeking};
use crate::group::{Role, lanes};

/// Looks for an invitation, or for an answer to one, before a connection's name is used.
const PATIENCE: u32 = 4;
/// Operations behind which an offer is taken back in any case.
const OFFERED: u32 = 16;

impl Rendezvous for Lane {
    fn begin(conn: &Conn, _: i32, role: Role) -> Found {
        if role == Role::Client {
            conn.upgrade.seek(Seeking::Lane(Lane::Awaits));
            return Found::Again;
        }
        if !lanes::invite(conn) {
            return Found::Elsewhere;
        }
        conn.upgrade.seek(Seeking::Lane(Lane::Invites));
        Found::Nobody
    }

    fn look(self, conn: &Conn, _: i32) -> Found {
        let looks = conn.upgrade.looks.load(Relaxed);
        match self {
            Lane::Awaits => find(conn, looks),
            Lane::Invites => answered(conn, looks),
            Lane::Offers => accepted(conn),
        }
    }

    fn gap(self, ops: u32, looks: u32) -> u32 {
        match self {
            Lane::Awaits if may_be_invited(looks) => 1,
            Lane::Awaits => seldom(ops),
            Lane::Invites => often(ops, looks),
            Lane::Offers => 1,
        }
    }

    fn is_alone(self) -> bool {
        true
    }

    fn close(self, conn: &Conn) {
        if matches!(self, Lane::Invites | Lane::Offers) {
            lanes::withdraw(conn);
        }
    }
}

impl Lane {
    /// Server: whether the client has offered the connection. Then they have met.
    pub(super) fn finds_offer(conn: &Conn) -> bool {
        let looks = conn.upgrade.offered.load(Relaxed) != REFUSES;
        let found = looks.then(|| lanes::find_offer(conn)).flatten();
        found.is_some_and(|place| {
            conn.upgrade.meet(Met::Lane(place));
            true
        })
    }
}

/// Client: is there an invitation?
fn find(conn: &Conn, looks: u32) -> Found {
    // It is with first contact that a group gets lanes.
    client::finish_first(conn);
    if let Some(place) = lanes::find(conn) {
        conn.upgrade.meet(Met::Lane(place));
        return Found::Peer(Role::Client);
    }
    if may_be_invited(looks) { Found::Nobody } else { Found::Elsewhere }
}

/// Client: whether the next operations are to be waited for, rather than the name be called.
fn may_be_invited(looks: u32) -> bool {
    looks < PATIENCE && lanes::are_likely()
}

/// Server: has one of those that were invited answered? If not, whoever comes by the connection's
/// name is welcome.
fn answered(conn: &Conn, looks: u32) -> Found {
    if let Some(place) = lanes::answered(conn) {
        conn.upgrade.meet(Met::Lane(place));
        return Found::Peer(Role::Server);
    }
    if looks < PATIENCE {
        return Found::Nobody;
    }
    rendezvous::close(conn);
    conn.upgrade.looks.store(0, Relaxed);
    Found::Elsewhere
}

/// Client: has one of those that it was offered to accepted it? If not, by the time at which it
/// would be upgraded anyway, it is as if it had not been offered.
fn accepted(conn: &Conn) -> Found {
    if let Some(place) = lanes::answered(conn) {
        conn.upgrade.meet(Met::Lane(place));
        return Found::Answer;
    }
    if is_early(conn) && conn.ops.load(Relaxed) < OFFERED {
        return Found::Nobody;
    }
    rendezvous::close(conn);
    conn.upgrade.looks.store(0, Relaxed);
    // Whichever process it leads to, the address is to be known of that one, too.
    conn.upgrade.offered.store(NOT, Relaxed);
    Found::Again
}

impl Channel for Place {
    fn admit(self, conn: &Conn) -> Result<Cred, Reason> {
        vouched(conn, lanes::vouched_peer(conn, self).ok_or(reason::RENDEZVOUS)?)
    }

    fn peer(self, conn: &Conn) -> Result<Cred, Reason> {
        lanes::peer(conn, self).ok_or(reason::RENDEZVOUS)
    }

    fn say(self, conn: &Conn, message: &[u8], pass: Option<i32>) -> bool {
        lanes::send(conn, self, message, pass)
    }

    fn hear(
        self,
        conn: &Conn,
        out: &mut [u8; channel::MAX],
    ) -> Result<(usize, Option<i32>), Silence> {
        match lanes::recv(conn, self, out) {
            // A fork child has no part in its parent's lanes, which look hung up to it.
            Err(Silence::HungUp) if conn.identity.pid.load(Relaxed) != sys::getpid() => {
                Err(Silence::Unusable)
            }
            got => got,
        }
    }

    fn peek(self, conn: &Conn, out: &mut [u8; channel::MAX]) -> Result<usize, Silence> {
        lanes::peek(conn, self, out)
    }

    fn is_offer(self) -> bool {
        lanes::is_offer(self)
    }

    /// The invitation was taken back before the server saw our answer.
    fn instead(self) -> Option<Seeking> {
        Some(Seeking::Name(Name::Calls))
    }

    fn close(self, conn: &Conn) {
        lanes::leave(conn, self);
    }
}
