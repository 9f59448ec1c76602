//! Lanes: the handshakes after the first between two processes, in the memory that they share
//! already.
//!
//! The end that would listen under the connection's name puts an invitation into the arenas of the
//! processes that it has link groups with; the end that would call finds it there. From then on the
//! same CLC messages pass as letters (`shm::letters`) and no socket is made. Who the peer is was
//! established at first contact, whose channel is kept for that: it ends with the process, and a
//! process that changes its user hangs up, because the kernel vouched for the old one.
//!
//! An end that opens a connection to an address that led to the peer before, and was worth an
//! upgrade, does not wait for that: it offers the connection before its first byte, whichever of
//! the two is the group's server, and is the client of the handshake. An end that finds an offer
//! answers with its Accept.

mod front;
mod lane;
mod set;

use super::addresses::Addresses;
use super::*;
use crate::channel::{self, Silence};
use crate::conn::upgrade::{Lane as Way, Meeting, Met, OFFERED, Place, Seeking};
use crate::hidden;
use crate::inet::Addr;
use crate::kind::LOOPBACK;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use dibs::Device as _;
use front::{Fronts, LANES, MOST};
pub(super) use lane::Doubt;
use lane::Lane;
pub(super) use set::Lanes;
use shm::{Letters, Look};

/// Bytes of what goes over the channel with the descriptor of a letter: session and lane.
pub(super) const LABEL: usize = 5;
/// Lanes in which the group's server invites; in the others connections are offered. The two sides
/// choose without asking each other.
const INVITING: usize = LANES / 2;

/// Lanes in which the side that has this role in the group offers connections.
fn offers_of(role: Role) -> Range<usize> {
    const MIDDLE: usize = INVITING + (LANES - INVITING) / 2;
    if role == Role::Client { INVITING..MIDDLE } else { MIDDLE..LANES }
}

/// Link groups in which a connection is announced: those of the latest handshakes.
const WIDELY: usize = 4;

static STAMPS: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(1);
/// Whether this process ever had lanes.
static ANY: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);
/// How often this process changed its user.
static ERA: AtomicU32 = AtomicU32::new(0);

/// To be compared with when a handshake is over.
pub fn era() -> u32 {
    ERA.load(Relaxed)
}

impl Group {
    /// First contact is made: its channel is kept, if that is one whose other end is who the kernel
    /// says. Of another network namespace or guest it is who proves to have the connection.
    pub(super) fn open_lanes(&mut self, conn: &Conn) {
        if !core::ptr::eq(self.first, conn)
            || self.kind != Kind::Loopback
            || self.of.pid <= 0
            || conn.upgrade.era.load(Relaxed) != era()
        {
            return;
        }
        self.first = core::ptr::null();
        let own = LOOPBACK.control_page(conn.tokens()[0]);
        let theirs = LOOPBACK.peer_control_page(self.peer, conn.tokens()[1]);
        // A server may have more peers than there is room for descriptors of ours; the others meet
        // by the name.
        if own.is_null() || theirs.is_null() || !hidden::room_to_stay() {
            return;
        }
        let met = conn.upgrade.meeting();
        let Meeting::Met(Met::Name(kept)) = met else { return };
        if !conn.upgrade.leave_if(met) {
            return;
        }
        let stamp = STAMPS.fetch_add(1, Relaxed);
        self.lanes = Some(Box::new(Lanes {
            kept,
            fronts: Fronts::of(own, theirs),
            sessions: 0,
            stamp,
            // One at a time: as an array they would come by way of the stack, which may be small.
            lanes: (0..LANES).map(|_| Lane::FREE).collect(),
            addresses: Addresses::NONE,
            came: Vec::new(),
            only_bells: conn.own().port.load(Relaxed) != 0,
        }));
        ANY.store(true, Relaxed);
    }

    /// A handshake in it has succeeded.
    pub(super) fn touch_lanes(&mut self, conn: &Conn) {
        let Some(lanes) = &mut self.lanes else { return };
        lanes.stamp = STAMPS.fetch_add(1, Relaxed);
        // What comes of one that was offered is known at its end.
        if conn.upgrade.offered.load(Relaxed) != OFFERED {
            lanes.addresses.note(conn.identity.names()[1]);
        }
    }

    pub(super) fn close_lanes(&mut self) {
        if let Some(mut lanes) = self.lanes.take() {
            lanes.hang_up();
        }
    }

    /// Its lanes, if connections may still join it.
    fn open_lanes_now(&mut self) -> Option<&mut Lanes> {
        let may_join = self.state == State::Ready && self.is_of(kind::generation());
        self.lanes.as_deref_mut().filter(|lanes| may_join && !lanes.only_bells)
    }

    /// The same, if ours is this role.
    fn lanes_as(&mut self, role: Role) -> Option<&mut Lanes> {
        if self.role == role { self.open_lanes_now() } else { None }
    }

    /// Those in which the peer may have offered a connection.
    fn lanes_of_offers(&mut self) -> Option<(Range<usize>, &mut Lanes)> {
        let theirs = if self.role == Role::Server { Role::Client } else { Role::Server };
        self.open_lanes_now().map(|lanes| (offers_of(theirs), lanes))
    }
}

/// The names of a connection as both ends write them.
fn names(conn: &Conn) -> [u8; 36] {
    let mut keys = conn.identity.names().map(|addr: Addr| addr.key());
    keys.sort_unstable();
    let mut names = [0; 36];
    names[..18].copy_from_slice(&keys[0]);
    names[18..].copy_from_slice(&keys[1]);
    names
}

/// Never 0, which means nothing is announced. Hashes may collide; `find_as` compares the full names
/// in the letter.
fn hash(names: &[u8; 36]) -> u64 {
    let mix = |sum: u64, word: &[u8]| {
        let word = u32::from_ne_bytes(word.try_into().unwrap_or_default());
        (sum ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
    };
    names.chunks_exact(4).fold(0, mix) | 1
}

/// Runs `f` on the lane of a connection that `find` or `answered` named. It has hung up when
/// another connection has it: the other end did so long ago. Where our own lanes are gone (another
/// user, a fork child) nothing can be known of the other end, which may go on. Nothing is to be had
/// in a signal handler that interrupted another use of the groups.
fn at<R>(
    conn: &Conn,
    place: Place,
    f: impl FnOnce(&mut Lanes, usize, Cred) -> R,
) -> Result<R, Silence> {
    let found = with(|list| {
        let lane = usize::from(place.lane);
        let g = list.iter_mut().find(|g| g.id == place.group).ok_or(Silence::Unusable)?;
        let of = g.of;
        let lanes = g.lanes.as_deref_mut().ok_or(Silence::Unusable)?;
        lanes.lanes.get(lane).filter(|l| l.is_of(conn)).ok_or(Silence::HungUp)?;
        Ok(f(lanes, lane, of))
    });
    found.unwrap_or(Err(Silence::Nothing))
}

/// Server: invites the processes that are likely at the connection's other end; false when there is
/// none.
pub fn invite(conn: &Conn) -> bool {
    announce(conn, |g| g.lanes_as(Role::Server).map(|lanes| (0..INVITING, lanes)))
}

/// The end that has just opened a connection: offers it to the processes that this address has led
/// to; false when there is none, or connections to there end too soon.
pub fn offer(conn: &Conn) -> bool {
    let to = conn.identity.names()[1];
    announce(conn, |g| {
        let lanes = offers_of(g.role);
        g.open_lanes_now().filter(|of| of.addresses.are_worth(&to)).map(|of| (lanes, of))
    })
}

/// Whether a connection to this address would be offered to anybody.
pub fn is_worth_an_offer(to: &Addr) -> bool {
    let worth =
        |g: &mut Group| g.open_lanes_now().is_some_and(|lanes| lanes.addresses.are_worth(to));
    with(|list| list.iter_mut().any(worth)).unwrap_or(false)
}

/// A connection that was offered ends, and was worth it or not.
pub fn learn(conn: &Conn, was_worth: bool) {
    let to = conn.identity.names()[1];
    with(|list| {
        let known = list.iter_mut().filter_map(|g| g.lanes.as_deref_mut());
        known.for_each(|lanes| lanes.addresses.learn(&to, was_worth));
    });
}

/// Puts the names of a connection into a free lane of each of the groups of which `suits` names
/// lanes to choose from.
fn announce(conn: &Conn, suits: impl Fn(&mut Group) -> Option<(Range<usize>, &mut Lanes)>) -> bool {
    let names = names(conn);
    let hash = hash(&names);
    let announce = |g: &mut Group| {
        let (within, lanes) = suits(g)?;
        if !lanes.is_alive() {
            g.close_lanes();
            return None;
        }
        let mut lanes_there = within.clone();
        let free = lanes_there
            .find(|at| !lanes.lanes[*at].is_taken())
            .or_else(|| lanes.take_back_one(within))?;
        lanes.sessions = lanes.sessions.wrapping_add(1).max(1);
        lanes.lanes[free].take(conn, Letters::begin(lanes.sessions));
        lanes.say(free, &names, None).then_some(())?;
        lanes.fronts.announce(free, hash);
        Some(())
    };
    with(|list| {
        let (mut below, mut any) = (u64::MAX, false);
        for _ in 0..WIDELY {
            let stamp = |g: &mut Group| suits(g).map_or(0, |(_, lanes)| lanes.stamp);
            let before = list
                .iter_mut()
                .map(|g| (stamp(g), g))
                .filter(|(stamp, _)| (1..below).contains(stamp));
            let Some((stamp, g)) = before.max_by_key(|(stamp, _)| *stamp) else { break };
            below = stamp;
            any |= announce(g).is_some();
        }
        any
    })
    .unwrap_or(false)
}

/// The lane on which the other end has answered what was announced; all else that was is void then.
pub fn answered(conn: &Conn) -> Option<Place> {
    let found = with(|list| {
        list.iter_mut().find_map(|g| {
            let lanes = g.lanes.as_deref()?;
            let answered = |at: &usize| {
                lanes.lanes[*at].is_of(conn)
                    && matches!(
                        lanes.lanes[*at].letters.look(lanes.fronts.inbox(*at)),
                        Look::Letter { .. }
                    )
            };
            let at = (0..LANES).find(answered)?;
            lanes.fronts.announce(at, 0);
            Some(Place { group: g.id, lane: at as u8 })
        })
    });
    let place = found.flatten()?;
    withdraw_but(conn, Some(place));
    Some(place)
}

/// Takes all back that was announced.
pub fn withdraw(conn: &Conn) {
    withdraw_but(conn, None);
}

fn withdraw_but(conn: &Conn, but: Option<Place>) {
    with(|list| {
        for g in list.iter_mut() {
            let Some(lanes) = g.lanes.as_deref_mut() else { continue };
            for at in 0..LANES {
                if lanes.lanes[at].is_of(conn) && but != Some(Place { group: g.id, lane: at as u8 })
                {
                    lanes.fronts.announce(at, 0);
                    lanes.leave(at);
                }
            }
        }
    });
}

/// Client: the lane on which this connection is invited.
pub fn find(conn: &Conn) -> Option<Place> {
    find_in(conn, |g| g.lanes_as(Role::Client).map(|lanes| (0..INVITING, lanes)))
}

/// The lane on which this connection is offered.
pub fn find_offer(conn: &Conn) -> Option<Place> {
    find_in(conn, Group::lanes_of_offers)
}

/// Whether this process ever had lanes: most have none, and look no further.
#[inline]
pub fn are_in_use() -> bool {
    ANY.load(Relaxed)
}

/// Whether any connection is offered to this process.
pub fn any_offer() -> bool {
    let any = |(within, lanes): (Range<usize>, &mut Lanes)| {
        lanes.fronts.announced(within, |hash| hash != 0).next().is_some()
    };
    are_in_use()
        && with(|list| list.iter_mut().any(|g| g.lanes_of_offers().is_some_and(any)))
            .unwrap_or(false)
}

fn find_in(
    conn: &Conn,
    which: impl Fn(&mut Group) -> Option<(Range<usize>, &mut Lanes)>,
) -> Option<Place> {
    let names = names(conn);
    let hash = hash(&names);
    with(|list| {
        for g in list.iter_mut() {
            let group = g.id;
            let Some((within, lanes)) = which(g) else { continue };
            for at in lanes.fronts.announced(within, |announced| announced == hash) {
                let Some((letters, len)) = Letters::find(lanes.fronts.inbox(at)) else { continue };
                let mut said = [0; 36];
                lanes.fronts.read(at, &mut said);
                // A lane whose session goes on, or was left here, is not for another connection.
                if len != said.len()
                    || said != names
                    || lanes.lanes[at].letters.session() == letters.session()
                {
                    continue;
                }
                lanes.lanes[at].take(conn, letters);
                return Some(Place { group, lane: at as u8 });
            }
        }
        None
    })?
}

/// Whether the lane began with an offer.
pub fn is_offer(place: Place) -> bool {
    usize::from(place.lane) >= INVITING
}

/// Client: whether there is anybody who could invite.
pub fn are_likely() -> bool {
    with(|list| list.iter_mut().any(|g| g.lanes_as(Role::Client).is_some())).unwrap_or(false)
}

/// Who is at the other end, if the kernel still vouches for it.
pub fn vouched_peer(conn: &Conn, place: Place) -> Option<Cred> {
    at(conn, place, |lanes, _, of| lanes.is_alive().then_some(of)).ok()?
}

/// Who was there when that was asked last.
pub fn peer(conn: &Conn, place: Place) -> Option<Cred> {
    at(conn, place, |_, _, of| of).ok()
}

/// As [`channel::send`].
#[must_use]
pub fn send(conn: &Conn, place: Place, message: &[u8], pass: Option<i32>) -> bool {
    at(conn, place, |lanes, at, _| lanes.say(at, message, pass)) == Ok(true)
}

/// As [`channel::recv`].
pub fn recv(
    conn: &Conn,
    place: Place,
    out: &mut [u8; channel::MAX],
) -> Result<(usize, Option<i32>), Silence> {
    at(conn, place, |lanes, at, of| {
        let (len, marked) = lanes.look(at, out)?;
        lanes.lanes[at].letters.take();
        Ok((len, if marked { lanes.fetch(at, of) } else { None }))
    })?
}

/// As [`channel::peek`].
pub fn peek(conn: &Conn, place: Place, out: &mut [u8; channel::MAX]) -> Result<usize, Silence> {
    at(conn, place, |lanes, at, _| lanes.look(at, out))?.map(|(len, _)| len)
}

/// Hangs up.
pub fn leave(conn: &Conn, place: Place) {
    let _ = at(conn, place, |lanes, at, _| lanes.leave(at));
}

/// The process is about to become another user's: what the kernel vouched for ends.
pub fn forget_peers() {
    ERA.fetch_add(1, Relaxed);
    with(|list| list.iter_mut().for_each(Group::close_lanes));
}

/// A channel has moved to another number.
pub(crate) fn moved_fd(from: i32, to: i32) {
    with(|list| {
        for lanes in list.iter_mut().filter_map(|g| g.lanes.as_deref_mut()) {
            if lanes.kept == from {
                lanes.kept = to;
            }
            lanes.came.iter_mut().filter(|bell| bell.fd == from).for_each(|bell| bell.fd = to);
        }
    });
}
