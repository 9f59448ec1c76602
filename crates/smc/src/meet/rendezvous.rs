//! The ways in which the two ends of a connection find each other, and the channels over which they
//! then speak.
//!
//! | way | file | for |
//! | --- | --- | --- |
//! | name | `name.rs` | two processes of one network namespace |
//! | lane | `lane.rs` | two of them that have a link group already |
//! | directory | `directory.rs` | two network namespaces |
//! | broker | `broker.rs` | two guests |
//!
//! The four know nothing of each other, and the handshake does not know which one it was. What a
//! way has to remember stands in one word of the connection (`conn/upgrade.rs`); here is who is
//! asked for which word.

use super::*;
use crate::conn::upgrade::{Broker, Directory, Lane, Name};

/// What a look for the other end came to.
pub(super) enum Found {
    /// Nobody yet.
    Nobody,
    /// Look again at once.
    Again,
    /// The other end: a channel leads to it, and we have this role.
    Peer(Role),
    /// Client: the other end, which has answered already.
    Answer,
    /// Nobody is to be found this way, but perhaps by another.
    Elsewhere,
    /// Nobody is to be found.
    Never(Reason),
}

impl Found {
    fn or_else(self, other: impl FnOnce() -> Found) -> Found {
        if let Found::Elsewhere = self { other() } else { self }
    }
}

/// One way to find the other end, and how far that has come.
pub(super) trait Rendezvous: Copy {
    /// Begins to look, in the role that the addresses give: the lower one is the server's.
    fn begin(conn: &Conn, fd: i32, role: Role) -> Found;

    /// Looks for the other end. Never waits.
    fn look(self, conn: &Conn, fd: i32) -> Found;

    /// Operations until the next look, behind so many operations and so many looks in vain.
    fn gap(self, ops: u32, looks: u32) -> u32;

    /// Why it is no use to go on looking, behind so many operations.
    fn tires(self, conn: &Conn, ops: u32) -> Option<Reason> {
        pace::is_patient_no_more(conn, ops).then_some(reason::PEER_NO_SMC)
    }

    /// Whether nobody was met yet, who might be the other end.
    fn is_alone(self) -> bool;

    /// Gives up what it holds.
    fn close(self, conn: &Conn);
}

/// The two ends of a connection speak over it.
pub(super) trait Channel: Copy {
    /// Who is at the other end, if that one may be our peer. From then on it may pass descriptors.
    fn admit(self, conn: &Conn) -> Result<Cred, Reason>;

    /// Who is at the other end of a channel that was admitted.
    fn peer(self, conn: &Conn) -> Result<Cred, Reason>;

    /// Says something, and passes a descriptor; false if it cannot be said.
    fn say(self, conn: &Conn, message: &[u8], pass: Option<i32>) -> bool;

    /// What the other end says, and the descriptor that came with it.
    fn hear(
        self,
        conn: &Conn,
        out: &mut [u8; channel::MAX],
    ) -> Result<(usize, Option<i32>), Silence>;

    /// What the other end says, which is left where it is.
    fn peek(self, conn: &Conn, out: &mut [u8; channel::MAX]) -> Result<usize, Silence>;

    /// Whether the client offered the connection here, so that the server accepts without a
    /// Proposal.
    fn is_offer(self) -> bool {
        false
    }

    /// Where to look for the other end, if it does not answer here.
    fn instead(self) -> Option<Seeking> {
        None
    }

    /// Hangs up.
    fn close(self, conn: &Conn);
}

/// A call costs a socket, so the distance grows from the start.
pub(super) fn seldom(ops: u32) -> u32 {
    (ops / 4).max(4)
}

/// A look costs one cheap call.
pub(super) fn often(ops: u32, looks: u32) -> u32 {
    if looks < EAGER { 1 } else { ops.max(1) / 2 + 1 }
}

/// Listens under the connection's name; what becomes of it, if that cannot be.
pub(super) fn listen(conn: &Conn) -> Result<i32, Found> {
    let [local, peer] = conn.identity.names();
    channel::listen(&local, &peer).map_err(|why| match why {
        NoSocket::Taken => Found::Never(reason::NAME_TAKEN),
        NoSocket::NoRoom => Found::Nobody,
        _ => Found::Never(reason::RENDEZVOUS),
    })
}

/// Lets in whose user is ours, whom the kernel knows as the owner of the connection's other end, or
/// who has shown that it is (`port.rs`).
pub(super) fn vouched(conn: &Conn, cred: Cred) -> Result<Cred, Reason> {
    if user::is_own(cred.uid) {
        return Ok(cred);
    }
    if policy::of(&conn.own().decided) != PeerPolicy::Verified {
        return Err(reason::OTHER_USER);
    }
    if port::is_shown(conn) {
        return Ok(cred);
    }
    if !user::is_somebody(cred.uid) {
        return Err(reason::NOBODY);
    }
    match inet::peer_uid(&conn.identity.names()) {
        Ok(owner) if owner == Some(cred.uid) => Ok(cred),
        Ok(_) => Err(reason::PEER_UID),
        Err(inet::CannotAsk) => Err(reason::CANNOT_ASK),
    }
}

/// How a connection meets that has not begun to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Both ends are in this network namespace.
    Here,
    /// It may lead to another one.
    Directory,
    /// It leads to another machine, perhaps to a guest that shares the bar.
    Broker,
}

impl Way {
    fn of(conn: &Conn) -> Way {
        if witness::watches(conn) {
            Way::Directory
        } else if inet::is_local(&conn.identity.names()) {
            Way::Here
        } else {
            Way::Broker
        }
    }
}

/// Begins to look for the other end.
pub(super) fn begin(conn: &Conn, fd: i32) -> Found {
    let way = Way::of(conn);
    if way != Way::Here && !hidden::room() {
        return no_room(conn);
    }
    let [local, peer] = conn.identity.names();
    let role = if local.key() < peer.key() { Role::Server } else { Role::Client };
    match way {
        Way::Directory => Directory::begin(conn, fd, role),
        // Both ends are one.
        _ if local.key() == peer.key() => Found::Never(reason::NOT_LOCAL),
        Way::Here if Lane::finds_offer(conn) => Found::Peer(Role::Server),
        Way::Here => Lane::begin(conn, fd, role).or_else(|| Name::begin(conn, fd, role)),
        Way::Broker => Broker::begin(conn, fd, role),
    }
}

/// Whether the end that opened the connection has offered it. Then they have met, and this one is
/// the server.
pub(super) fn finds_offer(conn: &Conn) -> bool {
    Way::of(conn) == Way::Here && Lane::finds_offer(conn)
}

/// There are as many hidden descriptors as may be.
pub(super) fn no_room(conn: &Conn) -> Found {
    name::release();
    conn.set_reason(reason::FD_LIMIT);
    Found::Nobody
}

/// How a connection looks for its other end; as it would begin, if it has not begun.
pub(super) fn of(conn: &Conn) -> Seeking {
    match (conn.upgrade.meeting(), Way::of(conn)) {
        (Meeting::Seeking(at), _) => at,
        (_, Way::Here) => Seeking::Name(Name::Calls),
        (_, Way::Directory) => Seeking::Directory(Directory::Calls),
        (_, Way::Broker) => Seeking::Broker(Broker::Calls),
    }
}

/// Asks the way, whichever it is.
macro_rules! each_way {
    ($of:ident, $at:ident => $asked:expr) => {
        match $of {
            Seeking::Name($at) => $asked,
            Seeking::Lane($at) => $asked,
            Seeking::Directory($at) => $asked,
            Seeking::Broker($at) => $asked,
        }
    };
}

impl Seeking {
    /// Between processes that know each other a lane comes before the name.
    pub(super) fn look(self, conn: &Conn, fd: i32) -> Found {
        let found = each_way!(self, at => at.look(conn, fd));
        match self {
            Seeking::Lane(Lane::Awaits) => found.or_else(|| Name::Calls.look(conn, fd)),
            Seeking::Lane(Lane::Invites) => found.or_else(|| Name::Opens.look(conn, fd)),
            _ => found,
        }
    }

    pub(super) fn gap(self, ops: u32, looks: u32) -> u32 {
        each_way!(self, at => at.gap(ops, looks))
    }

    pub(super) fn tires(self, conn: &Conn, ops: u32) -> Option<Reason> {
        each_way!(self, at => at.tires(conn, ops))
    }

    pub(super) fn is_alone(self) -> bool {
        each_way!(self, at => at.is_alone())
    }
}

/// Asks the channel, whichever it is.
macro_rules! each_channel {
    ($of:ident, $ch:ident => $asked:expr) => {
        match $of {
            Met::Name(fd) => {
                let $ch = name::Socket(fd);
                $asked
            }
            Met::Lane($ch) => $asked,
            Met::Directory(fd) => {
                let $ch = directory::Socket(fd);
                $asked
            }
            Met::Broker(fd) => {
                let $ch = broker::Stream(fd);
                $asked
            }
            #[cfg(test)]
            Met::Scripted(side) => {
                let $ch = tests::Side(side);
                $asked
            }
        }
    };
}

impl Channel for Met {
    fn admit(self, conn: &Conn) -> Result<Cred, Reason> {
        each_channel!(self, ch => ch.admit(conn))
    }

    fn peer(self, conn: &Conn) -> Result<Cred, Reason> {
        each_channel!(self, ch => ch.peer(conn))
    }

    fn say(self, conn: &Conn, message: &[u8], pass: Option<i32>) -> bool {
        each_channel!(self, ch => ch.say(conn, message, pass))
    }

    fn hear(
        self,
        conn: &Conn,
        out: &mut [u8; channel::MAX],
    ) -> Result<(usize, Option<i32>), Silence> {
        each_channel!(self, ch => ch.hear(conn, out))
    }

    fn peek(self, conn: &Conn, out: &mut [u8; channel::MAX]) -> Result<usize, Silence> {
        each_channel!(self, ch => ch.peek(conn, out))
    }

    fn is_offer(self) -> bool {
        each_channel!(self, ch => ch.is_offer())
    }

    fn instead(self) -> Option<Seeking> {
        each_channel!(self, ch => ch.instead())
    }

    fn close(self, conn: &Conn) {
        each_channel!(self, ch => ch.close(conn))
    }
}

/// Closes whatever a connection has to meet by.
pub(super) fn close(conn: &Conn) {
    port::close(conn);
    match conn.upgrade.leave() {
        Meeting::Nowhere => {}
        Meeting::Seeking(at) => each_way!(at, at => at.close(conn)),
        Meeting::Met(ch) => ch.close(conn),
    }
}

/// Puts TCP_NOTSENT_LOWAT back, which only proving lowers, when proving is over.
pub(super) fn rest(conn: &Conn, fd: i32) {
    if !matches!(conn.upgrade.meeting(), Meeting::Seeking(Seeking::Directory(Directory::Proves(_))))
    {
        witness::let_grow(conn, fd);
    }
}
