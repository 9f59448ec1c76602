//! The end that listens, chooses the device and accepts.

use super::mark::{told, write};
use super::*;

/// Server: answer the Proposal.
pub(super) fn serve(conn: &Conn, fd: i32, ch: Met) -> Next {
    let mut buffer = [0u8; channel::MAX];
    // Peeked first: while another connection makes first contact with this peer, the Proposal waits in the channel.
    let n = match ch.peek(conn, &mut buffer) {
        Ok(n) => n,
        Err(Silence::Nothing) => return Next::Later,
        Err(_) => return Next::Tcp(reason::RENDEZVOUS),
    };
    let cred = match ch.admit(conn) {
        Ok(cred) => cred,
        Err(why) => return decline(conn, ch, why),
    };
    let theirs = match Message::decode(&buffer[..n]) {
        Ok(Message::Proposal(theirs)) => theirs,
        Ok(Message::Decline(d)) => {
            consume(conn, ch);
            conn.upgrade.is_declined(d.diagnosis);
            return Next::Tcp(reason::PEER_DECL);
        }
        _ => return decline(conn, ch, reason::CNF_ERR),
    };
    let decline = |conn: &Conn, ch, why| decline_in(theirs.version, conn, ch, why);
    let mut ours = clc::List::<_, { Kind::ALL.len() }>::new();
    for kind in device::here(cred) {
        let _ = ours.push(kind.entry());
    }
    let local = Local {
        devices: &ours,
        // Which processes a device reaches is asked in turn below.
        reachable: &|device, gid| {
            ours.get(device).and_then(|ours| Kind::of_chid(ours.chid)).is_some_and(|kind| kind.may_be(gid))
        },
        ueids: config::ueids(),
        seid: config::seid(),
        release: RELEASE,
    };
    let choices = match negotiate::candidates(&theirs, &local) {
        Ok(choices) => choices,
        Err(why) => return decline(conn, ch, why),
    };
    // The first that can be set up; if none can, what is said is why the first could not.
    let mut why = None;
    for choice in choices.iter() {
        let Some(kind) = Kind::of_chid(choice.chid).filter(|kind| kind.reaches(cred)) else { continue };
        match accept(conn, (fd, &buffer[..n], ch), kind, choice, cred) {
            // Who lies about one device is not asked about the next; the others say the same of any.
            Err(why @ (reason::VIOLATION | reason::RENDEZVOUS | reason::ENDING)) => return decline(conn, ch, why),
            Err(failed) => _ = why.get_or_insert(failed),
            Ok(next) => return next,
        }
    }
    decline(conn, ch, why.unwrap_or(reason::NO_SMCD2_DEV))
}

/// Server: accepts one of the client's devices; an error if it cannot be set up.
fn accept(
    conn: &Conn,
    (fd, proposal, ch): (i32, &[u8], Met),
    kind: Kind,
    choice: &Selection,
    cred: Cred,
) -> Result<Next, Reason> {
    let peer = device(kind, choice.gid, cred)?;
    let terms = Terms { eid: choice.eid, release: choice.release };
    let (id, first) = match group::serve(kind, peer, cred, terms) {
        Ok(found) => found,
        Err(_) => {
            finish_pending(conn, kind, peer, cred);
            match group::serve(kind, peer, cred, terms) {
                Ok(found) => found,
                Err(_) => return Ok(Next::Later),
            }
        }
    };
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
    conn.group.store(id, Relaxed);
    conn.peer_pid.store(cred.pid as u32, Relaxed);
    let accept = Message::Accept(ends_message(id, kind, &dmb, Some(choice.eid), first.then_some(choice.release)));
    let mut out = [0u8; channel::MAX];
    // The client may switch as soon as it has the Accept: our end must be watching by then.
    let info = match expose(conn, fd, proposal, kind, &dmb) {
        Ok(info) if info.established() => info,
        other => {
            let why = other.err().unwrap_or(reason::ENDING);
            retract(conn, why);
            return Err(why);
        }
    };
    let message = write(&accept, &lent.told, &info, &mut out);
    let sent = message.is_some_and(|n| say(conn, ch, &out[..n], lent.fd.as_ref().map(shm::Handle::raw)));
    if !sent {
        return Ok(retract(conn, reason::RENDEZVOUS));
    }
    conn.upgrade.reach(Stage::Accepted);
    Ok(Next::Later)
}

/// Takes another connection's first contact with `peer` to its end, if its Confirm has come: its own next operation may
/// be long in coming.
fn finish_pending(own: &Conn, kind: Kind, peer: Gid, of: Cred) {
    let Some(first) = group::pending(kind, peer, of) else { return };
    // Of one that has several holders some may be another process, which would not have what is mapped now.
    if core::ptr::eq(first, own) || first.refs.load(Acquire) > 1 || !first.hold_upgrade() {
        return;
    }
    if first.upgrade.stage() == Stage::Accepted
        && let Meeting::Met(ch) = first.upgrade.meeting()
        && let Next::Tcp(why) = confirmed(first, ch)
    {
        stay_tcp(first, why);
    }
    first.release_upgrade();
}

/// Server: has the client confirmed?
pub(super) fn confirmed(conn: &Conn, ch: Met) -> Next {
    let mut buffer = [0u8; channel::MAX];
    let id = conn.group.load(Relaxed);
    let (n, passed) = match hear(conn, ch, &mut buffer) {
        Ok(got) => got,
        Err(Silence::Nothing) => return Next::Later,
        Err(_) => (0, None),
    };
    let message = Message::decode(&buffer[..n]);
    let is_confirm = matches!(message, Ok(Message::Confirm(_)));
    let attached = match message {
        Ok(Message::Confirm(confirm)) => attach_confirmed(conn, ch, &confirm, (passed, &buffer[..n])),
        Ok(Message::Decline(d)) => {
            conn.upgrade.is_declined(d.diagnosis);
            group::failed(id, d.out_of_sync);
            Err(reason::PEER_DECL)
        }
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
            if why != reason::PEER_DECL && n != 0 {
                let _ = decline(conn, ch, why);
            }
            if is_confirm { retract_confirmed(conn, why) } else { retract(conn, why) }
        }
    }
}

fn attach_confirmed(conn: &Conn, ch: Met, confirm: &Accept, (fd, raw): (Option<i32>, &[u8])) -> Result<(), Reason> {
    let id = conn.group.load(Relaxed);
    let Accept::SmcD(client) = confirm else { return Err(reason::VIOLATION) };
    let SmcDLevel::V2(v2) = client.level else { return Err(reason::VIOLATION) };
    let (expected, kind, terms) = group::peer_of(id).ok_or(reason::SYNC_ERR)?;
    let selection = Selection {
        proposed: Proposed::Listed(0),
        gid: expected,
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
    let hung_up = || ch.peek(conn, &mut [0; channel::MAX]) == Err(Silence::HungUp);
    if kind == Kind::Verbs && group::is_pending(id) && hung_up() {
        // It has given up, and the link with it, over which an answer would be waited for in vain. A link that others use is
        // there, and it waits for us to leave its buffer.
        return Err(reason::RENDEZVOUS);
    }
    let reached = group::attach(id, client.token, len, &told(raw), fd).ok_or(reason::MEMORY)?;
    conn.attach(reached, len, client.token, CONFIG.copy.load(Relaxed));
    conn.commit();
    Ok(())
}
