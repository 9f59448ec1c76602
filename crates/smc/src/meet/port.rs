//! By its port: how an end is known whose user the kernel does not tell us.
//!
//! Who is at the other end of a channel the kernel says by a user, and whose the other end of the
//! connection is by another; where they are one, it is the peer. In a user namespace of its own
//! (PrivateUsers) other users have no names, and a sandbox without netlink cannot ask. Then the end
//! that accepted the connection has the other one show it: that one listens for a moment at the
//! address that its connection is bound to, and says there what it was told over the channel.
//! The kernel lets a socket listen there only if the connection's own socket agrees (SO_REUSEPORT,
//! set for that moment) and is of the same user: nobody else can, whatever of the connection he
//! sees or steers. Positions and bytes of the stream, as containers show them to each other
//! (`prove.rs`), would not do within a network namespace: every user may read the positions there.
//!
//! Where users have names the end that opened the connection, whose peer cannot show a port, has
//! the kernel's list in /proc read in netlink's place (`owner.rs`).
//!
//! An address may be shared by who has agreed to that for good (SO_REUSEADDR). So it is looked
//! first whether anybody could: then nothing is proved by it. But somebody who was let in so may
//! have closed the door behind himself, agree no more, and open it later: the look cannot tell him
//! from the connection's own socket. So the port is asked for only where `--port-proof` says that
//! clients do not set SO_REUSEADDR.

use super::*;
use crate::directory::random;
use crate::owner::{self, Owner};
use crate::proof::Said;

/// The other end was asked.
const ASKED: u32 = 1;
/// It has shown its port, or is known otherwise.
const SHOWN: u32 = 2;
/// It has none to show: the kernel's list in /proc is asked.
const NONE: u32 = 3;
/// Beside what is known of the other end: this end was asked by it.
const SHOWS: u32 = 1 << 8;
/// How often an address is tried before it counts as one that nobody may share: who has it shared
/// would have to listen at each try to bind and at no call between, to remain unseen.
const TRIES: u32 = 12;
/// Callers that are told in one step.
const CALLERS: u32 = 4;
/// Looks, and milliseconds, for the port to be shown.
const LOOKS: u32 = 16;
const PATIENCE_MS: u32 = 4000;
/// How long a call waits for what is there to answer, which is on this machine but may be busy.
const ANSWER_NS: u32 = 1_000_000;

/// Who is at the other end of the channel, if that one may be our peer, by its user or its port; a
/// Decline if not.
pub(super) fn admit(conn: &Conn, fd: i32, ch: Met) -> Result<Cred, Next> {
    let why = match ch.admit(conn) {
        Ok(cred) => return Ok(cred),
        Err(why) => why,
    };
    if !is_asked_over(ch) || !matches!(why, reason::NOBODY | reason::CANNOT_ASK) {
        return Err(decline(conn, ch, why));
    }
    let shown = match CONFIG.port_proof.load(Relaxed) {
        true => look(conn, fd, ch),
        false => Some(false),
    };
    match shown {
        Some(true) => ch.admit(conn).map_err(|why| decline(conn, ch, why)),
        Some(false) if why == reason::CANNOT_ASK => listed(conn, ch),
        Some(false) => Err(decline(conn, ch, why)),
        None => Err(Next::Later),
    }
}

/// Whether one end may ask the other for its port over such a channel: in a lane each has one
/// letter's turn, and elsewhere users are not what is looked at.
fn is_asked_over(ch: Met) -> bool {
    !matches!(ch, Met::Lane(_) | Met::Directory(_) | Met::Broker(_))
}

/// Who is at the other end of the channel, if /proc names that user as owner of the connection's other
/// end, which is as good as netlink's word.
fn listed(conn: &Conn, ch: Met) -> Result<Cred, Next> {
    let own = conn.own();
    if known(conn) != NONE {
        is_now(conn, NONE);
        own.port_number.store(random() | 1, Relaxed);
    }
    let why = match owner::of(own.port_number.load(Relaxed), &conn.identity.names()) {
        Owner::NotYet => return Err(Next::Later),
        Owner::Unknown => reason::CANNOT_ASK,
        Owner::Is(uid) => match ch.peer(conn) {
            Ok(cred) if Some(cred.uid) == uid => {
                is_now(conn, SHOWN);
                return ch.admit(conn).map_err(|why| decline(conn, ch, why));
            }
            _ => reason::PEER_UID,
        },
    };
    Err(decline(conn, ch, why))
}

/// Whether the other end has shown its port since the channel was made.
pub(super) fn is_shown(conn: &Conn) -> bool {
    known(conn) == SHOWN
}

/// How far the other end is with showing its port; 0: it was not asked.
fn known(conn: &Conn) -> u32 {
    conn.own().port.load(Relaxed) & !SHOWS
}

/// It is as far as that now. Only for who holds the upgrade.
fn is_now(conn: &Conn, state: u32) {
    let port = &conn.own().port;
    port.store(port.load(Relaxed) & SHOWS | state, Relaxed);
}

/// Whether the other end shows its port; None: not yet.
fn look(conn: &Conn, fd: i32, ch: Met) -> Option<bool> {
    let own = conn.own();
    if known(conn) == NONE {
        return Some(false);
    }
    let Some(at) = Address::of(fd, true) else { return Some(false) };
    if known(conn) != ASKED {
        // The port of an end that accepted is its listener's, whom no call of ours may reach.
        if inet::opened(fd)? {
            return Some(false);
        }
        if !hidden::room() {
            return None;
        }
        if !at.is_nobody_elses()? {
            return Some(false);
        }
        let number = random() | 1;
        own.port_number.store(number, Relaxed);
        is_now(conn, ASKED);
        conn.upgrade.looks.store(0, Relaxed);
        return if ch.say(conn, &Said::Show(number).encode(), None) { None } else { Some(false) };
    }
    let since = sys::coarse_ms().wrapping_sub(conn.upgrade.since_ms.load(Relaxed));
    if conn.upgrade.looks.load(Relaxed) > LOOKS && since > PATIENCE_MS {
        return Some(false);
    }
    let Some(socket) = held(conn) else {
        hold(conn, at.call()?);
        return None;
    };
    let mut number = [0u8; 8];
    let n = sys::read(socket, &mut number);
    if n == -(libc::EAGAIN as isize) {
        return None;
    }
    hang_up(conn);
    if n == 8 && u64::from_ne_bytes(number) == own.port_number.load(Relaxed) {
        is_now(conn, SHOWN);
        return Some(true);
    }
    None
}

/// An end that was admitted may ask for our port: shows it, and takes no other message from the
/// channel. True if that is what there is to be done now.
pub(super) fn shows(conn: &Conn, fd: i32, ch: Met) -> bool {
    if !is_asked_over(ch) {
        return false;
    }
    let mut buffer = [0u8; channel::MAX];
    let Ok(n) = ch.peek(conn, &mut buffer) else { return false };
    let Some(Said::Show(number)) = Said::decode(&buffer[..n]) else {
        // It is convinced, or has given up. That it was shown is for the link group to know.
        hang_up(conn);
        return false;
    };
    // Not a message of the handshake: it is not for its record.
    if let Ok((_, Some(uninvited))) = ch.hear(conn, &mut buffer) {
        sys::close(uninvited);
    }
    let own = conn.own();
    if own.port.fetch_or(SHOWS, Relaxed) & SHOWS == 0
        && inet::opened(fd) != Some(false)
        && hidden::room()
        && let Some(listener) = Address::of(fd, false).and_then(|at| at.listen(fd))
    {
        own.port_number.store(number, Relaxed);
        hold(conn, listener);
    }
    true
}

/// Tells who has called at our port the number that goes over the channel.
pub(super) fn answer_callers(conn: &Conn) {
    if conn.own().port.load(Relaxed) & SHOWS == 0 {
        return;
    }
    let Some(listener) = held(conn) else { return };
    let number = conn.own().port_number.load(Relaxed).to_ne_bytes();
    for _ in 0..CALLERS {
        let caller = sys::accept(listener) as i32;
        if caller < 0 {
            break;
        }
        // Who does not hear it calls again.
        let _ = channel::send(caller, &number, None);
        sys::close(caller);
    }
}

/// Nothing is shown or asked for any more.
pub(super) fn close(conn: &Conn) {
    let own = conn.own();
    if own.port.load(Relaxed) != 0 {
        hang_up(conn);
        own.port.store(0, Relaxed);
    }
}

fn held(conn: &Conn) -> Option<i32> {
    hidden::Handle::unpack(conn.own().port_socket.load(Relaxed))?.descriptor()
}

fn hold(conn: &Conn, socket: i32) {
    match hidden::handle(hidden::park(socket)) {
        Some(handle) => conn.own().port_socket.store(handle.pack(), Relaxed),
        None => _ = sys::close(socket),
    }
}

fn hang_up(conn: &Conn) {
    if let Some(handle) = hidden::Handle::unpack(conn.own().port_socket.swap(0, Relaxed)) {
        handle.close();
    }
}

/// Of one end of a connection, as the kernel has it.
struct Address([u8; 28]);

impl Address {
    fn of(fd: i32, peer: bool) -> Option<Address> {
        let raw = sys::name_of(fd, peer)?;
        inet::Addr::of(&raw).map(|_| Address(raw))
    }

    fn family(&self) -> i32 {
        u16::from_ne_bytes([self.0[0], self.0[1]]).into()
    }

    fn raw(&self) -> &[u8] {
        &self.0[..if self.family() == libc::AF_INET { 16 } else { 28 }]
    }

    fn socket(&self) -> Option<i32> {
        let fd = sys::socket(self.family(), libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0) as i32;
        (fd >= 0).then_some(fd)
    }

    /// A socket on which somebody there was reached, who has an answer at once if anybody has: it
    /// is on this machine.
    fn call(&self) -> Option<i32> {
        let fd = self.socket()?;
        // No end of it is to be remembered by the kernel.
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &at_once);
        sys::connect(fd, self.raw());
        if TcpInfo::of(fd).is_some_and(|info| info.established()) && !self.is_of(fd) {
            return Some(fd);
        }
        sys::close(fd);
        None
    }

    /// Whether nobody listens there; None: nothing answers yet.
    fn refuses(&self) -> Option<bool> {
        let fd = self.socket()?;
        let r = sys::connect(fd, self.raw());
        let mut awaited = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        let mut error = 0i32;
        if r == -(libc::EINPROGRESS as isize)
            && sys::poll_for(core::slice::from_mut(&mut awaited), ANSWER_NS) == 1
        {
            sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
        } else {
            error = -r as i32;
        }
        let is_own = error == 0 && self.is_of(fd);
        sys::close(fd);
        (error != libc::EINPROGRESS && !is_own).then_some(error == libc::ECONNREFUSED)
    }

    /// Whether the kernel has given a socket that calls there this very address, so that it has
    /// reached itself.
    fn is_of(&self, fd: i32) -> bool {
        sys::name_of(fd, false) == Some(self.0)
    }

    /// Whether its owner shares it with nobody, though that would be enough for him.
    fn is_taken(&self) -> bool {
        let Some(fd) = self.socket() else { return false };
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32);
        let r = sys::bind(fd, self.raw());
        sys::close(fd);
        r == -(libc::EADDRINUSE as isize)
    }

    /// Whether nobody but its owner can listen there; None: that cannot be told yet.
    fn is_nobody_elses(&self) -> Option<bool> {
        for _ in 0..TRIES {
            if !self.refuses()? || !self.is_taken() {
                return Some(false);
            }
        }
        self.refuses()
    }

    /// Listens at the address of the connection `fd`, whose socket agrees to that for the moment.
    fn listen(&self, fd: i32) -> Option<i32> {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEPORT);
        let mut before = 0i32;
        // What the application has so, others of its connections may have so too: then it would
        // not be this one that agrees.
        if sys::getsockopt(fd, level, name, &mut before) < 0 || before != 0 {
            return None;
        }
        let listener = self.socket()?;
        sys::setsockopt(listener, level, name, &1i32);
        sys::setsockopt(fd, level, name, &1i32);
        let listens =
            sys::bind(listener, self.raw()) == 0 && sys::listen(listener, CALLERS as i32) == 0;
        sys::setsockopt(fd, level, name, &0i32);
        if !listens {
            sys::close(listener);
        }
        listens.then_some(listener)
    }
}
