//! The end that listens, chooses the device and accepts.
#![allow(unsafe_code)]

use core::sync::atomic::AtomicU32;

use super::mark::{told, write};
use super::*;

/// Server: has one of those that were invited answered? If not, whoever comes by the connection's name is welcome.
pub(super) fn invited(conn: &Conn) -> Next {
    if let Some(lane) = lanes::answered(conn) {
        conn.meeting.store(lane, Relaxed);
        conn.stage.store(stage::MET, Relaxed);
        conn.looks.store(0, Relaxed);
        return Next::On;
    }
    if conn.looks.load(Relaxed) < WHILE_INVITED {
        return Next::Later;
    }
    close_meeting(conn);
    conn.looks.store(0, Relaxed);
    listen(conn)
}

/// There are as many hidden descriptors as may be.
pub(super) fn wait_for_room(conn: &Conn) -> Next {
    release_names();
    conn.reason.store(reason::FD_LIMIT.code(), Relaxed);
    Next::Later
}

/// Those of our connections that listen under their names, and have for so long that nobody is likely to come, start afresh
/// with their next operation.
fn release_names() {
    const LONG: u32 = 1000;
    static LAST: AtomicU32 = AtomicU32::new(0);
    let now = milliseconds();
    let Some(table) = table::get().filter(|_| now.wrapping_sub(LAST.load(Relaxed)) > LONG / 8) else { return };
    LAST.store(now, Relaxed);
    let own = sys::getpid();
    let in_use = table.high_water.load(Relaxed).min(table::CAPACITY);
    let waits = |conn: &&Conn| {
        conn.stage.load(Relaxed) == stage::LISTENING
            && conn.pid.load(Relaxed) == own
            && now.wrapping_sub(conn.listens.load(Relaxed)) > LONG
            && !witness::watches(conn)
            && !remote::is_remote(conn)
    };
    for conn in (0..in_use).map(|at| table.conn(at)).filter(waits) {
        if !conn.hold_upgrade() {
            continue;
        }
        if conn.stage.compare_exchange(stage::LISTENING, stage::START, Relaxed, Relaxed).is_ok() {
            close_meeting(conn);
            conn.next_try.store(conn.ops.load(Relaxed).saturating_add(1), Relaxed);
        }
        conn.release_upgrade();
    }
}

fn milliseconds() -> u32 {
    (sys::now_ns() / 1_000_000) as u32
}

/// Server: takes the connection's name.
pub(super) fn listen(conn: &Conn) -> Next {
    if !hidden::room() {
        conn.stage.store(stage::START, Relaxed);
        return wait_for_room(conn);
    }
    let [local, peer] = conn.names();
    match channel::listen(&local, &peer) {
        Ok(l) => {
            conn.meeting.store(l, Relaxed);
            conn.listens.store(milliseconds(), Relaxed);
            conn.stage.store(stage::LISTENING, Relaxed);
            Next::On
        }
        Err(libc::EADDRINUSE) => Next::Tcp(reason::NAME_TAKEN),
        Err(libc::EMFILE | libc::ENFILE) => {
            conn.stage.store(stage::START, Relaxed);
            Next::Later
        }
        Err(_) => Next::Tcp(reason::RENDEZVOUS),
    }
}

/// Server: has the client come?
pub(super) fn meet(conn: &Conn) -> Next {
    match channel::accept(conn.meeting.load(Relaxed)) {
        Ok(fd) => {
            close_meeting(conn);
            conn.meeting.store(fd, Relaxed);
            conn.stage.store(stage::MET, Relaxed);
            conn.looks.store(0, Relaxed);
            Next::On
        }
        Err(libc::EAGAIN | libc::EINTR | libc::EMFILE | libc::ENFILE) => Next::Later,
        Err(_) => Next::Tcp(reason::RENDEZVOUS),
    }
}

/// Server: answer the Proposal.
pub(super) fn serve(conn: &Conn, fd: i32, buffer: &mut [u8; channel::MAX]) -> Next {
    let ch = conn.meeting.load(Relaxed);
    // Peeked first: while another connection makes first contact with this peer, the Proposal waits in the socket.
    let n = match peek(conn, ch, buffer) {
        Ok(n) => n,
        Err(libc::EAGAIN) => return Next::Later,
        Err(_) => return Next::Tcp(reason::RENDEZVOUS),
    };
    let cred = match admit(conn, ch) {
        Ok(cred) => cred,
        Err(why) => return decline(conn, ch, why),
    };
    let theirs = match Message::decode(&buffer[..n]) {
        Ok(Message::Proposal(theirs)) => theirs,
        Ok(Message::Decline(d)) => {
            consume(conn, ch);
            conn.peer_reason.store(d.diagnosis.code(), Relaxed);
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
    (fd, proposal, ch): (i32, &[u8], i32),
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
        Err(code) => {
            group::failed(id, false);
            return Err(Reason(code));
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
    let sent = message.is_some_and(|n| say(conn, ch, &out[..n], lent.fd.as_ref().map(shm::Handle::raw)).is_ok());
    if !sent {
        return Ok(retract(conn, reason::RENDEZVOUS));
    }
    conn.stage.store(stage::ACCEPTED, Relaxed);
    conn.looks.store(0, Relaxed);
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
    if first.stage.load(Relaxed) == stage::ACCEPTED {
        let mut buffer = [0u8; channel::MAX];
        if let Next::Tcp(why) = confirmed(first, &mut buffer) {
            stay_tcp(first, why);
        }
    }
    first.release_upgrade();
}

/// Server: has the client confirmed?
pub(super) fn confirmed(conn: &Conn, buffer: &mut [u8; channel::MAX]) -> Next {
    let ch = conn.meeting.load(Relaxed);
    let id = conn.group.load(Relaxed);
    let (n, passed) = match hear(conn, ch, buffer) {
        Ok(got) => got,
        Err(libc::EAGAIN) => return Next::Later,
        Err(_) => (0, None),
    };
    let message = Message::decode(&buffer[..n]);
    let is_confirm = matches!(message, Ok(Message::Confirm(_)));
    let attached = match message {
        Ok(Message::Confirm(confirm)) => attach_confirmed(conn, id, &confirm, (passed, &buffer[..n])),
        Ok(Message::Decline(d)) => {
            conn.peer_reason.store(d.diagnosis.code(), Relaxed);
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

fn attach_confirmed(conn: &Conn, id: u32, confirm: &Accept, (fd, raw): (Option<i32>, &[u8])) -> Result<(), Reason> {
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
    let ch = conn.meeting.load(Relaxed);
    let hung_up = || peek(conn, ch, &mut [0; channel::MAX]) == Err(libc::ECONNRESET);
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

pub(super) fn peek(conn: &Conn, ch: i32, buffer: &mut [u8; channel::MAX]) -> Result<usize, i32> {
    if ch < 0 {
        return match lanes::recv(conn, ch, buffer, false) {
            Ok((0, _)) => Err(libc::ECONNRESET),
            got => got.map(|(n, _)| n),
        };
    }
    if channel::is_stream(ch) {
        return channel::peek_frame(ch, buffer);
    }
    // SAFETY: the buffer is ours.
    match unsafe { sys::recv(ch, buffer.as_mut_ptr(), buffer.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT) } {
        0 => Err(libc::ECONNRESET),
        n if n < 0 => Err(-n as i32),
        n => Ok(n as usize),
    }
}
