//! The end that calls and proposes.

use super::mark::{same_stream, write};
use super::*;

/// Client: is the server there?
pub(super) fn call(conn: &Conn, fd: i32) -> Next {
    let [local, peer] = conn.names();
    match channel::connect(&peer, &local) {
        Ok(ch) => {
            conn.meeting.store(ch, Relaxed);
            if let Err(why) = admit(conn, ch) {
                return Next::Tcp(why);
            }
            LOOPBACK.init();
            let mut out = [0u8; channel::MAX];
            let Some(n) = write(&Message::Proposal(proposal()), fd, &mut out) else {
                return Next::Tcp(reason::INT_ERR);
            };
            if channel::send(ch, &out[..n], None).is_err() {
                return Next::Tcp(reason::RENDEZVOUS);
            }
            conn.stage.store(stage::PROPOSED, Relaxed);
            conn.looks.store(0, Relaxed);
            Next::Later
        }
        Err(libc::ECONNREFUSED | libc::EAGAIN | libc::EMFILE | libc::ENFILE) => {
            conn.reason.store(reason::PEER_NO_SMC.code(), Relaxed);
            Next::Later
        }
        Err(_) => Next::Tcp(reason::RENDEZVOUS),
    }
}

fn proposal() -> Proposal {
    let mut devices = Devices::new();
    let _ = devices.push(Device { gid: own_gid(), chid: LOOPBACK.chid() });
    let eids = clc::List::of(config::ueids()).unwrap_or_default();
    Proposal::smcd(RELEASE, eids, Some(Eid::LOOPBACK_SEID), devices)
}

/// Client: what does the server say?
pub(super) fn answered(conn: &Conn, fd: i32, buffer: &mut [u8; channel::MAX]) -> Next {
    let ch = conn.meeting.load(Relaxed);
    let (n, passed) = match channel::recv(ch, buffer) {
        Ok(got) => got,
        Err(libc::EAGAIN) => return Next::Later,
        Err(_) => (0, None),
    };
    let next = if n == 0 { Next::Tcp(reason::RENDEZVOUS) } else { accepted(conn, fd, ch, &buffer[..n], passed) };
    if let Some(memfd) = passed {
        sys::close(memfd);
    }
    next
}

fn accepted(conn: &Conn, fd: i32, ch: i32, raw: &[u8], passed: Option<i32>) -> Next {
    let accept = match Message::decode(raw) {
        Ok(Message::Accept(accept)) => accept,
        Ok(Message::Decline(d)) => {
            conn.peer_reason.store(d.diagnosis.code(), Relaxed);
            return Next::Tcp(reason::PEER_DECL);
        }
        _ => return decline(conn, ch, reason::CNF_ERR),
    };
    let agreed = match negotiate::check_accept(&proposal(), &accept) {
        Ok(agreed) => agreed,
        Err(why) => return decline(conn, ch, why),
    };
    let Accept::SmcD(server) = accept else { return decline(conn, ch, reason::MODE_UNSUPP) };
    let cred = match admit(conn, ch) {
        Ok(cred) => cred,
        Err(why) => return decline(conn, ch, why),
    };
    if !same_stream(raw, fd) {
        return decline(conn, ch, reason::RENDEZVOUS);
    }
    let peer = match device(server.gid, cred) {
        Ok(peer) => peer,
        Err(why) => return decline(conn, ch, why),
    };
    LOOPBACK.admit(peer);
    let id = match group::join(peer, cred, agreed.first_contact) {
        Ok(id) => id,
        Err(NoGroup::OutOfSync) => return decline(conn, ch, reason::SYNC_ERR),
        Err(NoGroup::Busy) => return decline(conn, ch, reason::MEMORY),
    };
    conn.group.store(id, Relaxed);
    conn.peer_pid.store(cred.pid as u32, Relaxed);
    let (dmb, pass) = match group::take_dmb(id, peer) {
        Ok(got) => got,
        Err(code) => {
            group::failed(id, false);
            return decline(conn, ch, Reason(code));
        }
    };
    let refuse = |why| {
        group::give_back(id, dmb.token, false);
        group::failed(id, false);
        decline(conn, ch, why)
    };
    let len = server.size.bytes();
    let Some((header, page)) = group::attach(id, peer, server.token, len, passed) else {
        return refuse(reason::MEMORY);
    };
    let eid = agreed.eid.unwrap_or(Eid::LOOPBACK_SEID);
    let confirm =
        Message::Confirm(ends_message(id, &dmb, eid, agreed.first_contact, agreed.release.unwrap_or(RELEASE)));
    let mut out = [0u8; channel::MAX];
    // The server may switch as soon as it reads the Confirm: everything must be in place before that.
    expose(conn, fd, &dmb);
    conn.attach(header, len, server.token, page, CONFIG.copy.load(Relaxed));
    let sent = write(&confirm, fd, &mut out).is_some_and(|n| channel::send(ch, &out[..n], pass).is_ok());
    if !sent {
        // Nobody is at the other end of the channel any more; the rings stay unused.
        return retract(conn, reason::RENDEZVOUS);
    }
    conn.stage.store(stage::CONFIRMED, Relaxed);
    conn.looks.store(0, Relaxed);
    Next::Later
}

/// Client: has the server attached our buffer? Until then nothing of ours may go where nobody might read it.
pub(super) fn committed(conn: &Conn, buffer: &mut [u8; channel::MAX]) -> Next {
    if conn.peer_attached() {
        group::established(conn.group.load(Relaxed), conn.my_token.load(Relaxed));
        conn.commit();
        upgraded(conn, true);
        return Next::Later;
    }
    let (n, passed) = match channel::recv(conn.meeting.load(Relaxed), buffer) {
        Ok(got) => got,
        // Hung up with our Confirm unread.
        Err(libc::ECONNRESET) => (0, None),
        // Whatever kept us from hearing it says nothing of the server, which may have attached or be about to: taking our
        // buffer back now would have its doorbells read as payload.
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
        Ok(Message::Decline(d)) => {
            conn.peer_reason.store(d.diagnosis.code(), Relaxed);
            reason::PEER_DECL
        }
        _ => reason::RENDEZVOUS,
    };
    retract(conn, why)
}
