//! Link groups: all connections between this process and one peer process in one role.
//!
//! The first contact makes a group and passes a memfd with an arena of pooled DMBs each way; later
//! connections take DMBs from it and cost no descriptor, no mapping and no page fault.
#![allow(unsafe_code)]

mod addresses;
pub mod bells;
mod buffers;
pub mod lanes;

pub use buffers::{attach, give_back, own_page, release, release_confirmed, take_dmb};

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use dibs::Gid;
use shm::Guarded;

use crate::census::{self, Row, State};
use crate::channel::Cred;
use crate::clc::{Eid, FirstContact};
use crate::config::CONFIG;
use crate::conn::bells::Bells;
use crate::conn::verdict::{self, Verdict};
use crate::conn::{Conn, DmbHeader, LEFT};
use crate::device;
use crate::kind::{self, Kind};
use crate::{quota, reason, sys, table};

/// Which end of the handshake we are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Sends the Proposal.
    Client,
    /// Answers it.
    Server,
}

/// What first contact agreed on, for all connections of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The EID in common.
    pub eid: Eid,
    /// Release of version 2.
    pub release: u8,
}

struct Group {
    id: u32,
    role: Role,
    kind: Kind,
    peer: Gid,
    /// The peer's process, as the kernel vouches: a GID alone is only what somebody says.
    of: Cred,
    terms: Terms,
    state: State,
    /// Where other processes see it.
    row: Option<&'static Row>,
    live: u32,
    /// The connection that makes first contact.
    first: *const Conn,
    /// Both ends asked for a checksum.
    checked: bool,
    /// That in which it began. A fork child has the memory of earlier ones, too.
    generation: u32,
    /// Slots of the own arena that were ever in use.
    slots: u32,
    /// DMBs given up here that the peer may still write to.
    quarantine: Vec<buffers::Quarantined>,
    lanes: Option<Box<lanes::Lanes>>,
    /// Bells of its own arenas.
    bells: Vec<(u64, &'static Bells)>,
}

impl Group {
    fn is_idle(&self) -> bool {
        self.live == 0 && self.state != State::Pending
    }

    /// Whether the peer has dropped its half, or what both shared is broken, as far as the device
    /// tells.
    fn is_over(&self) -> bool {
        self.state != State::Pending && self.kind.device().is_over(self.id)
    }

    /// Whether its memory is needed more by others.
    fn is_in_the_way(&self) -> bool {
        self.kind.device().is_short()
    }

    /// Whether new connections may join it.
    fn is_usable(&self, generation: u32) -> bool {
        self.state != State::Dead && self.is_of(generation) && !self.is_over()
    }

    /// Whether no fork child has its memory that was not there when connections of that generation
    /// were.
    fn is_of(&self, generation: u32) -> bool {
        self.generation == generation || !self.kind.has_generations()
    }

    fn becomes(&mut self, state: State) {
        self.state = state;
        if let Some(row) = self.row {
            row.set_state(state);
        }
    }
}

/// Groups without connections that are kept for the next connection to the same process.
const IDLE_GROUPS: usize = 8;

// SAFETY: what a group points to is mapped for good, and bound to no thread.
unsafe impl Send for Group {}

static GROUPS: Guarded<Vec<Group>> = Guarded::new();
static NEXT_ID: AtomicU32 = AtomicU32::new(1);
/// There was a fork since the groups were last looked at.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Why no group can be had.
#[derive(Debug, PartialEq, Eq)]
pub enum NoGroup {
    /// Another connection is making first contact with the same peer: ask again later.
    Busy,
    /// There is none, and the peer believes there is.
    OutOfSync,
}

fn with<R>(f: impl FnOnce(&mut Vec<Group>) -> R) -> Option<R> {
    GROUPS.with_kept(|list| {
        if FORKED.load(Relaxed) {
            leave_shared(list);
        }
        take_verdicts(list);
        let result = f(list);
        if CONFIG.max_memory_user.load(Relaxed) != 0 {
            quota::note(device::memory());
        }
        result
    })
}

/// Server: the group of a generation for a proposing peer, under this EID, and whether this is
/// first contact.
pub fn serve(
    kind: Kind,
    peer: Gid,
    of: Cred,
    terms: Terms,
    generation: u32,
) -> Result<(u32, bool), NoGroup> {
    with(|list| {
        match list.iter().find(|g| {
            g.role == Role::Server
                && (g.kind, g.peer, g.of, g.terms.eid) == (kind, peer, of, terms.eid)
                && g.is_usable(generation)
                && of.is_one_process()
        }) {
            Some(g) if g.state == State::Ready => Ok((g.id, false)),
            Some(_) => Err(NoGroup::Busy),
            None => Ok((add(list, Role::Server, kind, peer, of, terms, generation), true)),
        }
    })
    .unwrap_or(Err(NoGroup::Busy))
}

/// Client: the group that an Accept speaks of, under this EID, which answers a Proposal of that
/// generation; `first` has the release of a new one.
pub fn join(
    kind: Kind,
    peer: Gid,
    of: Cred,
    eid: Eid,
    first: Option<u8>,
    generation: u32,
) -> Result<u32, NoGroup> {
    with(|list| {
        let known = list.iter_mut().find(|g| {
            g.role == Role::Client
                && (g.kind, g.peer, g.of, g.terms.eid) == (kind, peer, of, eid)
                && g.is_usable(generation)
                && of.is_one_process()
        });
        match (known, first) {
            (Some(g), None) => {
                // A server that reuses the group has read our first Confirm, also if that
                // connection has not looked since.
                g.becomes(State::Ready);
                Ok(g.id)
            }
            (None, None) => Err(NoGroup::OutOfSync),
            (old, Some(release)) => {
                // The server has lost its half: ours serves its connections to their end.
                if let Some(old) = old {
                    old.becomes(State::Dead);
                    let id = old.id;
                    if let Some(at) = list.iter().position(|g| g.id == id && g.live == 0) {
                        drop_group(list, at);
                    }
                }
                let id =
                    add(list, Role::Client, kind, peer, of, Terms { eid, release }, generation);
                Ok(id)
            }
        }
    })
    .unwrap_or(Err(NoGroup::Busy))
}

/// The group with this number, if it is with that peer and connections of that generation may join
/// it.
pub fn goes_on(id: u32, kind: Kind, peer: Gid, generation: u32) -> Result<u32, NoGroup> {
    let is_it = |g: &Group| {
        g.id == id
            && (g.kind, g.peer) == (kind, peer)
            && g.state == State::Ready
            && g.is_usable(generation)
    };
    with(|list| list.iter().any(is_it)).filter(|any| *any).map(|_| id).ok_or(NoGroup::OutOfSync)
}

fn add(
    list: &mut Vec<Group>,
    role: Role,
    kind: Kind,
    peer: Gid,
    of: Cred,
    terms: Terms,
    generation: u32,
) -> u32 {
    drop_idle(list, |g| has_ended(g.of) || g.is_over());
    while list.iter().filter(|g| g.is_idle()).count() > IDLE_GROUPS {
        let Some(at) = list.iter().position(Group::is_idle) else { break };
        drop_group(list, at);
    }
    let id = NEXT_ID.fetch_add(1, Relaxed);
    list.push(Group {
        id,
        role,
        kind,
        peer,
        of,
        terms,
        state: State::Pending,
        row: publish(id, role, kind, peer, of, terms, generation),
        live: 0,
        first: core::ptr::null(),
        checked: false,
        generation,
        slots: 0,
        quarantine: Vec::new(),
        lanes: None,
        bells: Vec::new(),
    });
    if let Some(t) = table::get() {
        t.stats.link_groups.fetch_add(1, Relaxed);
    }
    id
}

/// For `shortwire linkgroups`.
fn publish(
    id: u32,
    role: Role,
    kind: Kind,
    peer: Gid,
    of: Cred,
    terms: Terms,
    generation: u32,
) -> Option<&'static Row> {
    let row = census::enter(table::get()?.groups(), id)?;
    row.set_state(State::Pending);
    row.chid.store(u32::from(kind.chid()), Relaxed);
    row.server.store(u32::from(role == Role::Server), Relaxed);
    row.peer_pid.store(of.pid as u32, Relaxed);
    row.peer_uid.store(of.uid, Relaxed);
    let own = kind.gid_at(generation);
    for (words, halves) in [(&row.gid, [own.hi, own.lo]), (&row.peer_gid, [peer.hi, peer.lo])] {
        words.iter().zip(halves).for_each(|(word, half)| word.store(half, Relaxed));
    }
    row.set_terms(&terms.eid, terms.release);
    row.set_pnet(&crate::pnet::of_device(kind).unwrap_or_default().0);
    Some(row)
}

/// Whether a process is gone, and nobody will join its group any more. Doubts count as no.
fn has_ended(of: Cred) -> bool {
    of.pid > 0 && sys::is_unknown(of.pid as u32)
}

fn drop_idle(list: &mut Vec<Group>, which: impl Fn(&Group) -> bool) {
    while let Some(at) = list.iter().position(|g| g.is_idle() && which(g)) {
        drop_group(list, at);
    }
}

fn drop_group(list: &mut Vec<Group>, at: usize) {
    let mut g = list.swap_remove(at);
    g.close_lanes();
    g.close_bells();
    if let Some(row) = g.row {
        row.leave();
    }
    g.kind.device().drop_group(g.id);
}

/// Runs `f` if there is this group yet, which then stays until it has returned: with what its peer
/// shares.
pub fn while_known(id: u32, f: impl FnOnce()) {
    with(|list| {
        if list.iter().any(|g| g.id == id) {
            f();
        }
    });
}

/// The handshake of `conn` is complete: the peer has the arena of our DMB, so its descriptor is
/// needed no more.
pub fn established(conn: &Conn) {
    let (id, token) = (conn.link_group(), conn.tokens()[0]);
    with(|list| {
        let Some(g) = list.iter_mut().find(|g| g.id == id) else { return };
        if g.state == State::Pending {
            g.becomes(State::Ready);
        }
        g.kind.device().delivered(token);
        g.open_lanes(conn);
        g.touch_lanes(conn);
    });
}

/// Client: a connection ends, or goes back to TCP, that has confirmed, and whose server has not looked since.
/// If it makes first contact the group stays: the server reads the Confirm when it comes to that, takes the
/// group for made, and has the next connection join it. Without our half that one would stay TCP. If the
/// server does not come to it, it makes first contact anew, which ends this group. The channel stays for lanes
/// where `open_lanes` takes it, which is over loopback and met by the name; any other one the caller closes.
/// Not over verbs (`meet::conclude`).
pub fn confirmed(conn: &Conn) {
    let id = conn.link_group();
    with(|list| {
        let first = list.iter_mut().find(|g| g.id == id && g.state == State::Pending);
        if let Some(g) = first {
            g.becomes(State::Ready);
            // The Confirm has a descriptor of the arena's of its own.
            g.kind.device().delivered(conn.tokens()[0]);
            g.open_lanes(conn);
        }
    });
}

/// A handshake in this group failed. A group in first contact goes; so does one that is out of
/// sync.
pub fn failed(id: u32, out_of_sync: bool) {
    with(|list| {
        if let Some(at) = list.iter().position(|g| g.id == id) {
            if list[at].state == State::Pending || out_of_sync {
                list[at].becomes(State::Dead);
            }
            if list[at].state == State::Dead && list[at].live == 0 {
                drop_group(list, at);
            }
        }
    });
}

/// A device was taken away: its link groups end, and their connections with them.
pub fn withdraw(kind: Kind) {
    // Most often they have ended already, and a walk over all connections would be for nothing.
    let alive = with(|list| list.iter().any(|g| g.kind == kind && g.state != State::Dead));
    if alive != Some(false) {
        verdict::end_device(kind);
        with(|_| ());
    }
}

/// Acts on what connections have found out, if they have: to be called when one of them was reset.
/// Otherwise the next use of a group does it.
#[cold]
pub fn heed() {
    if verdict::is_due() {
        with(|_| ());
    }
}

fn take_verdicts(list: &mut Vec<Group>) {
    let mut any = false;
    while let Some(verdict) = verdict::take() {
        let concerned = list.iter_mut().filter(|g| match verdict {
            Verdict::Group(id) => g.id == id,
            Verdict::Device(kind) => g.kind == kind,
        });
        concerned.filter(|g| g.state != State::Dead).for_each(|g| g.becomes(State::Dead));
        any = true;
    }
    while any && let Some(at) = list.iter().position(|g| g.live == 0 && g.state == State::Dead) {
        drop_group(list, at);
    }
}

/// `conn` makes first contact in this group.
pub fn first_is(id: u32, conn: &Conn) {
    with(|list| {
        if let Some(g) = list.iter_mut().find(|g| g.id == id) {
            g.first = conn;
        }
    });
}

/// The connection whose first contact keeps others from joining the group with this peer: it may
/// have gone idle, with the peer's Confirm waiting to be read.
pub fn pending(kind: Kind, peer: Gid, of: Cred) -> Option<&'static Conn> {
    let first = with(|list| {
        list.iter()
            .find(|g| {
                (g.kind, g.peer, g.of) == (kind, peer, of)
                    && g.role == Role::Server
                    && g.state == State::Pending
            })
            .map(|g| g.first)
    })??;
    // SAFETY: null, or a slot of the table, which is never unmapped.
    unsafe { first.as_ref() }
}

/// Client: a connection that made first contact and that its own end has not looked at since,
/// though its peer has attached. Until it is looked at, the group has no lanes.
pub fn unfinished(is_attached: impl Fn(&Conn) -> bool) -> Option<&'static Conn> {
    with(|list| {
        let first = |g: &Group| {
            let waits = g.role == Role::Client && g.kind == Kind::Loopback && g.lanes.is_none();
            // SAFETY: null, or a slot of the table, which is never unmapped.
            if waits { unsafe { g.first.as_ref() } } else { None }
        };
        list.iter().filter_map(first).find(|first| is_attached(first))
    })?
}

/// The peer of a group, the device, and what was agreed on.
pub fn peer_of(id: u32) -> Option<(Gid, Kind, Terms)> {
    with(|list| list.iter().find(|g| g.id == id).map(|g| (g.peer, g.kind, g.terms))).flatten()
}

/// Whether first contact has not come to its end.
pub fn is_pending(id: u32) -> bool {
    with(|list| list.iter().any(|g| g.id == id && g.state == State::Pending)).unwrap_or(false)
}

/// What the peer says of itself at first contact: what is to be shown, and whether it wants a
/// checksum, too.
pub fn introduced(id: u32, peer: &FirstContact) {
    with(|list| {
        let Some(g) = list.iter_mut().find(|g| g.id == id && g.state == State::Pending) else {
            return;
        };
        g.checked = peer.wants_integrity() && wants_integrity(g.kind);
        if let Some(row) = g.row {
            row.set_peer(peer.os, &peer.hostname);
            row.checked.store(u32::from(g.checked), Relaxed);
        }
    });
}

/// Whether this end wants a checksum over what a device copies.
pub fn wants_integrity(kind: Kind) -> bool {
    matches!(kind, Kind::Ism | Kind::Verbs) && CONFIG.integrity.load(Relaxed)
}

/// In the parent of a fork: its child has the memory of all groups, and could spoil connections
/// that it never had. Those that are made from now on get groups of their own, by another GID.
/// Those that there are have served when they are idle, but a handshake may be on its way there.
pub fn after_fork_parent() {
    FORKED.store(true, Relaxed);
}

#[cold]
fn leave_shared(list: &[Group]) {
    FORKED.store(false, Relaxed);
    if !list.is_empty() {
        kind::begin_generation();
    }
}

/// In which a connection is to be proposed to its peer; None in a signal handler that interrupted a
/// use of the groups.
pub fn generation() -> Option<u32> {
    if FORKED.load(Relaxed) {
        with(|_| ())?;
    }
    Some(kind::generation())
}

/// The GID that the peer of a group knows us by.
pub fn own_gid(id: u32, kind: Kind) -> Gid {
    let generation = with(|list| list.iter().find(|g| g.id == id).map(|g| g.generation)).flatten();
    kind.gid_at(generation.unwrap_or_else(kind::generation))
}

/// In a fork child: the groups are the parent's. Their memory stays for inherited connections; new
/// connections make groups of our own under a GID of our own.
pub fn after_fork_child() {
    FORKED.store(false, Relaxed);
    // SAFETY: the only thread of a fork child.
    unsafe { GROUPS.forget() };
    device::after_fork_child();
    quota::after_fork_child();
}

/// Link groups and their connections.
pub fn census() -> (usize, u32) {
    with(|list| (list.len(), list.iter().map(|g| g.live).sum())).unwrap_or((0, 0))
}
