//! Link groups: all connections between this process and one peer process in one role.
//!
//! The first contact makes a group and passes a memfd with an arena of pooled DMBs each way; later connections take
//! DMBs from it and cost no descriptor, no mapping and no page fault.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::*};

use dibs::loopback::{arena_of, slot_of};
use dibs::{Device, Dmb, Gid, Loopback, NoCopy, RegisterError};
use shm::lock::FastLock;

use crate::channel::Cred;
use crate::config::CONFIG;
use crate::conn::{Conn, DmbHeader, LEFT, Waits};
use crate::{quota, reason, sys};

/// The loopback device of this process.
pub static LOOPBACK: Loopback = Loopback::new();

/// Which end of the handshake we are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Sends the Proposal.
    Client,
    /// Answers it.
    Server,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// First contact under way.
    Pending,
    Ready,
    /// No new connections; goes with its last one.
    Dead,
}

struct Group {
    id: u32,
    role: Role,
    peer: Gid,
    /// The peer's process, as the kernel vouches: a GID alone is only what somebody says.
    of: Cred,
    state: State,
    live: u32,
    /// The connection that makes first contact.
    first: *const Conn,
    /// Slots of the own arena that were ever in use.
    slots: u32,
    /// Own arena whose memfd the peer already has.
    known: u64,
    /// DMBs given up here that the peer may still write to: reused when it says that it has left.
    quarantine: Vec<(u64, *const DmbHeader)>,
}

/// Groups without connections that are kept for the next connection to the same process.
const IDLE_GROUPS: usize = 8;
/// DMBs in quarantine at which an idle group is dropped as a whole.
const QUARANTINE: usize = 64;

struct Groups {
    lock: FastLock<false>,
    list: UnsafeCell<Vec<Group>>,
}
// SAFETY: the list is only touched under the lock.
unsafe impl Sync for Groups {}
static GROUPS: Groups = Groups { lock: FastLock::new(), list: UnsafeCell::new(Vec::new()) };
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// Why no group can be had.
#[derive(Debug, PartialEq, Eq)]
pub enum NoGroup {
    /// Another connection is making first contact with the same peer: ask again later.
    Busy,
    /// There is none, and the peer believes there is.
    OutOfSync,
}

fn with<R>(f: impl FnOnce(&mut Vec<Group>) -> R) -> Option<R> {
    let _guard = GROUPS.lock.lock().ok()?;
    // SAFETY: the lock is held.
    let r = f(unsafe { &mut *GROUPS.list.get() });
    if CONFIG.max_memory_user.load(Relaxed) != 0 {
        quota::note(LOOPBACK.memory());
    }
    Some(r)
}

/// Server: the group for a proposing peer and whether this is first contact.
pub fn serve(peer: Gid, of: Cred) -> Result<(u32, bool), NoGroup> {
    with(|list| {
        match list.iter().find(|g| g.role == Role::Server && g.peer == peer && g.of == of && g.state != State::Dead) {
            Some(g) if g.state == State::Ready => Ok((g.id, false)),
            Some(_) => Err(NoGroup::Busy),
            None => Ok((add(list, Role::Server, peer, of), true)),
        }
    })
    .unwrap_or(Err(NoGroup::Busy))
}

/// Client: the group that an Accept speaks of.
pub fn join(peer: Gid, of: Cred, first_contact: bool) -> Result<u32, NoGroup> {
    with(|list| {
        let known =
            list.iter_mut().find(|g| g.role == Role::Client && g.peer == peer && g.of == of && g.state != State::Dead);
        match (known, first_contact) {
            (Some(g), false) => {
                // A server that reuses the group has read our first Confirm, also if that connection has not looked since.
                g.state = State::Ready;
                Ok(g.id)
            }
            (None, false) => Err(NoGroup::OutOfSync),
            (old, true) => {
                // The server has lost its half: ours serves its connections to their end.
                if let Some(old) = old {
                    old.state = State::Dead;
                    let id = old.id;
                    if let Some(at) = list.iter().position(|g| g.id == id && g.live == 0) {
                        drop_group(list, at);
                    }
                }
                let id = add(list, Role::Client, peer, of);
                Ok(id)
            }
        }
    })
    .unwrap_or(Err(NoGroup::Busy))
}

fn add(list: &mut Vec<Group>, role: Role, peer: Gid, of: Cred) -> u32 {
    let idle = |g: &Group| g.live == 0 && g.state != State::Pending;
    while let Some(at) = list.iter().position(|g| idle(g) && has_ended(g.of)) {
        drop_group(list, at);
    }
    while list.iter().filter(|g| idle(g)).count() > IDLE_GROUPS {
        let Some(at) = list.iter().position(idle) else { break };
        drop_group(list, at);
    }
    let id = NEXT_ID.fetch_add(1, Relaxed);
    list.push(Group {
        id,
        role,
        peer,
        of,
        state: State::Pending,
        live: 0,
        first: core::ptr::null(),
        slots: 0,
        known: 0,
        quarantine: Vec::new(),
    });
    if let Some(t) = crate::table::get() {
        t.stats.link_groups.fetch_add(1, Relaxed);
    }
    id
}

/// Whether a process is gone, and nobody will join its group any more. Doubts count as no.
fn has_ended(of: Cred) -> bool {
    // SAFETY: integers only; signal 0 is none.
    of.pid > 0 && unsafe { sys::syscall(libc::SYS_kill, of.pid as usize, 0, 0, 0, 0, 0) } == -(libc::ESRCH as isize)
}

fn drop_group(list: &mut Vec<Group>, at: usize) {
    let g = list.swap_remove(at);
    LOOPBACK.drop_group(g.id);
}

/// A handshake is complete: the peer has the arena of our DMB `token`, so its descriptor is needed no more.
pub fn established(id: u32, token: u64) {
    with(|list| {
        let Some(g) = list.iter_mut().find(|g| g.id == id) else { return };
        if g.state == State::Pending {
            g.state = State::Ready;
        }
        g.known = arena_of(token);
        LOOPBACK.close_share(token);
    });
}

/// A handshake in this group failed. A group in first contact goes; so does one that is out of sync.
pub fn failed(id: u32, out_of_sync: bool) {
    with(|list| {
        if let Some(at) = list.iter().position(|g| g.id == id) {
            if list[at].state == State::Pending || out_of_sync {
                list[at].state = State::Dead;
            }
            if list[at].state == State::Dead && list[at].live == 0 {
                drop_group(list, at);
            }
        }
    });
}

/// `conn` makes first contact in this group.
pub fn first_is(id: u32, conn: &Conn) {
    with(|list| {
        if let Some(g) = list.iter_mut().find(|g| g.id == id) {
            g.first = conn;
        }
    });
}

/// The connection whose first contact keeps others from joining the group with this peer: it may have gone idle, with
/// the peer's Confirm waiting to be read.
pub fn pending(peer: Gid, of: Cred) -> Option<&'static Conn> {
    let first = with(|list| {
        list.iter()
            .find(|g| (g.peer, g.of) == (peer, of) && g.role == Role::Server && g.state == State::Pending)
            .map(|g| g.first)
    })??;
    // SAFETY: null, or a slot of the table, which is never unmapped.
    unsafe { first.as_ref() }
}

/// A receive buffer for a new connection, with the memfd to pass if the peer has not got it yet.
pub fn take_dmb(id: u32, peer: Gid) -> Result<(Dmb, Option<i32>), u32> {
    with(|list| {
        let len = CONFIG.buffer_size(list.iter().map(|g| g.live).sum());
        let Some(g) = list.iter_mut().find(|g| g.id == id) else { return Err(reason::SYNC_ERR.code()) };
        g.quarantine.retain(|&(token, header)| {
            // SAFETY: DMB memory is type-stable: a retired mapping reads as zeros.
            // SYNC: left.
            let quiet = unsafe { (*header).cons.load(Acquire) } & LEFT != 0;
            if quiet {
                LOOPBACK.release_dmb(token);
            }
            !quiet
        });
        LOOPBACK.set_max_dmbs(CONFIG.max_buffers(len));
        if CONFIG.max_memory_user.load(Relaxed) != 0 && !quota::admit(LOOPBACK.memory() + u64::from(len)) {
            return Err(reason::MAX_USER.code());
        }
        let dmb = LOOPBACK.register_in(id, peer, len).map_err(|e| match e {
            RegisterError::NoSpace => reason::MAX_DMB.code(),
            _ => reason::MEMORY.code(),
        })?;
        g.live += 1;
        count_buffer(g, &dmb);
        let share = LOOPBACK.share(dmb.token);
        let fd = match share {
            Some(s) if g.known != s.arena => Some(s.fd),
            _ => None,
        };
        Ok((dmb, fd))
    })
    .unwrap_or(Err(reason::MEMORY.code()))
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

/// Control page of the arena that a DMB of ours lies in.
pub fn own_page(token: u64) -> *mut Waits {
    LOOPBACK.control_page(token).cast()
}

/// The peer of a group.
pub fn peer_of(id: u32) -> Option<Gid> {
    with(|list| list.iter().find(|g| g.id == id).map(|g| g.peer)).flatten()
}

/// Maps the peer's DMB; its header and the control page beside it.
pub fn attach(id: u32, owner: Gid, token: u64, len: u32, fd: Option<i32>) -> Option<(*mut DmbHeader, *mut Waits)> {
    let a = LOOPBACK.attach_in(id, owner, token, len, fd).ok()?;
    let page = LOOPBACK.peer_control_page(owner, token);
    (!page.is_null()).then_some((a.addr.cast(), page.cast()))
}

/// The last descriptor of an upgraded connection is being closed.
pub fn release(conn: &Conn) {
    let id = conn.group.load(Relaxed);
    // Once: by the next time the buffer may be another connection's.
    let token = conn.my_token.swap(0, Relaxed);
    if token == 0 {
        return;
    }
    let quiet = conn.dmb_is_quiet();
    let died = conn.peer_died();
    let header = conn.my_header();
    let peer_token = conn.peer_token.swap(0, Relaxed);
    if peer_token != 0 {
        conn.leave();
    }
    with(|list| {
        LOOPBACK.unregister_dmb(token);
        let Some(at) = list.iter().position(|g| g.id == id) else { return };
        let g = &mut list[at];
        if peer_token != 0 {
            LOOPBACK.detach_dmb(g.peer, peer_token);
        }
        if quiet {
            LOOPBACK.release_dmb(token);
        } else {
            g.quarantine.push((token, header));
        }
        g.live = g.live.saturating_sub(1);
        if died {
            // Nobody comes back to a group of a killed process, and as long as it is mapped its memory is in use.
            g.state = State::Dead;
        }
        if g.live == 0 && (g.state == State::Dead || g.quarantine.len() > QUARANTINE) {
            drop_group(list, at);
        }
    });
}

/// A DMB taken for a connection that will not be upgraded after all.
pub fn give_back(id: u32, token: u64, exposed: bool) {
    with(|list| {
        LOOPBACK.unregister_dmb(token);
        if !exposed {
            LOOPBACK.release_dmb(token);
        }
        if let Some(g) = list.iter_mut().find(|g| g.id == id) {
            g.live = g.live.saturating_sub(1);
        }
    });
}

/// In a fork child: the groups are the parent's. Their memory stays for inherited connections; new connections make
/// groups of our own under a GID of our own.
pub fn after_fork_child() {
    // SAFETY: the only thread of a fork child; the parent's lock state is meaningless here.
    unsafe {
        GROUPS.lock.reset();
        core::mem::forget(core::mem::take(&mut *GROUPS.list.get()));
    }
    LOOPBACK.after_fork_child();
    quota::after_fork_child();
}

/// One row of `shortwire devices` and `linkgroups`: groups, connections.
pub fn census() -> (usize, u32) {
    with(|list| (list.len(), list.iter().map(|g| g.live).sum())).unwrap_or((0, 0))
}
