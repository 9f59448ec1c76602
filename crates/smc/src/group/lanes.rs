//! Lanes: the handshakes after the first between two processes, in the memory that they share already.
//!
//! The end that would listen under the connection's name puts an invitation into the arenas of the processes that it
//! has link groups with; the end that would call finds it there. From then on the same CLC messages pass as letters
//! (`shm::letters`) and no socket is made. Who the peer is was established at first contact, whose channel is kept for that:
//! it ends with the process, and a process that changes its user hangs up, because the kernel vouched for the old one.
#![allow(unsafe_code)]

use super::*;
use crate::channel::{self, Silence};
use crate::conn::upgrade::{Meeting, Met, Place};
use crate::hidden;
use crate::inet::Addr;
use crate::kind::LOOPBACK;
use core::cell::UnsafeCell;
use dibs::Device as _;
use dibs::loopback::FRONT;
use shm::sync::AtomicU64;
use shm::{Letters, Look};

/// Bytes of what goes over the channel with the descriptor of a letter: session and lane.
pub(super) const LABEL: usize = 5;
/// Handshakes of a link group at a time.
const LANES: usize = 64;
/// Link groups in which a connection is announced: those of the latest handshakes.
const WIDELY: usize = 4;
/// The longest message. Of a Proposal that has more, for its many EIDs, the connection's name has to be used.
const MOST: usize = 504;

#[repr(C, align(512))]
struct Letterbox {
    word: AtomicU64,
    bytes: UnsafeCell<[u8; MOST]>,
}

/// The front of an arena: all of it is written by the peer and read by the arena's owner.
#[repr(C)]
struct Area {
    /// Of the connection that a letterbox invites, a hash; 0: none.
    invited: [AtomicU64; LANES],
    boxes: [Letterbox; LANES],
}
const _: () = assert!(size_of::<Area>() <= FRONT);

struct Lane {
    /// The connection that uses it, and its slot's generation then.
    owner: *const Conn,
    life: u32,
    letters: Letters,
    /// Came with a letter that was not read yet.
    passed: Option<i32>,
}

impl Lane {
    const FREE: Self = Self { owner: core::ptr::null(), life: 0, letters: Letters::begin(0), passed: None };

    fn is_of(&self, conn: &Conn) -> bool {
        core::ptr::eq(self.owner, conn) && self.life == conn.gen_.load(Relaxed)
    }

    fn is_taken(&self) -> bool {
        // SAFETY: null, or a slot of the table, which is never unmapped.
        unsafe { self.owner.as_ref() }.is_some_and(|conn| self.is_of(conn))
    }

    fn take(&mut self, conn: &Conn, letters: Letters) {
        self.drop_passed();
        (self.owner, self.life, self.letters) = (conn, conn.gen_.load(Relaxed), letters);
    }

    fn drop_passed(&mut self) {
        if let Some(fd) = self.passed.take() {
            sys::close(fd);
        }
    }
}

/// Of a link group.
pub(super) struct Lanes {
    /// The channel of first contact.
    kept: i32,
    own: *const Area,
    theirs: *const Area,
    sessions: u32,
    /// When a handshake in it last succeeded, in handshakes.
    stamp: u64,
    lanes: [Lane; LANES],
    /// Bells that came and were not fetched yet.
    came: Vec<bells::Came>,
}

static STAMPS: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(1);
/// How often this process changed its user.
static ERA: AtomicU32 = AtomicU32::new(0);

/// To be compared with when a handshake is over.
pub fn era() -> u32 {
    ERA.load(Relaxed)
}

impl Lanes {
    // Here and below: an area lies in an arena's mapping, which stays in place (`dibs::loopback`), and all of it that is
    // shared is atomic or copied out; an index is below LANES.

    fn inbox(&self, at: usize) -> &AtomicU64 {
        // SAFETY: see above.
        unsafe { &(*self.own).boxes[at].word }
    }

    fn outbox(&self, at: usize) -> &AtomicU64 {
        // SAFETY: see above.
        unsafe { &(*self.theirs).boxes[at].word }
    }

    fn announce(&self, at: usize, hash: u64) {
        // SAFETY: see above. Only a hint, so no order.
        unsafe { &(&(*self.theirs).invited)[at] }.store(hash, Relaxed);
    }

    fn announced(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let own = self.own;
        // SAFETY: see above.
        (0..LANES).filter(move |at| unsafe { &(&(*own).invited)[*at] }.load(Relaxed) == hash)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: see above; at most MOST bytes, in a box that nobody else writes and the peer reads after the word.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), (*self.theirs).boxes[at].bytes.get().cast(), bytes.len())
        };
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        // SAFETY: see above; at most MOST bytes. What a peer changes meanwhile garbles its own message.
        unsafe {
            core::ptr::copy_nonoverlapping((*self.own).boxes[at].bytes.get().cast(), out.as_mut_ptr(), out.len())
        };
    }

    /// Whether the peer is still the process, and the user, of first contact.
    fn is_alive(&self) -> bool {
        let mut byte = 0u8;
        // SAFETY: the byte is ours.
        let r = unsafe { sys::recv(self.kept, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        r > 0 || r == -(libc::EAGAIN as isize)
    }

    /// Whether it fits, and what goes with it has gone.
    fn say(&mut self, at: usize, message: &[u8], pass: Option<i32>) -> bool {
        if message.len() > MOST {
            return false;
        }
        if let Some(fd) = pass {
            let session = self.lanes[at].letters.session().to_ne_bytes();
            let mut label = [at as u8; LABEL];
            label[..4].copy_from_slice(&session);
            if !channel::send(self.kept, &label, Some(fd)) {
                return false;
            }
        }
        self.write(at, message);
        let mut letters = self.lanes[at].letters;
        letters.say(self.outbox(at), message.len(), pass.is_some());
        self.lanes[at].letters = letters;
        true
    }

    /// The letter that is there, and whether something came with it.
    fn look(&self, at: usize, out: &mut [u8; channel::MAX]) -> Result<(usize, bool), Silence> {
        match self.lanes[at].letters.look(self.inbox(at)) {
            Look::Nothing => Err(Silence::Nothing),
            Look::Closed | Look::Letter { len: 0, .. } => Err(Silence::HungUp),
            Look::Letter { len, .. } if len > MOST => Err(Silence::Unusable),
            Look::Letter { len, marked } => {
                self.read(at, &mut out[..len]);
                Ok((len, marked))
            }
        }
    }

    /// Sends a bell; false if the channel takes none now.
    pub(super) fn send(&self, label: &[u8], bell: i32) -> bool {
        channel::send(self.kept, label, Some(bell))
    }

    /// What came over the channel for this lane. What came for others is kept for them.
    fn fetch(&mut self, at: usize, of: Cred) -> Option<i32> {
        self.take_all_in(of);
        self.lanes[at].passed.take()
    }

    /// The end of a bell that came over the channel, parked.
    pub(super) fn came(&mut self, label: bells::Label, of: Cred) -> Option<i32> {
        self.take_all_in(of);
        let at = self.came.iter().position(|bell| bell.label == label)?;
        Some(self.came.swap_remove(at).fd)
    }

    /// What the peer has not read of the channel, in bytes of the kernel's memory.
    pub(super) fn unread(&self) -> i32 {
        sys::ioctl_int(self.kept, libc::TIOCOUTQ).unwrap_or(i32::MAX)
    }

    /// Takes what is on the channel, for lanes and for waits. A peer that sends all the time gets no further than this.
    fn take_all_in(&mut self, of: Cred) {
        const AT_ONCE: usize = 2 * LANES;
        let is_room = if bells::is_trusted(of) { hidden::room_for_bells } else { hidden::room_for_bells_of_strangers };
        let mut raw = [0u8; channel::MAX];
        for _ in 0..AT_ONCE {
            let Ok((len, came)) = channel::recv(self.kept, &mut raw) else { return };
            let Some(fd) = came else { continue };
            if let Some(label) = bells::Label::of(&raw[..len]) {
                if is_room() {
                    bells::keep(&mut self.came, label, hidden::park(fd));
                } else {
                    sys::close(fd);
                }
                continue;
            }
            let session = u32::from_ne_bytes([raw[0], raw[1], raw[2], raw[3]]);
            match self.lanes.get_mut(usize::from(raw[4])) {
                Some(lane) if len == LABEL && lane.letters.session() == session && lane.passed.is_none() => {
                    lane.passed = Some(fd);
                }
                _ => _ = sys::close(fd),
            }
        }
    }

    fn leave(&mut self, at: usize) {
        let mut letters = self.lanes[at].letters;
        letters.close(self.outbox(at));
        self.lanes[at].drop_passed();
        self.lanes[at] = Lane { letters, ..Lane::FREE };
    }

    fn hang_up(&mut self) {
        self.lanes.iter_mut().for_each(Lane::drop_passed);
        bells::drop_all(&mut self.came);
        // Other processes may have copies of the descriptor.
        sys::shutdown(self.kept, libc::SHUT_RDWR);
        hidden::close(self.kept);
    }
}

impl Group {
    /// First contact is made: its channel is kept, if that is one whose other end is who the kernel says. Of another network
    /// namespace or guest it is who proves to have the connection.
    pub(super) fn open_lanes(&mut self, conn: &Conn) {
        if !core::ptr::eq(self.first, conn)
            || self.kind != Kind::Loopback
            || self.of.pid <= 0
            || conn.upgrade.era.load(Relaxed) != era()
        {
            return;
        }
        self.first = core::ptr::null();
        let own = LOOPBACK.control_page(conn.my_token.load(Relaxed));
        let theirs = LOOPBACK.peer_control_page(self.peer, conn.peer_token.load(Relaxed));
        // A server may have more peers than there is room for descriptors of ours; the others meet by the name.
        if own.is_null() || theirs.is_null() || !hidden::room_to_stay() {
            return;
        }
        let met = conn.upgrade.meeting();
        let Meeting::Met(Met::Name(kept)) = met else { return };
        if !conn.upgrade.leave_if(met) {
            return;
        }
        let [own, theirs] = [own, theirs].map(|page| page.wrapping_sub(FRONT).cast::<Area>().cast_const());
        let stamp = STAMPS.fetch_add(1, Relaxed);
        self.lanes = Some(Box::new(Lanes {
            kept,
            own,
            theirs,
            sessions: 0,
            stamp,
            lanes: [Lane::FREE; LANES],
            came: Vec::new(),
        }));
    }

    pub(super) fn touch_lanes(&mut self) {
        if let Some(lanes) = &mut self.lanes {
            lanes.stamp = STAMPS.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn close_lanes(&mut self) {
        if let Some(mut lanes) = self.lanes.take() {
            lanes.hang_up();
        }
    }

    /// Its lanes, if connections may still join it in this role.
    fn lanes_as(&mut self, role: Role) -> Option<&mut Lanes> {
        self.lanes.as_deref_mut().filter(|_| self.role == role && self.state == State::Ready)
    }
}

/// The names of a connection as both ends write them.
fn names(conn: &Conn) -> [u8; 36] {
    let mut keys = conn.names().map(|addr: Addr| addr.key());
    keys.sort_unstable();
    let mut names = [0; 36];
    names[..18].copy_from_slice(&keys[0]);
    names[18..].copy_from_slice(&keys[1]);
    names
}

/// Never 0. Names that meet are told apart by the letter.
fn hash(names: &[u8; 36]) -> u64 {
    let mix = |sum: u64, word: &[u8]| {
        let word = u32::from_ne_bytes(word.try_into().unwrap_or_default());
        (sum ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
    };
    names.chunks_exact(4).fold(0, mix) | 1
}

/// Runs `f` on the lane of a connection that `find` or `answered` named. It has hung up when the connection has it no more:
/// the other end of a lane that went to another connection has done so long ago. Nothing is to be had in a signal handler that
/// interrupted another use of the groups.
fn at<R>(conn: &Conn, place: Place, f: impl FnOnce(&mut Lanes, usize, Cred) -> R) -> Result<R, Silence> {
    let found = with(|list| {
        let lane = usize::from(place.lane);
        let g = list.iter_mut().find(|g| g.id == place.group)?;
        let of = g.of;
        let lanes = g.lanes.as_deref_mut()?;
        lanes.lanes.get(lane).filter(|l| l.is_of(conn))?;
        Some(f(lanes, lane, of))
    });
    found.ok_or(Silence::Nothing)?.ok_or(Silence::HungUp)
}

/// Server: announces the connection to the processes that are likely at its other end; false when there is none.
pub fn invite(conn: &Conn) -> bool {
    let names = names(conn);
    let hash = hash(&names);
    let announce = |g: &mut Group| {
        let lanes = g.lanes_as(Role::Server)?;
        if !lanes.is_alive() {
            g.close_lanes();
            return None;
        }
        let free = lanes.lanes.iter().position(|lane| !lane.is_taken())?;
        lanes.sessions = lanes.sessions.wrapping_add(1).max(1);
        lanes.lanes[free].take(conn, Letters::begin(lanes.sessions));
        lanes.say(free, &names, None).then_some(())?;
        lanes.announce(free, hash);
        Some(())
    };
    with(|list| {
        let (mut below, mut any) = (u64::MAX, false);
        for _ in 0..WIDELY {
            let stamp = |g: &mut Group| g.lanes_as(Role::Server).map_or(0, |lanes| lanes.stamp);
            let before = list.iter_mut().map(|g| (stamp(g), g)).filter(|(stamp, _)| (1..below).contains(stamp));
            let Some((stamp, g)) = before.max_by_key(|(stamp, _)| *stamp) else { break };
            below = stamp;
            any |= announce(g).is_some();
        }
        any
    })
    .unwrap_or(false)
}

/// Server: the lane on which the other end has answered; the other invitations are void then.
pub fn answered(conn: &Conn) -> Option<Place> {
    let found = with(|list| {
        list.iter_mut().find_map(|g| {
            let lanes = g.lanes.as_deref()?;
            let answered = |at: &usize| {
                lanes.lanes[*at].is_of(conn)
                    && matches!(lanes.lanes[*at].letters.look(lanes.inbox(*at)), Look::Letter { .. })
            };
            let at = (0..LANES).find(answered)?;
            lanes.announce(at, 0);
            Some(Place { group: g.id, lane: at as u8 })
        })
    });
    let place = found.flatten()?;
    withdraw_but(conn, Some(place));
    Some(place)
}

/// Server: takes all invitations back.
pub fn withdraw(conn: &Conn) {
    withdraw_but(conn, None);
}

fn withdraw_but(conn: &Conn, but: Option<Place>) {
    with(|list| {
        for g in list.iter_mut() {
            let Some(lanes) = g.lanes.as_deref_mut() else { continue };
            for at in 0..LANES {
                if lanes.lanes[at].is_of(conn) && but != Some(Place { group: g.id, lane: at as u8 }) {
                    lanes.announce(at, 0);
                    lanes.leave(at);
                }
            }
        }
    });
}

/// Client: the lane on which this connection is invited.
pub fn find(conn: &Conn) -> Option<Place> {
    let names = names(conn);
    let hash = hash(&names);
    with(|list| {
        for g in list.iter_mut() {
            let group = g.id;
            let Some(lanes) = g.lanes_as(Role::Client) else { continue };
            for at in lanes.announced(hash) {
                let Some((letters, len)) = Letters::find(lanes.inbox(at)) else { continue };
                let mut said = [0; 36];
                lanes.read(at, &mut said);
                // A lane whose session goes on, or was left here, is not for another connection.
                if len != said.len() || said != names || lanes.lanes[at].letters.session() == letters.session() {
                    continue;
                }
                lanes.lanes[at].take(conn, letters);
                return Some(Place { group, lane: at as u8 });
            }
        }
        None
    })?
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
pub fn recv(conn: &Conn, place: Place, out: &mut [u8; channel::MAX]) -> Result<(usize, Option<i32>), Silence> {
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
