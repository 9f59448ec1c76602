//! Receive buffers of a group's connections, and those of its peer.

use super::*;
use dibs::ism::{Far, Place};
use dibs::loopback::slot_of;
use dibs::verbs;
use dibs::{Device as _, Dmb, NoCopy, RegisterError};

use crate::conn::{HEADER_LEN, Waits};

/// DMBs in quarantine at which an idle group is dropped as a whole.
const QUARANTINE: usize = 64;

/// What the peer must have in order to use a buffer of ours.
#[derive(Default)]
pub struct Lent {
    /// The arena's memfd, if it has not got that yet.
    pub fd: Option<shm::Handle>,
    /// Where it lies, where it cannot be mapped.
    pub at: At,
}

impl Lent {
    /// The descriptor to pass.
    pub fn fd(&self) -> Option<i32> {
        self.fd.as_ref().map(shm::Handle::raw)
    }
}

/// The same of a buffer of the peer's.
#[derive(Clone, Copy)]
pub struct Pass {
    /// See `Lent`.
    pub fd: Option<i32>,
    /// See `Lent`.
    pub at: At,
}

/// Where a buffer lies in its owner's memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum At {
    /// That is not to be known.
    #[default]
    Shared,
    /// On the ism device: its arena.
    Ism(Place),
    /// On the verbs device; at first contact also our end of the link.
    Verbs(verbs::Place, Option<verbs::End>),
}

/// A receive buffer for a new connection.
pub fn take_dmb(id: u32, peer: Gid) -> Result<(Dmb, Lent), u32> {
    with(|list| {
        let live: u32 = list.iter().map(|g| g.live).sum();
        let len = CONFIG.buffer_size(live);
        let Some(kind) = list.iter().find(|g| g.id == id).map(|g| g.kind) else { return Err(reason::SYNC_ERR.code()) };
        drop_idle(list, |g| g.id != id && g.is_in_the_way());
        // The limit is one for all devices.
        let elsewhere: u32 = list.iter().filter(|g| g.kind != kind).map(|g| g.live).sum();
        let most = CONFIG.max_buffers(len).saturating_sub(elsewhere);
        let Some(g) = list.iter_mut().find(|g| g.id == id) else { return Err(reason::SYNC_ERR.code()) };
        g.quarantine.retain(|&(token, header)| {
            // SAFETY: DMB memory is type-stable: a retired mapping reads as zeros.
            // SYNC: left.
            let quiet = unsafe { (*header).cons.load(Acquire) } & LEFT != 0;
            if quiet {
                release_dmb(g.kind, token, Some(header));
            }
            !quiet
        });
        if CONFIG.max_memory_user.load(Relaxed) != 0 && !quota::admit(device::memory() + u64::from(len)) {
            return Err(reason::MAX_USER.code());
        }
        let registered = match g.kind {
            Kind::Loopback => {
                LOOPBACK.set_max_dmbs(most);
                LOOPBACK.register_in(id, peer, len)
            }
            Kind::Ism => {
                ISM.set_max_dmbs(most);
                ISM.register_in(id, peer, len)
            }
            Kind::Ivshmem => {
                IVSHMEM.set_max_dmbs(most);
                register_in_bar(id, peer, len)
            }
            Kind::Verbs => {
                VERBS.set_max_dmbs(most);
                register_region(id, peer, len)
            }
        };
        let dmb = registered.map_err(|e| match e {
            RegisterError::NoSpace => reason::MAX_DMB.code(),
            _ => reason::MEMORY.code(),
        })?;
        g.live += 1;
        count_buffer(g, &dmb);
        let lent = match g.kind {
            Kind::Loopback => {
                let new = LOOPBACK.lend(dmb.token).filter(|(_, arena)| g.known != *arena);
                Lent { fd: new.map(|(fd, _)| fd), at: At::Shared }
            }
            Kind::Ism => Lent { fd: None, at: ISM.place(dmb.token).map_or(At::Shared, At::Ism) },
            Kind::Verbs => {
                let end = VERBS.end(id).filter(|_| g.state == State::Pending);
                Lent { fd: None, at: VERBS.place(dmb.token).map_or(At::Shared, |place| At::Verbs(place, end)) }
            }
            // Its peers have it already.
            Kind::Ivshmem => Lent::default(),
        };
        Ok((dmb, lent))
    })
    .unwrap_or(Err(reason::MEMORY.code()))
}

/// Memory that hardware writes to is bounded (RLIMIT_MEMLOCK).
fn register_region(id: u32, peer: Gid, mut len: u32) -> Result<Dmb, RegisterError> {
    const LEAST: u32 = 64 << 10;
    loop {
        match VERBS.register_in(id, peer, len) {
            Err(RegisterError::NoMemory) if len > LEAST => len /= 2,
            done => return done,
        }
    }
}

/// A bar is small, and what is in it may be the dead's.
fn register_in_bar(id: u32, peer: Gid, len: u32) -> Result<Dmb, RegisterError> {
    const LEAST: u32 = 64 << 10;
    bar::in_use();
    let mut len = len.min(IVSHMEM.largest());
    let mut reclaimed = false;
    loop {
        match IVSHMEM.register_in(id, peer, len) {
            Err(RegisterError::NoMemory) if !reclaimed => {
                bar::reclaim();
                reclaimed = true;
            }
            Err(RegisterError::NoMemory) if len > LEAST => len /= 2,
            done => return done,
        }
    }
}

/// The buffer under `header`, if anybody has written to it, may serve another connection.
fn release_dmb(kind: Kind, token: u64, header: Option<*const DmbHeader>) -> bool {
    // SAFETY: DMB memory is type-stable.
    let used = header.map_or(HEADER_LEN, |header| unsafe { (*header).used() });
    match kind {
        Kind::Loopback => LOOPBACK.release_dmb(token, used),
        Kind::Ism => ISM.release_dmb(token, used),
        Kind::Ivshmem => IVSHMEM.release_dmb(token),
        Kind::Verbs => VERBS.release_dmb(token, used),
    }
}

fn unregister_dmb(kind: Kind, token: u64) -> bool {
    match kind {
        Kind::Loopback => LOOPBACK.unregister_dmb(token),
        Kind::Ism => ISM.unregister_dmb(token),
        Kind::Ivshmem => IVSHMEM.unregister_dmb(token),
        Kind::Verbs => VERBS.unregister_dmb(token),
    }
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

/// Control page of the arena that a DMB of ours lies in; null if its device has none that a peer could look at.
pub fn own_page(kind: Kind, token: u64) -> *mut Waits {
    match kind {
        Kind::Loopback => LOOPBACK.control_page(token).cast(),
        Kind::Ism | Kind::Verbs => core::ptr::null_mut(),
        Kind::Ivshmem => IVSHMEM.control_page(token).cast(),
    }
}

/// A peer's DMB within reach.
pub enum Reached {
    /// Mapped here: its header, and the control page beside it.
    Near(*mut DmbHeader, *mut Waits),
    /// The same, in a bar.
    Bar(*mut DmbHeader, *mut Waits),
    /// In the peer's own memory, and whether a checksum goes along.
    Far(Far, bool),
    /// The same, over a link.
    Linked(verbs::Remote, bool),
}

/// Brings the peer's DMB within reach, with what came beside the message that names it.
pub fn attach(id: u32, token: u64, len: u32, pass: Pass) -> Option<Reached> {
    let known = |g: &Group| (g.peer, g.kind, g.of, g.checked, (g.state == State::Pending).then_some(g.role));
    let found = with(|list| list.iter().find(|g| g.id == id).map(known));
    let (owner, kind, of, checked, first) = found.flatten().filter(|(_, kind, ..)| !kind.is_gone())?;
    match kind {
        Kind::Loopback => {
            let a = LOOPBACK.attach_in(id, owner, token, len, pass.fd).ok()?;
            let page = LOOPBACK.peer_control_page(owner, token);
            (!page.is_null()).then_some(Reached::Near(a.addr.cast(), page.cast()))
        }
        Kind::Ivshmem => {
            bar::in_use();
            let a = IVSHMEM.attach_in(id, owner, token, len).ok()?;
            let page = IVSHMEM.peer_control_page(owner, token);
            (!page.is_null()).then_some(Reached::Bar(a.addr.cast(), page.cast()))
        }
        Kind::Ism => {
            let At::Ism(place) = pass.at else { return None };
            let far = ISM.attach_in(id, owner, token, len, of.pid, place).ok()?;
            Some(Reached::Far(far, checked))
        }
        Kind::Verbs => {
            let At::Verbs(place, end) = pass.at else { return None };
            if let Some((end, role)) = end.zip(first) {
                VERBS.connect(id, end, of.pid).ok()?;
                // The client has connected before. A link that leads nowhere shall not cost more than the upgrade.
                if role == Role::Server {
                    VERBS.probe(id).ok()?;
                }
            }
            let remote = VERBS.attach_in(id, owner, token, len, place).ok()?;
            Some(Reached::Linked(remote, checked))
        }
    }
}

/// The last descriptor of an upgraded connection is being closed.
pub fn release(conn: &Conn) {
    release_as(conn, conn.dmb_is_quiet());
}

/// The handshake has failed here, behind a Confirm: the peer has attached our buffer, and its last word there may be yet to come.
/// It would fall to the buffer's next connection, and tell that one of an end.
pub fn release_confirmed(conn: &Conn) {
    release_as(conn, conn.peer_has_left());
}

fn release_as(conn: &Conn, quiet: bool) {
    let id = conn.group.load(Relaxed);
    // Once: by the next time the buffer may be another connection's.
    let token = conn.my_token.swap(0, Relaxed);
    if token == 0 {
        return;
    }
    let died = conn.peer_died();
    let header = conn.my_header();
    let peer_token = conn.peer_token.swap(0, Relaxed);
    if peer_token != 0 {
        conn.leave();
    }
    with(|list| {
        // Without its group there is no arena either.
        let Some(at) = list.iter().position(|g| g.id == id) else { return };
        let g = &mut list[at];
        unregister_dmb(g.kind, token);
        if peer_token != 0 {
            match g.kind {
                Kind::Loopback => LOOPBACK.detach_dmb(g.peer, peer_token),
                Kind::Ism => ISM.detach_dmb(g.peer, peer_token),
                Kind::Ivshmem => IVSHMEM.detach_dmb(g.peer, peer_token),
                Kind::Verbs => VERBS.detach_dmb(g.peer, peer_token),
            };
        }
        if quiet {
            release_dmb(g.kind, token, Some(header));
        } else {
            g.quarantine.push((token, header));
        }
        g.live = g.live.saturating_sub(1);
        if died {
            // Nobody comes back to a group of a killed process, and as long as it is mapped its memory is in use.
            g.becomes(State::Dead);
        }
        if g.live == 0 && (g.state == State::Dead || g.quarantine.len() > QUARANTINE || g.is_in_the_way()) {
            drop_group(list, at);
        }
    });
}

/// A DMB taken for a connection that will not be upgraded after all.
pub fn give_back(id: u32, token: u64, exposed: bool) {
    with(|list| {
        let Some(g) = list.iter_mut().find(|g| g.id == id) else { return };
        unregister_dmb(g.kind, token);
        if !exposed {
            release_dmb(g.kind, token, None);
        }
        g.live = g.live.saturating_sub(1);
    });
}
