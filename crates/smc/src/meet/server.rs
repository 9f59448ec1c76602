//! The end that listens, chooses the device and accepts.

use super::mark::{fresh, releases, told};
use super::*;
use crate::conn::upgrade::REFUSES;

/// Server: answer the Proposal.
#[inline(never)]
pub(super) fn serve(conn: &Conn, fd: i32, ch: Met) -> Next {
    if ch.is_offer() {
        return take(conn, fd, ch);
    }
    port::answer_callers(conn);
    let mut buffer = [0u8; channel::MAX];
    // Peeked first: while another connection makes first contact with this peer, the Proposal waits
    // in the channel.
    let n = match ch.peek(conn, &mut buffer) {
        Ok(n) => n,
        Err(Silence::Nothing) => return Next::Later,
        Err(_) => return Next::Tcp(reason::RENDEZVOUS),
    };
    let cred = match port::admit(conn, fd, ch) {
        Ok(cred) => cred,
        Err(next) => return next,
    };
    if port::shows(conn, fd, ch) {
        return Next::Later;
    }
    let found = choices(conn, ch, &buffer[..n], cred);
    let (version, choices) = match &found {
        Ok(found) => found,
        Err(next) => return *next,
    };
    let decline = |conn: &Conn, ch, why| decline_in(*version, conn, ch, why);
    // The first that can be set up; if none can, what is said is why the first could not.
    let mut why = None;
    for choice in choices.iter() {
        let Some(kind) = Kind::of_chid(choice.chid).filter(|kind| kind.reaches(cred)) else {
            continue;
        };
        match accept(conn, (fd, &buffer[..n], ch), kind, choice, cred) {
            // Who lies about one device is not asked about the next; the others say the same of
            // any.
            Err(why @ (reason::VIOLATION | reason::RENDEZVOUS | reason::ENDING)) => {
                return decline(conn, ch, why);
            }
            Err(failed) => _ = why.get_or_insert(failed),
            Ok(next) => return next,
        }
    }
    decline(conn, ch, why.unwrap_or(reason::NO_SMCD2_DEV))
}

/// What the Proposal offers of what can be had, the best first, and the version to answer in.
#[inline(never)]
fn choices(
    conn: &Conn,
    ch: Met,
    proposal: &[u8],
    cred: Cred,
) -> Result<(Version, Candidates), Next> {
    let message = Message::decode(proposal);
    let theirs = match &message {
        Ok(Message::Proposal(theirs)) => theirs,
        Ok(Message::Decline(d)) => {
            consume(conn, ch);
            return Err(Next::Tcp(declined(conn, d)));
        }
        _ => return Err(decline(conn, ch, reason::CNF_ERR)),
    };
    let declined = |why| decline_in(theirs.version, conn, ch, why);
    speaks_ours(conn, proposal).map_err(declined)?;
    let mut ours = clc::List::<_, { Kind::ALL.len() }>::new();
    for kind in device::here(cred) {
        let _ = ours.push(kind.entry());
    }
    let local = Local {
        devices: &ours,
        // Which processes a device reaches is asked in turn below.
        reachable: &|device, gid| {
            ours.get(device)
                .and_then(|ours| Kind::of_chid(ours.chid))
                .is_some_and(|kind| kind.may_be(gid))
        },
        ueids: config::ueids(),
        seid: config::seid(),
        release: RELEASE,
    };
    let choices = negotiate::candidates(theirs, &local).map_err(declined)?;
    Ok((theirs.version, choices))
}

/// Server: accepts a connection that was offered in a lane, on the terms of the link group. Who
/// offers what is not its own, or cannot be served, is passed over: the connection goes on as if
/// nothing had been offered.
#[inline(never)]
fn take(conn: &Conn, fd: i32, ch: Met) -> Next {
    let Meeting::Met(Met::Lane(place)) = conn.upgrade.meeting() else { return Next::Later };
    let accepted = || {
        let cred = ch.admit(conn)?;
        let (peer, kind, terms) = group::peer_of(place.group).ok_or(reason::SYNC_ERR)?;
        device(kind, peer, cred)?;
        if !device::here(cred).any(|here| here == kind) || !kind.reaches(cred) {
            return Err(reason::NO_SMCD2_DEV);
        }
        let choice = Selection {
            proposed: Proposed::Listed(0),
            gid: peer,
            chid: kind.chid(),
            eid: terms.eid,
            release: terms.release,
            ..Selection::default()
        };
        accept_in(conn, (fd, &fresh(), ch), (kind, place.group, false), &choice, cred)
    };
    let was_frozen = conn.is_frozen();
    match accepted() {
        Ok(next @ (Next::Later | Next::On)) => next,
        // Perhaps it was withdrawn, which is for good otherwise.
        _ => {
            if !was_frozen {
                conn.clear(p::FROZEN);
            }
            pass_over(conn)
        }
    }
}

/// Server: nobody has begun to use our buffer, and nobody will: looks for the other end afresh.
fn pass_over(conn: &Conn) -> Next {
    conn.hide();
    group::release(conn);
    rendezvous::close(conn);
    conn.upgrade.offered.store(REFUSES, Relaxed);
    conn.upgrade.reach(Stage::Meeting);
    Next::Later
}

/// Server: accepts one of the client's devices; an error if it cannot be set up.
#[inline(never)]
fn accept(
    conn: &Conn,
    (fd, proposal, ch): (i32, &[u8], Met),
    kind: Kind,
    choice: &Selection,
    cred: Cred,
) -> Result<Next, Reason> {
    let peer = device(kind, choice.gid, cred)?;
    let terms = Terms { eid: choice.eid, release: choice.release };
    let Some(now) = group::generation() else { return Ok(Next::Later) };
    // Its other end, of this process, may have proposed before a fork.
    let generation = kind.generation_of(choice.gid).unwrap_or(now);
    let (id, first) = match group::serve(kind, peer, cred, terms, generation) {
        Ok(found) => found,
        Err(_) => {
            finish_pending(conn, kind, peer, cred);
            match group::serve(kind, peer, cred, terms, generation) {
                Ok(found) => found,
                Err(_) => return Ok(Next::Later),
            }
        }
    };
    accept_in(conn, (fd, proposal, ch), (kind, id, first), choice, cred)
}

/// The same in a link group, of which `first` is the first contact.
#[inline(never)]
fn accept_in(
    conn: &Conn,
    (fd, proposal, ch): (i32, &[u8], Met),
    (kind, id, first): (Kind, u32, bool),
    choice: &Selection,
    cred: Cred,
) -> Result<Next, Reason> {
    let peer = choice.gid;
    kind.device().admit(peer);
    let (dmb, lent) = match group::take_dmb(id, peer) {
        Ok(got) => got,
        Err(why) => {
            group::failed(id, false);
            return Err(why);
        }
    };
    consume(conn, ch);
    if first {
        group::first_is(id, conn);
    }
    conn.join(id);
    conn.identity.peer_pid.store(cred.pid as u32, Relaxed);
    // Expose before the Accept is out: the client attaches on it. It switches only when we have
    // attached its buffer.
    let info = match expose(conn, fd, proposal, kind, &dmb) {
        Ok(info) if info.established() => info,
        other => {
            let why = other.err().unwrap_or(reason::ENDING);
            retract(conn, why);
            return Err(why);
        }
    };
    let first = first.then_some(choice.release);
    let ours = || Message::Accept(ends_message(id, kind, &dmb, Some(choice.eid), first));
    if !say_ours(conn, ch, ours, &lent, &info) {
        return Ok(retract(conn, reason::RENDEZVOUS));
    }
    conn.upgrade.reach(Stage::Accepted);
    Ok(Next::Later)
}

/// Takes another connection's first contact with `peer` to its end, if its Confirm has come: its
/// own next operation may be long in coming.
#[inline(never)]
fn finish_pending(own: &Conn, kind: Kind, peer: Gid, of: Cred) {
    let Some(first) = group::pending(kind, peer, of) else { return };
    // Of one that has several holders some may be another process, which would not have what is
    // mapped now.
    if core::ptr::eq(first, own) || !first.hold_upgrade() {
        return;
    }
    // Behind the hold: a fork, and who closes the last descriptor, count first and then wait for
    // the hold, so that either they wait for this step, or it is not taken. In a slot that was given
    // to another connection it would attach that to this one's buffers.
    if first.identity.refs.load(Acquire) == 1
        && first.upgrade.stage() == Stage::Accepted
        && let Meeting::Met(ch) = first.upgrade.meeting()
        && let Next::Tcp(why) = confirmed(first, ch)
    {
        stay_tcp(first, why);
    }
    first.release_upgrade();
}

/// Server: has the client confirmed?
#[inline(never)]
pub(super) fn confirmed(conn: &Conn, ch: Met) -> Next {
    let mut buffer = [0u8; channel::MAX];
    let id = conn.link_group();
    let (n, passed) = match hear(conn, ch, &mut buffer) {
        Ok(got) => got,
        Err(Silence::Nothing) => return Next::Later,
        // Our own lanes are gone, which says nothing of the client: it may have attached, and use
        // our buffer to the end.
        Err(Silence::Unusable) if matches!(ch, Met::Lane(_)) => return Next::Later,
        Err(_) => (0, None),
    };
    let message = Message::decode(&buffer[..n]);
    let is_confirm = matches!(message, Ok(Message::Confirm(_)));
    let is_decline = matches!(message, Ok(Message::Decline(_)));
    let attached = match &message {
        Ok(Message::Confirm(confirm)) => {
            attach_confirmed(conn, ch, confirm, (passed, &buffer[..n]))
        }
        Ok(Message::Decline(d)) => {
            group::failed(id, d.out_of_sync);
            Err(declined(conn, d))
        }
        // It went on without us, before it could see our answer.
        _ if n == 0 && ch.is_offer() => return pass_over(conn),
        // Gone without a word: closed, or not able to go on.
        _ if n == 0 => Err(reason::RENDEZVOUS),
        _ => Err(reason::CNF_ERR),
    };
    if let Some(memfd) = passed {
        sys::close(memfd);
    }
    match attached {
        Ok(()) => {
            group::established(conn);
            upgraded(conn, false);
            Next::Later
        }
        Err(why) => {
            if !is_decline && n != 0 {
                let _ = decline(conn, ch, why);
            }
            if is_confirm { retract_confirmed(conn, why) } else { retract(conn, why) }
        }
    }
}

#[inline(never)]
fn attach_confirmed(
    conn: &Conn,
    ch: Met,
    confirm: &Accept,
    (fd, raw): (Option<i32>, &[u8]),
) -> Result<(), Reason> {
    let id = conn.link_group();
    let Accept::SmcD(client) = confirm else { return Err(reason::VIOLATION) };
    let SmcDLevel::V2(v2) = &client.level else { return Err(reason::VIOLATION) };
    let (expected, kind, terms) = group::peer_of(id).ok_or(reason::SYNC_ERR)?;
    let selection = Selection {
        proposed: Proposed::Listed(0),
        // By whichever of ours it has called itself, it is this process.
        gid: if [expected, client.gid].iter().all(|gid| kind.generation_of(*gid).is_some()) {
            client.gid
        } else {
            expected
        },
        chid: kind.chid(),
        eid: terms.eid,
        release: terms.release,
        ..Selection::default()
    };
    negotiate::check_confirm(&selection, confirm)?;
    let len = client.size.bytes();
    if let Some(first) = &v2.first_contact {
        group::introduced(id, first);
    }
    #[inline(never)]
    fn hung_up(conn: &Conn, ch: Met) -> bool {
        ch.peek(conn, &mut [0; channel::MAX]) == Err(Silence::HungUp)
    }
    if kind == Kind::Verbs && group::is_pending(id) && hung_up(conn, ch) {
        // It has given up, and the link with it, over which an answer would be waited for in vain.
        // A link that others use is there, and it waits for us to leave its buffer.
        return Err(reason::RENDEZVOUS);
    }
    let reached = group::attach(id, client.token, len, &told(raw), fd)?;
    let copy = CONFIG.copy.load(Relaxed);
    conn.attach(reached, len, client.token, copy, releases(raw));
    conn.commit();
    Ok(())
}
