//! Where each direction of a connection is, and what has become of the whole: one word, so that the
//! data path finds out with one load and one compare.
//!
//! The word is written by every thread and process that has the connection. A direction's state
//! changes under the lock of that direction, but for the steps of the upgrade, which has one thread
//! at a time. `may_become` is the list of all changes.

use shm::sync::{AtomicU32, Ordering::*};

/// Where our sends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sends {
    /// On TCP, and no buffer of the peer's is at hand.
    Tcp,
    /// On TCP for good: sends went back before the peer's buffer was at hand.
    Kept,
    /// On TCP; the peer's buffer is at hand and the peer is committed, so they may switch.
    Ready,
    /// A thread tries to switch them: nobody may enter a kernel send.
    Switching,
    /// In the peer's ring.
    Ring,
    /// About to be on TCP again: the peer is not told yet that nothing follows in the ring.
    Leaving,
    /// On TCP again, for good.
    Back,
}

/// Where our receives come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Receives {
    /// From TCP, and no buffer of ours is exposed.
    Tcp,
    /// From TCP; our buffer may be exposed at any moment, so they enter the kernel one at a time,
    /// as they do once it is.
    Exposing,
    /// From TCP; our buffer is exposed, so the peer may switch its sends at any time.
    Ready,
    /// A thread tries to follow the peer's switch: nobody may enter a kernel receive.
    Switching,
    /// From our ring, behind what is left on TCP.
    Ring,
    /// From TCP again, for good.
    Back,
}

const SENDS: u32 = 7;
const RECEIVES_AT: u32 = 3;
const RECEIVES: u32 = 7 << RECEIVES_AT;

/// Never to be upgraded (again).
pub(crate) const FROZEN: u32 = 1 << 6;
/// shutdown(SHUT_WR) was called here.
pub(crate) const SHUT_WR: u32 = 1 << 7;
/// shutdown(SHUT_RD) was called here.
pub(crate) const SHUT_RD: u32 = 1 << 8;
/// The kernel connection ended without the peer's end flags.
pub(crate) const DEAD: u32 = 1 << 9;
/// The end of the stream, or its error, has been delivered.
pub(crate) const ENDED: u32 = 1 << 10;
/// Reset here: the peer broke the protocol, the device was removed, or nobody can put the stream in
/// order. ECONNRESET.
pub(crate) const BROKEN: u32 = 1 << 11;
/// Closed here.
pub(crate) const CLOSED: u32 = 1 << 12;
/// Something was sent to a peer that had already closed: its RST is a real error.
pub(crate) const SENT_TO_GONE: u32 = 1 << 13;
/// What came through the ring is not what was sent: BROKEN follows.
pub(crate) const DAMAGED: u32 = 1 << 14;
/// WE have asked for OUR ring back; `Conn::is_recalled` is about the peer's.
pub(crate) const RECALLED: u32 = 1 << 15;
/// Our ring was taken back for others: what the peer sends again must not also be read from there.
pub(crate) const TAKEN: u32 = 1 << 16;
/// The peer's takeback has been taken up.
pub(crate) const TAKEN_BACK: u32 = 1 << 17;
/// Bytes in the ring that were not published, or that the peer wants back, are to go over TCP first.
pub(crate) const RESEND: u32 = 1 << 18;
/// What passes over TCP is looked at, to tell the connection from others (`witness.rs`).
pub(crate) const WITNESS: u32 = 1 << 19;

impl Sends {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Tcp,
        Self::Kept,
        Self::Ready,
        Self::Switching,
        Self::Ring,
        Self::Leaving,
        Self::Back,
    ];

    /// Any code that is none, which only another process of the family can have written, stands for
    /// TCP.
    #[inline]
    const fn of(word: u32) -> Self {
        let code = (word & SENDS) as usize;
        if code < Self::ALL.len() { Self::ALL[code] } else { Self::Tcp }
    }

    /// Where they are once both ends have attached.
    pub(crate) const fn committed(self) -> Self {
        match self {
            Self::Tcp => Self::Ready,
            Self::Kept => Self::Back,
            at => at,
        }
    }

    /// Undoing an upgrade: Ready becomes Tcp; Back (already given up) becomes Kept.
    pub(crate) const fn withdrawn(self) -> Self {
        match self {
            Self::Ready => Self::Tcp,
            Self::Back => Self::Kept,
            at => at,
        }
    }

    /// Where they are when they are not to leave TCP (again), while they are not in the ring.
    pub(crate) const fn gone_back(self) -> Self {
        match self {
            Self::Tcp => Self::Kept,
            Self::Ready | Self::Switching => Self::Back,
            at => at,
        }
    }

    /// Where they are when the peer has been told that nothing follows in the ring.
    pub(crate) const fn left(self) -> Self {
        if matches!(self, Self::Leaving) { Self::Back } else { self }
    }

    /// Whether the change is one that sends make.
    pub const fn may_become(self, next: Self) -> bool {
        use Sends::*;
        matches!(
            (self, next),
            (Tcp, Ready | Kept)
                | (Ready, Tcp | Switching | Back)
                | (Switching, Ready | Ring | Back)
                | (Ring, Leaving)
                | (Leaving, Back)
                | (Kept, Back)
                | (Back, Kept)
        )
    }
}

impl Receives {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Tcp, Self::Exposing, Self::Ready, Self::Switching, Self::Ring, Self::Back];

    #[inline]
    const fn of(word: u32) -> Self {
        let code = ((word & RECEIVES) >> RECEIVES_AT) as usize;
        if code < Self::ALL.len() { Self::ALL[code] } else { Self::Tcp }
    }

    /// Where they are when the peer will never learn of our buffer.
    pub(crate) const fn withdrawn(self) -> Self {
        match self {
            Self::Ready | Self::Switching | Self::Back => Self::Tcp,
            at => at,
        }
    }

    /// Where they are once they have followed the peer's switch.
    pub(crate) const fn followed(self) -> Self {
        if matches!(self, Self::Ready | Self::Switching) { Self::Ring } else { self }
    }

    /// Where they are once nothing more comes through the ring.
    pub(crate) const fn back(self) -> Self {
        if matches!(self, Self::Ready | Self::Switching | Self::Ring) { Self::Back } else { self }
    }

    /// Whether the change is one that receives make.
    pub const fn may_become(self, next: Self) -> bool {
        use Receives::*;
        matches!(
            (self, next),
            (Tcp, Exposing | Ready)
                | (Exposing, Tcp | Ready)
                | (Ready, Tcp | Switching | Ring | Back)
                | (Switching, Tcp | Ready | Ring | Back)
                | (Ring, Back)
                | (Back, Tcp | Ring)
        )
    }
}

/// The word of a connection at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Phase(u32);

impl Phase {
    /// Where our sends are.
    #[inline]
    pub const fn sends(self) -> Sends {
        Sends::of(self.0)
    }

    /// Where our receives come from.
    #[inline]
    pub const fn receives(self) -> Receives {
        Receives::of(self.0)
    }

    /// Whether any of these marks is set.
    #[inline]
    pub(crate) const fn has(self, marks: u32) -> bool {
        self.0 & marks != 0
    }

    /// Whether a send may go straight to the ring: no state in between, no end.
    #[inline(always)]
    pub(crate) const fn sends_freely(self) -> bool {
        self.0 & (SENDS | SHUT_WR | DEAD | BROKEN | CLOSED) == Sends::Ring as u32
    }

    /// Whether a receive may look into the ring.
    #[inline(always)]
    pub(crate) const fn receives_freely(self) -> bool {
        self.0 & (RECEIVES | BROKEN | TAKEN | CLOSED) == (Receives::Ring as u32) << RECEIVES_AT
    }

    /// Whether a thread may enter a kernel send.
    #[inline]
    pub(crate) const fn kernel_sends(self) -> bool {
        // Payload in front of what is to be sent again would change places with that.
        !matches!(self.sends(), Sends::Switching | Sends::Ring | Sends::Leaving)
            && !self.has(RESEND)
    }

    /// Whether a thread may enter a kernel receive, beside others or (`alone`) as the only one.
    #[inline]
    pub(crate) const fn kernel_receives(self, alone: bool) -> bool {
        match self.receives() {
            Receives::Tcp | Receives::Back => true,
            Receives::Exposing | Receives::Ready => alone,
            Receives::Switching | Receives::Ring => false,
        }
    }

    /// Whether both directions are on rings, and nothing has happened to the connection beside
    /// that.
    #[inline]
    pub(crate) const fn is_plain(self) -> bool {
        self.0 == Sends::Ring as u32 | (Receives::Ring as u32) << RECEIVES_AT
    }

    /// Whether no upgrade has begun to show: the kernel's answers are the whole truth.
    #[inline(always)]
    pub(crate) const fn is_untouched(self) -> bool {
        self.0 & !FROZEN == 0
    }

    /// Whether receives are to follow the peer when it switches.
    #[inline]
    pub(crate) const fn awaits_switch(self) -> bool {
        matches!(self.receives(), Receives::Ready | Receives::Switching)
    }
}

/// Defines questions of a `Phase`, and the same of a connection now.
macro_rules! queries {
    ($($(#[$doc:meta])* $name:ident: $phase:ident => $is:expr;)*) => {
        impl Phase { $($(#[$doc])* #[inline] pub const fn $name(self) -> bool { let $phase = self; $is })* }
        impl super::Conn { $($(#[$doc])* #[inline] pub fn $name(&self) -> bool { self.phase().$name() })* }
    };
}

queries! {
    /// Whether sends are in the peer's ring.
    sends_on_ring: now => matches!(now.sends(), Sends::Ring | Sends::Leaving);
    /// Whether receives come from our ring.
    receives_on_ring: now => matches!(now.receives(), Receives::Ring);
    /// Whether any direction uses a ring, so that kernel readiness does not tell the truth about
    /// it.
    switched: now => now.sends_on_ring() || now.receives_on_ring();
    /// Whether a wait cannot be left to the kernel: a direction uses a ring, or bytes are left that
    /// are to be sent again over TCP, and the peer may wait for them.
    needs_us: now => !now.is_untouched() && (now.switched() || now.has(RESEND));
    /// Whether bytes are to be sent again over TCP.
    owes: now => now.has(RESEND);
    /// Whether our buffer is exposed, or was.
    is_exposed: now => !matches!(now.receives(), Receives::Tcp | Receives::Exposing);
    /// Whether the peer's buffer is at hand and both ends have attached, or had.
    is_committed: now => !matches!(now.sends(), Sends::Tcp | Sends::Kept);
    /// Whether sends may try to switch. One that was left in the middle of a try may be tried
    /// again.
    may_switch_sends: now => matches!(now.sends(), Sends::Ready | Sends::Switching) && !now.has(SHUT_WR | DEAD | CLOSED);
    /// Whether sends have been told to go back to TCP.
    sends_go_back: now => matches!(now.sends(), Sends::Kept | Sends::Leaving | Sends::Back);
    /// Whether sends are on TCP for good.
    sends_are_back: now => matches!(now.sends(), Sends::Kept | Sends::Back);
    /// Whether receives are back on TCP.
    receives_are_back: now => matches!(now.receives(), Receives::Back);
    /// Whether it is never to be upgraded (again).
    is_frozen: now => now.has(FROZEN);
    /// Whether shutdown(SHUT_WR) was called here.
    sends_are_shut: now => now.has(SHUT_WR);
    /// Whether shutdown(SHUT_RD) was called here.
    receives_are_shut: now => now.has(SHUT_RD);
    /// Whether the kernel's connection ended without a word of the peer.
    is_dead: now => now.has(DEAD);
    /// Whether the end of the stream, or its error, has been delivered.
    has_ended: now => now.has(ENDED);
    /// Whether it was reset here, because nobody could go on with it.
    is_broken: now => now.has(BROKEN);
    /// Whether what passes over TCP is looked at, to tell the connection from others.
    is_witnessed: now => now.has(WITNESS);
    /// Whether it was closed here.
    is_closed: now => now.has(CLOSED);
}

impl core::fmt::Debug for Phase {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "sends {:?}, receives {:?}, {:#x}",
            self.sends(),
            self.receives(),
            self.0 & !(SENDS | RECEIVES)
        )
    }
}

/// The word itself. Zeroed memory is a connection that nothing has happened to.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Word(AtomicU32);

impl Word {
    /// The word now.
    #[inline]
    pub fn now(&self) -> Phase {
        Phase(self.0.load(Acquire))
    }

    /// The word now, in one order with all other such looks and changes.
    #[inline(always)]
    pub fn now_in_order(&self) -> Phase {
        Phase(self.0.load(SeqCst))
    }

    /// Sets marks; the word before.
    pub fn set(&self, marks: u32) -> Phase {
        Phase(self.0.fetch_or(marks & !(SENDS | RECEIVES), SeqCst))
    }

    /// Takes marks off.
    pub fn clear(&self, marks: u32) {
        self.0.fetch_and(!(marks & !(SENDS | RECEIVES)), SeqCst);
    }

    /// Takes our sends to what `next` says of where they are; where they were.
    pub fn turn_sends(&self, next: impl Fn(Sends) -> Sends) -> Sends {
        let turn = |word| {
            let (was, is) = (Sends::of(word), next(Sends::of(word)));
            debug_assert!(was == is || was.may_become(is), "sends: {was:?} to {is:?}");
            word & !SENDS | is as u32
        };
        Sends::of(self.turn(turn))
    }

    /// Takes our receives to what `next` says of where they are; where they were.
    pub fn turn_receives(&self, next: impl Fn(Receives) -> Receives) -> Receives {
        let turn = |word| {
            let (was, is) = (Receives::of(word), next(Receives::of(word)));
            debug_assert!(was == is || was.may_become(is), "receives: {was:?} to {is:?}");
            word & !RECEIVES | (is as u32) << RECEIVES_AT
        };
        Receives::of(self.turn(turn))
    }

    fn turn(&self, next: impl Fn(u32) -> u32) -> u32 {
        let mut word = self.0.load(SeqCst);
        loop {
            match self.0.compare_exchange(word, next(word), SeqCst, SeqCst) {
                Ok(before) => return before,
                Err(now) => word = now,
            }
        }
    }

    /// For a connection that takes the slot.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Each line is a state and those that may follow it; doc/connection.md draws the same.
    const SENDS_TABLE: [(Sends, &[Sends]); 7] = {
        use Sends::*;
        [
            (Tcp, &[Ready, Kept]),
            (Kept, &[Back]),
            (Ready, &[Tcp, Switching, Back]),
            (Switching, &[Ready, Ring, Back]),
            (Ring, &[Leaving]),
            (Leaving, &[Back]),
            (Back, &[Kept]),
        ]
    };
    const RECEIVES_TABLE: [(Receives, &[Receives]); 6] = {
        use Receives::*;
        [
            (Tcp, &[Exposing, Ready]),
            (Exposing, &[Tcp, Ready]),
            (Ready, &[Tcp, Switching, Ring, Back]),
            (Switching, &[Tcp, Ready, Ring, Back]),
            (Ring, &[Back]),
            (Back, &[Tcp, Ring]),
        ]
    };

    fn refuses(change: impl FnOnce() + core::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(change).is_err()
    }

    #[test]
    fn directions_change_as_in_the_table_and_by_themselves() {
        for (from, legal) in SENDS_TABLE {
            for to in Sends::ALL {
                assert_eq!(from.may_become(to), legal.contains(&to), "{from:?} to {to:?}");
                let start = FROZEN | ENDED | (Receives::Ring as u32) << RECEIVES_AT | from as u32;
                let word = Word(AtomicU32::new(start));
                if from == to || legal.contains(&to) {
                    assert_eq!(word.turn_sends(|_| to), from);
                    let now = word.now();
                    assert_eq!((now.sends(), now.receives()), (to, Receives::Ring));
                    assert!(now.has(FROZEN) && now.has(ENDED));
                } else if cfg!(debug_assertions) {
                    assert!(refuses(move || _ = word.turn_sends(|_| to)), "{from:?} to {to:?}");
                }
            }
        }
        for (from, legal) in RECEIVES_TABLE {
            for to in Receives::ALL {
                assert_eq!(from.may_become(to), legal.contains(&to), "{from:?} to {to:?}");
                let word = Word(AtomicU32::new(Sends::Ring as u32 | (from as u32) << RECEIVES_AT));
                if from == to || legal.contains(&to) {
                    assert_eq!(word.turn_receives(|_| to), from);
                    assert_eq!((word.now().sends(), word.now().receives()), (Sends::Ring, to));
                } else if cfg!(debug_assertions) {
                    assert!(refuses(move || _ = word.turn_receives(|_| to)), "{from:?} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn codes_and_marks_do_not_share_bits() {
        for (at, state) in Sends::ALL.into_iter().enumerate() {
            assert_eq!((state as usize, Sends::of(state as u32)), (at, state));
        }
        for (at, state) in Receives::ALL.into_iter().enumerate() {
            assert_eq!((state as usize, Receives::of((state as u32) << RECEIVES_AT)), (at, state));
        }
        let word = Word::default();
        word.set(u32::MAX);
        assert_eq!((word.now().sends(), word.now().receives()), (Sends::Tcp, Receives::Tcp));
        word.clear(u32::MAX);
        assert_eq!(word.now(), Phase(0));
    }

    #[test]
    fn words_that_nobody_writes_are_tcp() {
        let odd = Phase(u32::MAX);
        assert_eq!((odd.sends(), odd.receives()), (Sends::Tcp, Receives::Tcp));
    }

    #[test]
    fn rings_are_used_in_their_states_alone() {
        for sends in Sends::ALL {
            for receives in Receives::ALL {
                let now = Phase(sends as u32 | (receives as u32) << RECEIVES_AT);
                assert_eq!(now.sends_freely(), sends == Sends::Ring);
                assert_eq!(now.receives_freely(), receives == Receives::Ring);
                // Of ring and kernel never both.
                assert!(!(now.sends_on_ring() && now.kernel_sends()));
                assert!(!(now.receives_on_ring() && now.kernel_receives(true)));
                for mark in [SHUT_WR, DEAD, BROKEN, CLOSED] {
                    assert!(!Phase(now.0 | mark).sends_freely());
                }
                for mark in [TAKEN, BROKEN, CLOSED] {
                    assert!(!Phase(now.0 | mark).receives_freely());
                }
            }
        }
    }
}
