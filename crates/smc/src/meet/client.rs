//! The end that calls and proposes.

use super::mark::{releases, told, write};
use super::*;
use crate::conn::upgrade::NOT;

/// Takes another connection's first contact to its end, if the server has attached: its own next
/// operation may be long in coming.
pub(super) fn finish_first(own: &Conn) {
    // Its slot may be another connection's by now, of a fork child too, whose buffers are not
    // mapped here.
    let waits = |first: &Conn| {
        first.upgrade.stage() == Stage::Confirmed
            && first.identity.pid.load(Relaxed) == sys::getpid()
            && first.identity.refs.load(Acquire) != 0
            && first.peer_attached()
    };
    let Some(first) = group::unfinished(waits) else { return };
    if core::ptr::eq(first, own) || !first.hold_upgrade() {
        return;
    }
    if waits(first) {
        let _ = committed(first);
    }
    first.release_upgrade();
}

/// Client: proposes to whoever is at the other end of the channel.
#[inline(never)]
pub(super) fn propose(conn: &Conn, fd: i32, ch: Met) -> Next {
    let cred = match port::admit(conn, fd, ch) {
        Ok(cred) => cred,
        Err(next) => return next,
    };
    let Some(generation) = group::generation() else { return Next::Later };
    conn.own().generation.store(generation, Relaxed);
    let Some(proposal) = proposal(cred, generation) else {
        return decline(conn, ch, reason::NO_SMC_DEV);
    };
    let mut out = [0u8; channel::MAX];
    let message = Message::Proposal(proposal);
    let Some(info) = TcpInfo::of(fd) else { return decline(conn, ch, reason::SYSTEM) };
    if !info.established() {
        return decline(conn, ch, reason::ENDING);
    }
    let Some(n) = write(&message, &Told::default(), &info, &mut out) else {
        return Next::Tcp(reason::INT_ERR);
    };
    if !say(conn, ch, &out[..n], None) {
        return unanswered(conn, ch);
    }
    conn.upgrade.reach(Stage::Proposed);
    Next::Later
}

/// The server is not there, or gone without an answer: it may be met in another place.
fn unanswered(conn: &Conn, ch: Met) -> Next {
    let Some(other) = ch.instead() else { return Next::Tcp(reason::RENDEZVOUS) };
    let was_offered = ch.is_offer();
    rendezvous::close(conn);
    if was_offered {
        // By its addresses this end may be the one that listens.
        conn.upgrade.offered.store(NOT, Relaxed);
    } else {
        conn.upgrade.seek(other);
    }
    conn.upgrade.reach(Stage::Meeting);
    Next::Later
}

/// None when there is no device to propose.
#[inline(never)]
fn proposal(to: Cred, generation: u32) -> Option<Proposal> {
    let mut devices = Devices::new();
    for kind in device::offered(to) {
        let _ = devices.push(kind.entry_at(generation));
    }
    if devices.as_slice().is_empty() {
        return None;
    }
    let eids = clc::List::of(config::ueids()).unwrap_or_default();
    Some(Proposal::smcd(RELEASE, eids, config::seid(), devices))
}

/// Client: what does the server say?
#[inline(never)]
pub(super) fn answered(conn: &Conn, fd: i32, ch: Met) -> Next {
    port::answer_callers(conn);
    if port::shows(conn, fd, ch) {
        return Next::Later;
    }
    let mut buffer = [0u8; channel::MAX];
    let (n, passed) = match hear(conn, ch, &mut buffer) {
        Ok(got) => got,
        Err(Silence::Nothing) => return Next::Later,
        Err(_) => return unanswered(conn, ch),
    };
    let next = accepted(conn, fd, ch, &buffer[..n], passed);
    if let Some(memfd) = passed {
        sys::close(memfd);
    }
    next
}

/// The server's Accept, if that is what came.
#[inline(never)]
fn accept(conn: &Conn, ch: Met, raw: &[u8]) -> Result<Accept, Next> {
    match Message::decode(raw) {
        Ok(Message::Accept(accept)) => Ok(accept),
        Ok(Message::Decline(d)) => Err(Next::Tcp(declined(conn, &d))),
        // Another process of the group can write there too: what is no message keeps the connection
        // from nothing.
        _ if ch.is_offer() => Err(unanswered(conn, ch)),
        _ => Err(decline(conn, ch, reason::CNF_ERR)),
    }
}

/// What an Accept comes to beside what we propose to this peer.
#[inline(never)]
fn agreed(cred: Cred, generation: u32, accept: &Accept) -> Result<negotiate::Accepted, Reason> {
    let proposed = proposal(cred, generation).ok_or(reason::NO_SMC_DEV)?;
    negotiate::check_accept(&proposed, accept)
}

#[inline(never)]
fn accepted(conn: &Conn, fd: i32, ch: Met, raw: &[u8], passed: Option<i32>) -> Next {
    let accept = match accept(conn, ch, raw) {
        Ok(accept) => accept,
        Err(next) => return next,
    };
    if let Err(why) = speaks_ours(conn, raw) {
        return decline(conn, ch, why);
    }
    // Who is offered a connection is asked who it is when it answers: before that the kernel may
    // not know whose the other end is.
    let cred = match if ch.is_offer() { ch.admit(conn) } else { ch.peer(conn) } {
        Ok(cred) => cred,
        Err(_) if ch.is_offer() => return unanswered(conn, ch),
        Err(why) => return decline(conn, ch, why),
    };
    // It may have lost its rights meanwhile: then it is as if it had proposed nothing.
    let generation = conn.own().generation.load(Relaxed);
    let agreed = match agreed(cred, generation, &accept) {
        Ok(agreed) => agreed,
        Err(why) => return decline(conn, ch, why),
    };
    let Accept::SmcD(server) = accept else { return decline(conn, ch, reason::MODE_UNSUPP) };
    let SmcDLevel::V2(SmcDv2 { chid, first_contact, .. }) = server.level else {
        return decline(conn, ch, reason::MODE_UNSUPP);
    };
    let Some(kind) = Kind::of_chid(chid) else { return decline(conn, ch, reason::VIOLATION) };
    let peer = match device(kind, server.gid, cred) {
        Ok(peer) => peer,
        Err(why) => return decline(conn, ch, why),
    };
    kind.device().admit(peer);
    let release = first_contact.map(|first| agreed.release.unwrap_or(first.release));
    let joined = match ch {
        // In the group whose lane it is, in which the other end may have any role.
        Met::Lane(_) if ch.is_offer() && release.is_some() => Err(NoGroup::OutOfSync),
        Met::Lane(place) if ch.is_offer() => group::goes_on(place.group, kind, peer, generation),
        _ => group::join(kind, peer, cred, agreed.eid.unwrap_or_default(), release, generation),
    };
    let id = match joined {
        Ok(id) => id,
        Err(NoGroup::OutOfSync) => return decline(conn, ch, reason::SYNC_ERR),
        Err(NoGroup::Busy) => return decline(conn, ch, reason::MEMORY),
    };
    if let Some(first) = &first_contact {
        group::introduced(id, first);
        group::first_is(id, conn);
    }
    conn.join(id);
    conn.identity.peer_pid.store(cred.pid as u32, Relaxed);
    let (dmb, lent) = match group::take_dmb(id, peer) {
        Ok(got) => got,
        Err(why) => {
            group::failed(id, false);
            return decline(conn, ch, why);
        }
    };
    let refuse = |why| {
        decline(conn, ch, why);
        retract(conn, why)
    };
    let info = match expose(conn, fd, raw, kind, &dmb) {
        Ok(info) => info,
        Err(why) => return refuse(why),
    };
    let len = server.size.bytes();
    let reached = match group::attach(id, server.token, len, &told(raw), passed) {
        Ok(reached) => reached,
        Err(why) => return refuse(why),
    };
    // The server may switch as soon as it reads the Confirm: everything must be in place before
    // that.
    let copy = CONFIG.copy.load(Relaxed);
    conn.attach(reached, len, server.token, copy, releases(raw));
    let ours = || Message::Confirm(ends_message(id, kind, &dmb, agreed.eid, release));
    if !say_ours(conn, ch, ours, &lent, &info) {
        // Nobody is at the other end of the channel any more; the rings stay unused.
        return retract(conn, reason::RENDEZVOUS);
    }
    conn.upgrade.reach(Stage::Confirmed);
    Next::Later
}

/// Client: has the server attached our buffer? Until then nothing of ours may go where nobody might
/// read it.
#[inline(never)]
pub(super) fn committed(conn: &Conn) -> Next {
    if conn.peer_attached() {
        group::established(conn);
        conn.commit();
        upgraded(conn, true);
        return Next::Later;
    }
    let Meeting::Met(ch) = conn.upgrade.meeting() else { return Next::Later };
    let mut buffer = [0u8; channel::MAX];
    let (n, passed) = match hear(conn, ch, &mut buffer) {
        Ok(got) => got,
        Err(Silence::HungUp) => (0, None),
        // Whatever keeps us from hearing it says nothing of the server, which may have attached or
        // be about to: taking our buffer back now would have its doorbells read as payload.
        Err(_) => return Next::Later,
    };
    if let Some(memfd) = passed {
        sys::close(memfd);
    }
    // The server hangs up after it has attached.
    if conn.peer_attached() {
        return Next::On;
    }
    let why = match Message::decode(&buffer[..n]) {
        Ok(Message::Decline(d)) => declined(conn, &d),
        _ => reason::RENDEZVOUS,
    };
    retract(conn, why)
}
