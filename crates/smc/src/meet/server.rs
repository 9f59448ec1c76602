//! The end that listens, chooses the device and accepts.

use super::mark::{same_stream, write};
use super::*;

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
    let n = match peek(ch, buffer) {
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
            conn.peer_reason.store(d.diagnosis.code(), Relaxed);
            return Next::Tcp(reason::PEER_DECL);
        }
        _ => return decline(conn, ch, reason::CNF_ERR),
    };
    if !same_stream(&buffer[..n], fd) {
        return decline(conn, ch, reason::RENDEZVOUS);
    }
    LOOPBACK.init();
    let ours = [Device { gid: own_gid(), chid: LOOPBACK.chid() }];
    // Whoever reached us through the rendezvous is on this host, which is what loopback reaches.
    let local = Local {
        devices: &ours,
        reachable: &|_, gid| gid != Gid::default(),
        ueids: config::ueids(),
        seid: Some(Eid::LOOPBACK_SEID),
        release: RELEASE,
    };
    let choice = match negotiate::select(&theirs, &local) {
        Ok(choice) => choice,
        Err(why) => return decline(conn, ch, why),
    };
    let peer = match device(choice.gid, cred) {
        Ok(peer) => peer,
        Err(why) => return decline(conn, ch, why),
    };
    let (id, first) = match group::serve(peer, cred) {
        Ok(found) => found,
        Err(_) => {
            finish_pending(conn, peer, cred);
            match group::serve(peer, cred) {
                Ok(found) => found,
                Err(_) => return Next::Later,
            }
        }
    };
    consume(ch);
    LOOPBACK.admit(peer);
    if first {
        group::first_is(id, conn);
    }
    conn.group.store(id, Relaxed);
    conn.peer_pid.store(cred.pid as u32, Relaxed);
    let (dmb, pass) = match group::take_dmb(id, peer) {
        Ok(got) => got,
        Err(code) => {
            group::failed(id, false);
            return decline(conn, ch, Reason(code));
        }
    };
    let accept = Message::Accept(ends_message(id, &dmb, choice.eid, first, choice.release));
    let mut out = [0u8; channel::MAX];
    // The client may switch as soon as it has the Accept: our end must be watching by then.
    expose(conn, fd, &dmb);
    let sent = write(&accept, fd, &mut out).is_some_and(|n| channel::send(ch, &out[..n], pass).is_ok());
    if !sent {
        return retract(conn, reason::RENDEZVOUS);
    }
    conn.stage.store(stage::ACCEPTED, Relaxed);
    conn.looks.store(0, Relaxed);
    Next::Later
}

/// Takes another connection's first contact with `peer` to its end, if its Confirm has come: its own next operation may
/// be long in coming.
fn finish_pending(own: &Conn, peer: dibs::Gid, of: Cred) {
    let Some(first) = group::pending(peer, of) else { return };
    if core::ptr::eq(first, own) || !first.hold_upgrade() {
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
    let (n, passed) = match channel::recv(ch, buffer) {
        Ok(got) => got,
        Err(libc::EAGAIN) => return Next::Later,
        Err(_) => (0, None),
    };
    let attached = match Message::decode(&buffer[..n]) {
        Ok(Message::Confirm(confirm)) => attach_confirmed(conn, id, &confirm, passed),
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
            group::established(id, conn.my_token.load(Relaxed));
            upgraded(conn, false);
            Next::Later
        }
        Err(why) => {
            if why != reason::PEER_DECL && n != 0 {
                let _ = decline(conn, ch, why);
            }
            retract(conn, why)
        }
    }
}

fn attach_confirmed(conn: &Conn, id: u32, confirm: &Accept, passed: Option<i32>) -> Result<(), Reason> {
    let Accept::SmcD(client) = confirm else { return Err(reason::VIOLATION) };
    let SmcDLevel::V2(v2) = client.level else { return Err(reason::VIOLATION) };
    let eid = v2.eid.filter(|e| *e == Eid::LOOPBACK_SEID || config::ueids().contains(e)).ok_or(reason::VIOLATION)?;
    let expected = group::peer_of(id).ok_or(reason::SYNC_ERR)?;
    let selection = Selection {
        proposed: Proposed::Listed(0),
        gid: Gid { hi: expected.hi(), lo: expected.lo() },
        chid: LOOPBACK.chid(),
        eid,
        release: RELEASE,
        ..Selection::default()
    };
    negotiate::check_confirm(&selection, confirm)?;
    let len = client.size.bytes();
    let (header, page) = group::attach(id, expected, client.token, len, passed).ok_or(reason::MEMORY)?;
    conn.attach(header, len, client.token, page, CONFIG.copy.load(Relaxed));
    conn.commit();
    Ok(())
}

fn peek(ch: i32, buffer: &mut [u8; channel::MAX]) -> Result<usize, i32> {
    // SAFETY: the buffer is ours.
    match unsafe { sys::recv(ch, buffer.as_mut_ptr(), buffer.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT) } {
        0 => Err(libc::ECONNRESET),
        n if n < 0 => Err(-n as i32),
        n => Ok(n as usize),
    }
}
