//! How far the upgrade of a connection has come, and where its two ends meet.
//!
//! Only `meet` takes it further, and only the thread that holds it (`Conn::hold_upgrade`). It lies
//! in memory that may be shared: a fork child goes on where its parent was. Where the ends meet is
//! each process's own, for it has to do with descriptors: a child begins to look anew.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::Conn;
use super::steps::Steps;
use crate::reason::Reason;
use crate::release::Mismatch;
use crate::{sys, table};

/// A step never waits; the thread that takes it may be put off.
const LONGEST_STEP_NS: u64 = 500_000_000;

/// Where the handshake stands, the same for all ways to meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Stage {
    /// The ends look for each other.
    Meeting,
    /// Server: the Proposal is awaited.
    Met,
    /// Client: the answer to the Proposal is awaited.
    Proposed,
    /// Server: the Confirm is awaited.
    Accepted,
    /// Client: that the server has attached our buffer is awaited.
    Confirmed,
    /// It is upgraded, or stays with TCP.
    Over,
}

impl Stage {
    const ALL: [Stage; 6] = [
        Stage::Meeting,
        Stage::Met,
        Stage::Proposed,
        Stage::Accepted,
        Stage::Confirmed,
        Stage::Over,
    ];

    fn of(word: u32) -> Stage {
        Stage::ALL.get(word as usize).copied().unwrap_or(Stage::Over)
    }
}

/// Where the two ends of a connection look for each other, or have met. A number in it is a
/// descriptor, unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meeting {
    /// No way was chosen yet, or what there was is closed.
    Nowhere,
    /// On their way.
    Seeking(Seeking),
    /// They have a channel.
    Met(Met),
}

/// How far they have come, by each way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seeking {
    /// A name that both know: one listens under it.
    Name(Name),
    /// The memory of a link group that their processes have already.
    Lane(Lane),
    /// A directory, bind-mounted into both network namespaces.
    Directory(Directory),
    /// Brokers of two guests.
    Broker(Broker),
}

/// By the connection's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    /// Calls now and then.
    Calls,
    /// Takes the name.
    Opens,
    /// Listens.
    Listens(i32),
}

/// In memory that the two processes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Looks for an invitation.
    Awaits,
    /// Invitations are out to the processes that there are link groups with.
    Invites,
    /// It was offered, as soon as it was open, to the processes that the same address led to
    /// before.
    Offers,
}

/// In a rendezvous directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Directory {
    /// Looks for somebody who was not asked yet.
    Calls,
    /// Listens.
    Listens(i32),
    /// Somebody is there, who may be the other end.
    Proves(i32),
}

/// Between guests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broker {
    /// Is about to call the broker at the peer's address.
    Calls,
    /// Has called it.
    Dials(i32),
    /// Has said which connection it is: the broker has to show that it shares the bar.
    Asks(i32),
    /// Has shown that it does: the broker looks for the other end.
    Hands(i32),
    /// The other end: listens, for the broker of its own guest to come.
    Listens(i32),
    /// What that broker hands over is awaited.
    Handed(i32),
}

/// The channel that the two ends have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// A socket between two processes of one network namespace.
    Name(i32),
    /// A lane between them.
    Lane(Place),
    /// A socket between two network namespaces.
    Directory(i32),
    /// A TCP connection to another guest.
    Broker(i32),
    /// One side of a conversation that a test holds in its hands.
    #[cfg(test)]
    Scripted(u32),
}

/// A lane of a link group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Our number of the link group.
    pub group: u32,
    /// Which of its lanes.
    pub lane: u8,
}

impl Meeting {
    /// The descriptor that it needs.
    pub fn descriptor(self) -> Option<i32> {
        match self {
            Meeting::Seeking(
                Seeking::Name(Name::Listens(fd))
                | Seeking::Directory(Directory::Listens(fd) | Directory::Proves(fd))
                | Seeking::Broker(
                    Broker::Dials(fd)
                    | Broker::Asks(fd)
                    | Broker::Hands(fd)
                    | Broker::Listens(fd)
                    | Broker::Handed(fd),
                ),
            )
            | Meeting::Met(Met::Name(fd) | Met::Directory(fd) | Met::Broker(fd)) => Some(fd),
            _ => None,
        }
    }

    /// In one word: what it is, which lane, and a descriptor or the number of a link group.
    fn encode(self) -> u64 {
        let (tag, lane, number) = match self {
            Meeting::Nowhere => (0, 0, 0),
            Meeting::Seeking(Seeking::Name(Name::Calls)) => (1, 0, 0),
            Meeting::Seeking(Seeking::Name(Name::Opens)) => (2, 0, 0),
            Meeting::Seeking(Seeking::Name(Name::Listens(fd))) => (3, 0, fd as u32),
            Meeting::Seeking(Seeking::Lane(Lane::Awaits)) => (4, 0, 0),
            Meeting::Seeking(Seeking::Lane(Lane::Invites)) => (5, 0, 0),
            Meeting::Seeking(Seeking::Directory(Directory::Calls)) => (6, 0, 0),
            Meeting::Seeking(Seeking::Directory(Directory::Listens(fd))) => (7, 0, fd as u32),
            Meeting::Seeking(Seeking::Directory(Directory::Proves(fd))) => (8, 0, fd as u32),
            Meeting::Seeking(Seeking::Broker(Broker::Calls)) => (9, 0, 0),
            Meeting::Seeking(Seeking::Broker(Broker::Dials(fd))) => (10, 0, fd as u32),
            Meeting::Seeking(Seeking::Broker(Broker::Asks(fd))) => (11, 0, fd as u32),
            Meeting::Seeking(Seeking::Broker(Broker::Hands(fd))) => (12, 0, fd as u32),
            Meeting::Seeking(Seeking::Broker(Broker::Listens(fd))) => (13, 0, fd as u32),
            Meeting::Seeking(Seeking::Broker(Broker::Handed(fd))) => (14, 0, fd as u32),
            Meeting::Met(Met::Name(fd)) => (15, 0, fd as u32),
            Meeting::Met(Met::Lane(Place { group, lane })) => (16, lane, group),
            Meeting::Met(Met::Directory(fd)) => (17, 0, fd as u32),
            Meeting::Met(Met::Broker(fd)) => (18, 0, fd as u32),
            Meeting::Seeking(Seeking::Lane(Lane::Offers)) => (19, 0, 0),
            #[cfg(test)]
            Meeting::Met(Met::Scripted(side)) => (20, 0, side),
        };
        u64::from(number) << 32 | u64::from(lane) << 8 | tag
    }

    /// Back from `encode`.
    fn decode(word: u64) -> Meeting {
        let (number, lane) = ((word >> 32) as u32, (word >> 8) as u8);
        let fd = number as i32;
        match word as u8 {
            1 => Meeting::Seeking(Seeking::Name(Name::Calls)),
            2 => Meeting::Seeking(Seeking::Name(Name::Opens)),
            3 => Meeting::Seeking(Seeking::Name(Name::Listens(fd))),
            4 => Meeting::Seeking(Seeking::Lane(Lane::Awaits)),
            5 => Meeting::Seeking(Seeking::Lane(Lane::Invites)),
            6 => Meeting::Seeking(Seeking::Directory(Directory::Calls)),
            7 => Meeting::Seeking(Seeking::Directory(Directory::Listens(fd))),
            8 => Meeting::Seeking(Seeking::Directory(Directory::Proves(fd))),
            9 => Meeting::Seeking(Seeking::Broker(Broker::Calls)),
            10 => Meeting::Seeking(Seeking::Broker(Broker::Dials(fd))),
            11 => Meeting::Seeking(Seeking::Broker(Broker::Asks(fd))),
            12 => Meeting::Seeking(Seeking::Broker(Broker::Hands(fd))),
            13 => Meeting::Seeking(Seeking::Broker(Broker::Listens(fd))),
            14 => Meeting::Seeking(Seeking::Broker(Broker::Handed(fd))),
            15 => Meeting::Met(Met::Name(fd)),
            16 => Meeting::Met(Met::Lane(Place { group: number, lane })),
            17 => Meeting::Met(Met::Directory(fd)),
            18 => Meeting::Met(Met::Broker(fd)),
            19 => Meeting::Seeking(Seeking::Lane(Lane::Offers)),
            #[cfg(test)]
            20 => Meeting::Met(Met::Scripted(number)),
            _ => Meeting::Nowhere,
        }
    }
}

/// Of offers: it was not offered, or nobody was there to take it.
pub(crate) const NOT: u32 = 0;
/// It was offered here.
pub(crate) const OFFERED: u32 = 1;
/// One who is not its other end offered it, or did not go on: no more offers of it are looked for.
pub(crate) const REFUSES: u32 = 2;

/// The upgrade of one connection.
#[repr(C)]
#[derive(Debug)]
pub struct Upgrade {
    steps: Steps,
    /// Looks since the stage, or the way to meet, changed.
    pub(crate) looks: AtomicU32,
    /// When looks were counted anew: operations, and milliseconds.
    pub(crate) since_ops: AtomicU32,
    /// The same, by `sys::coarse_ms`.
    pub since_ms: AtomicU32,
    /// The next look is due at so many operations, or at a later one when that time has come.
    pub(crate) due_ops: AtomicU32,
    pub(crate) due_ms: AtomicU32,
    /// When the clock was looked at for that.
    pub(crate) clock_ms: AtomicU32,
    /// `lanes::era` when it began.
    pub(crate) era: AtomicU32,
    /// `NOT`, `OFFERED` or `REFUSES`.
    pub(crate) offered: AtomicU32,
    /// Since when it listens under its name, in milliseconds.
    pub(crate) listens: AtomicU32,
    /// The code with which the peer declined.
    declined: AtomicU32,
    /// Bytes of handshake messages sent and received that are on record (`trace`).
    pub(crate) traced: [AtomicU32; 2],
}

impl Upgrade {
    /// Of a new connection, whose ends meet nowhere.
    pub(super) fn reset(&self) {
        self.steps.reset();
        // One after the other: a chain of iterators costs each connection forty instructions.
        for word in [&self.looks, &self.era, &self.offered, &self.listens, &self.declined] {
            word.store(0, Relaxed);
        }
        for word in [&self.since_ops, &self.since_ms, &self.due_ops, &self.due_ms, &self.clock_ms] {
            word.store(0, Relaxed);
        }
        for word in &self.traced {
            word.store(0, Relaxed);
        }
    }

    /// Where the ends meet, which is this process's alone to know.
    fn place(&self) -> &'static AtomicU64 {
        &table::own_at(core::ptr::from_ref(self).cast()).meeting
    }

    /// How far the handshake is.
    pub fn stage(&self) -> Stage {
        Stage::of(self.steps.stage())
    }

    /// The handshake is as far as that. Looks are counted anew.
    pub(crate) fn reach(&self, stage: Stage) {
        self.steps.reach(stage as u32);
        self.looks.store(0, Relaxed);
    }

    /// No further steps; how far it was.
    pub(crate) fn end(&self) -> Stage {
        Stage::of(self.steps.reach(Stage::Over as u32))
    }

    /// Whether no step was taken yet.
    pub fn is_unbegun(&self) -> bool {
        self.stage() == Stage::Meeting && self.meeting() == Meeting::Nowhere
    }

    /// No further steps, if none was ever taken, so that there is nothing to undo; false if one
    /// was, or is being taken.
    pub(super) fn end_unbegun(&self) -> bool {
        self.steps.end_unbegun(Stage::Meeting as u32, Stage::Over as u32, self.place())
    }

    /// It goes on after all, as if nothing had ended it.
    pub(super) fn begin_again(&self) {
        self.steps.reach_from(Stage::Over as u32, Stage::Meeting as u32);
    }

    /// Where the ends meet.
    pub fn meeting(&self) -> Meeting {
        Meeting::decode(self.place().load(Relaxed))
    }

    /// Looks for the other end there from now on.
    pub(crate) fn seek(&self, at: Seeking) {
        self.place().store(Meeting::Seeking(at).encode(), Relaxed);
    }

    /// Has met the other end.
    pub(crate) fn meet(&self, at: Met) {
        self.place().store(Meeting::Met(at).encode(), Relaxed);
    }

    /// Leaves where it is, for who is told so to close.
    pub(crate) fn leave(&self) -> Meeting {
        Meeting::decode(self.place().swap(Meeting::Nowhere.encode(), Relaxed))
    }

    /// Leaves that place; false if it was not there any more.
    pub(crate) fn leave_if(&self, at: Meeting) -> bool {
        self.place()
            .compare_exchange(at.encode(), Meeting::Nowhere.encode(), Relaxed, Relaxed)
            .is_ok()
    }

    /// What it holds was another process's, and has ended with that one.
    pub fn forget(&self) {
        self.leave();
    }

    /// Why the peer declined, if it did.
    pub fn declined(&self) -> Reason {
        Reason(self.declined.load(Relaxed))
    }

    pub(crate) fn is_declined(&self, why: Reason) {
        self.declined.store(why.code(), Relaxed);
    }

    /// The peer shares memory by releases that this build does not speak: stands in the place of a
    /// reason of the peer's.
    pub(crate) fn is_of_another_release(&self, mismatch: Mismatch) {
        self.declined.store(mismatch.word(), Relaxed);
    }
}

impl Conn {
    /// Why it is TCP.
    pub fn reason(&self) -> Reason {
        Reason(self.identity.reason.load(Relaxed))
    }

    pub(crate) fn set_reason(&self, why: Reason) {
        self.identity.reason.store(why.code(), Relaxed);
    }

    /// Keeps an upgrade from going on until `release_upgrade`; false when one is going on.
    pub fn hold_upgrade(&self) -> bool {
        self.upgrade.steps.hold(shm::thread_id())
    }

    /// `hold_upgrade` of a connection whose buffer is not exposed: a step of another thread may have
    /// exposed it between a look and the hold.
    pub fn hold_unexposed(&self) -> bool {
        if self.is_exposed() || !self.hold_upgrade() {
            return false;
        }
        let is_unexposed = !self.is_exposed();
        if !is_unexposed {
            self.release_upgrade();
        }
        is_unexposed
    }

    /// Waits for the end of a step that another thread is in the middle of: before a fork, and
    /// behind the count of the child.
    #[cold]
    pub fn await_step(&self) {
        let deadline = sys::now_ns() + LONGEST_STEP_NS;
        while self.is_upgraded_elsewhere() && sys::now_ns() < deadline {
            sys::nap();
        }
    }

    /// Whether another thread is in the middle of a step, and will end it whatever this one does
    /// meanwhile.
    #[cold]
    pub fn is_upgraded_elsewhere(&self) -> bool {
        let who = self.upgrade.steps.holder();
        who != 0 && who != shm::thread_id() && shm::thread::is_alive(who)
    }

    /// Ends `hold_upgrade`.
    pub fn release_upgrade(&self) {
        self.upgrade.steps.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind of place, with the numbers that a word has to keep apart.
    fn places() -> Vec<Meeting> {
        let seeking = |at| Meeting::Seeking(at);
        let mut all = vec![
            Meeting::Nowhere,
            seeking(Seeking::Name(Name::Calls)),
            seeking(Seeking::Name(Name::Opens)),
            seeking(Seeking::Lane(Lane::Awaits)),
            seeking(Seeking::Lane(Lane::Invites)),
            seeking(Seeking::Lane(Lane::Offers)),
            seeking(Seeking::Directory(Directory::Calls)),
            seeking(Seeking::Broker(Broker::Calls)),
        ];
        for fd in [0, 1, 917, i32::MAX] {
            all.extend([
                seeking(Seeking::Name(Name::Listens(fd))),
                seeking(Seeking::Directory(Directory::Listens(fd))),
                seeking(Seeking::Directory(Directory::Proves(fd))),
                seeking(Seeking::Broker(Broker::Dials(fd))),
                seeking(Seeking::Broker(Broker::Asks(fd))),
                seeking(Seeking::Broker(Broker::Hands(fd))),
                seeking(Seeking::Broker(Broker::Listens(fd))),
                seeking(Seeking::Broker(Broker::Handed(fd))),
                Meeting::Met(Met::Name(fd)),
                Meeting::Met(Met::Directory(fd)),
                Meeting::Met(Met::Broker(fd)),
            ]);
        }
        for group in [0, 1, u32::MAX] {
            all.extend([0, 63, u8::MAX].map(|lane| Meeting::Met(Met::Lane(Place { group, lane }))));
        }
        all
    }

    #[test]
    fn a_place_survives_in_a_word_of_its_own() {
        let places = places();
        let words: std::collections::BTreeSet<u64> = places.iter().map(|at| at.encode()).collect();
        assert_eq!(words.len(), places.len(), "no two places are one word");
        assert!(places.iter().all(|at| Meeting::decode(at.encode()) == *at));
    }

    /// A fresh slot of the table is zero, and words that were never written must not name a
    /// descriptor.
    #[test]
    fn zero_and_nonsense_are_nowhere() {
        assert_eq!(Meeting::Nowhere.encode(), 0);
        for tag in 21..=255 {
            let at = Meeting::decode(7 << 32 | tag);
            assert_eq!((at, at.descriptor()), (Meeting::Nowhere, None), "{tag}");
        }
    }

    #[test]
    fn a_descriptor_is_what_was_put_in_and_a_lane_has_none() {
        let with: Vec<_> = places().into_iter().filter_map(Meeting::descriptor).collect();
        assert_eq!(with.len(), 4 * 11);
        assert!(
            [0, 1, 917, i32::MAX]
                .iter()
                .all(|fd| with.iter().filter(|with| *with == fd).count() == 11)
        );
        assert_eq!(Meeting::Met(Met::Lane(Place { group: 917, lane: 3 })).descriptor(), None);
    }

    #[test]
    fn stages_survive_and_others_are_over() {
        assert!(Stage::ALL.iter().all(|&stage| Stage::of(stage as u32) == stage));
        assert_eq!(Stage::of(0), Stage::Meeting, "as in a fresh slot");
        assert_eq!(Stage::of(Stage::ALL.len() as u32), Stage::Over);
    }
}
