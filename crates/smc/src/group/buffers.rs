//! Receive buffers of a group's connections, and those of its peer.
#![allow(unsafe_code)]

use super::*;
use dibs::loopback::slot_of;
use dibs::{AttachError, Dmb, Errno, Lent, Peer, Reach, RegisterError, Told};

use crate::conn::{Buffer, HEADER_LEN, Reached, Waits};
use crate::reason::Reason;

/// DMBs in quarantine at which an idle group is dropped as a whole.
const QUARANTINE: usize = 64;

/// A DMB that is to serve another connection when its peer says that it has left it, or will not
/// attach it.
pub(super) struct Quarantined {
    token: u64,
    header: *const DmbHeader,
    /// Where the handshake was left in which it was named.
    doubt: Option<lanes::Doubt>,
}

impl Quarantined {
    fn is_quiet(&self, lanes: Option<&mut lanes::Lanes>) -> bool {
        // SAFETY: DMB memory is type-stable: a retired mapping reads as zeros.
        let header = unsafe { &*self.header };
        let over = match (&self.doubt, &lanes) {
            // Before the look at the header: a peer that attaches does so before it is done with
            // the lane.
            (Some(doubt), Some(lanes)) => lanes.is_over(doubt),
            _ => false,
        };
        // SYNC: left.
        let quiet = header.cons.load(Acquire) & LEFT != 0 || over && !header.is_attached();
        if let Some(lanes) = lanes.filter(|_| quiet || over) {
            lanes.resolve(self.token);
        }
        quiet
    }
}

/// A receive buffer for a new connection, and what the peer needs in order to use it.
pub fn take_dmb(id: u32, peer: Gid) -> Result<(Dmb, Lent), Reason> {
    with(|list| {
        let live: u32 = list.iter().map(|g| g.live).sum();
        let len = CONFIG.buffer_size(live);
        let Some(kind) = list.iter().find(|g| g.id == id).map(|g| g.kind) else {
            return Err(reason::SYNC_ERR);
        };
        drop_idle(list, |g| g.id != id && g.is_in_the_way());
        // The limit is one for all devices.
        let elsewhere: u32 = list.iter().filter(|g| g.kind != kind).map(|g| g.live).sum();
        let most = CONFIG.max_buffers(len).saturating_sub(elsewhere);
        let Some(g) = list.iter_mut().find(|g| g.id == id) else { return Err(reason::SYNC_ERR) };
        let Group { quarantine, lanes, .. } = g;
        quarantine.retain(|kept| {
            let quiet = kept.is_quiet(lanes.as_deref_mut());
            if quiet {
                release_dmb(kind, kept.token, Some(kept.header));
            }
            !quiet
        });
        // The first ones are larger than those that their number is counted in.
        if device::memory() + u64::from(len) > CONFIG.max_bytes() {
            return Err(reason::MAX_DMB);
        }
        if CONFIG.max_memory_user.load(Relaxed) != 0
            && !quota::admit(device::memory() + u64::from(len))
        {
            return Err(reason::MAX_USER);
        }
        let device = g.kind.device();
        device.set_max_dmbs(most);
        let registered = device.register_dmb(id, peer, len);
        let dmb = registered.map_err(|e| match e {
            RegisterError::NoSpace => reason::MAX_DMB,
            _ => reason::MEMORY,
        })?;
        g.live += 1;
        count_buffer(g, &dmb);
        let lent = device.describe_dmb(dmb.token, g.state == State::Pending);
        Ok((dmb, lent))
    })
    .unwrap_or(Err(reason::MEMORY))
}

/// The buffer under `header`, if anybody has written to it, may serve another connection.
fn release_dmb(kind: Kind, token: u64, header: Option<*const DmbHeader>) -> bool {
    // SAFETY: DMB memory is type-stable.
    let used = header.map_or(HEADER_LEN, |header| unsafe { (*header).used() });
    kind.device().release_dmb(token, used)
}

/// Slots are taken lowest first: one above all earlier ones is new, any other comes from the pool.
fn count_buffer(g: &mut Group, dmb: &Dmb) {
    let Some(t) = crate::table::get() else { return };
    t.stats.rx.buffers[crate::stats::bucket(dmb.len as usize)].fetch_add(1, Relaxed);
    let slots = slot_of(dmb.token) + 1;
    let fresh = slots > g.slots;
    g.slots = g.slots.max(slots);
    if fresh { &t.stats.rx.alloc } else { &t.stats.rx.reuse }.fetch_add(1, Relaxed);
}

/// Control page of the arena that a DMB of ours lies in; null if its device has none that a peer
/// could look at.
pub fn own_page(kind: Kind, token: u64) -> *mut Waits {
    kind.device().control_page(token).cast()
}

/// Brings the peer's DMB within reach, with what came beside the message that names it.
pub fn attach(
    id: u32,
    token: u64,
    len: u32,
    told: &Told,
    fd: Option<i32>,
) -> Result<Reached, Reason> {
    let known = |g: &Group| {
        let (first, has_attached) = (g.state == State::Pending, g.role == Role::Server);
        (Peer { group: id, gid: g.peer, pid: g.of.pid, first, has_attached }, g.kind, g.checked)
    };
    let found = with(|list| list.iter().find(|g| g.id == id).map(known));
    let (peer, kind, checked) = found.flatten().ok_or(reason::SYNC_ERR)?;
    if table::is_removed(kind) {
        return Err(reason::NO_SMCD2_DEV);
    }
    let reach = kind.device().attach_dmb(peer, token, len, told, fd).map_err(|e| match e {
        // The other end, in this process, has closed its connection already.
        AttachError::UnknownToken if kind.generation_of(peer.gid).is_some() => reason::RENDEZVOUS,
        AttachError::UnknownToken => reason::SYNC_ERR,
        AttachError::BadShare => reason::VIOLATION,
        AttachError::Os(Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::FBIG) => reason::MEMORY,
        AttachError::Os(Errno::SRCH | Errno::NOTCONN) => reason::RENDEZVOUS,
        AttachError::Os(_) => reason::SYSTEM,
    })?;
    let buffer = match reach {
        Reach::Mapped { addr, page } => Buffer::Mapped(addr.cast(), page.cast()),
        Reach::Far(far) => Buffer::Far(far),
        Reach::Linked(remote) => Buffer::Linked(remote),
        // A connection writes words of the buffer's header, too.
        Reach::Moved => return Err(reason::NO_SMCD2_DEV),
    };
    let checked = checked && !matches!(buffer, Buffer::Mapped(..));
    Ok(Reached { kind, buffer, checked })
}

/// The last descriptor of an upgraded connection is being closed.
pub fn release(conn: &Conn) {
    release_as(conn, conn.dmb_is_quiet());
}

/// The handshake has failed here, behind a Confirm: the peer has attached our buffer, and its last
/// word there may be yet to come. It would fall to the buffer's next connection, and tell that one
/// of an end.
pub fn release_confirmed(conn: &Conn) {
    release_as(conn, conn.peer_has_left());
}

fn release_as(conn: &Conn, quiet: bool) {
    let id = conn.link_group();
    // Once: by the next time the buffer may be another connection's.
    let token = conn.own().my_token.swap(0, Relaxed);
    conn.identity.my_token.store(0, Relaxed);
    if token == 0 {
        return;
    }
    let died = conn.peer_died();
    let header = conn.my_header();
    let peer_token = conn.own().peer_token.swap(0, Relaxed);
    conn.identity.peer_token.store(0, Relaxed);
    if peer_token != 0 {
        conn.leave();
    }
    with(|list| {
        // Without its group there is no arena either.
        let Some(at) = list.iter().position(|g| g.id == id) else { return };
        let g = &mut list[at];
        let device = g.kind.device();
        device.unregister_dmb(token);
        if peer_token != 0 {
            device.detach_dmb(g.peer, peer_token);
        }
        if quiet {
            release_dmb(g.kind, token, Some(header));
            if let Some(lanes) = &mut g.lanes {
                lanes.resolve(token);
            }
        } else {
            let doubt = g.lanes.as_deref().and_then(|lanes| lanes.left_in_doubt(token));
            g.quarantine.push(Quarantined { token, header, doubt });
        }
        g.live = g.live.saturating_sub(1);
        if died {
            // Nobody comes back to a group of a killed process, and as long as it is mapped its
            // memory is in use.
            g.becomes(State::Dead);
        }
        if g.live == 0
            && (g.state == State::Dead || g.quarantine.len() > QUARANTINE || g.is_in_the_way())
        {
            drop_group(list, at);
        }
    });
}

/// A DMB taken for a connection that will not be upgraded after all.
pub fn give_back(id: u32, token: u64, exposed: bool) {
    with(|list| {
        let Some(g) = list.iter_mut().find(|g| g.id == id) else { return };
        g.kind.device().unregister_dmb(token);
        if !exposed {
            release_dmb(g.kind, token, None);
        }
        g.live = g.live.saturating_sub(1);
    });
}
