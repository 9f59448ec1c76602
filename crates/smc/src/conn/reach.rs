//! What lies between a connection and the peer's buffer: nothing where that is mapped here
//! (`Mapped`), a copy where it is at a distance (`Image`). Chosen when the buffer is attached, and
//! for good.

use super::image::Image;
use super::mapped::{Mapped, Sleeper};
use super::pieces::Source;
use super::send::{Load, Put, SendError, Sent};
use super::*;
use crate::stats::Counts;

/// What is done to the peer's buffer. What asks, arms or says an end is a full fence, before what
/// the caller looks at next.
pub(super) trait Reach: Copy {
    /// Whether an owner takes its ring back by one store, which makes the writer's next publication
    /// fail. Else it has to ask.
    const REVOKES: bool;
    /// Whether every send asks for the room there is.
    const ASKS: bool;

    /// Says who we are: our buffer's peer is at hand here.
    fn introduce(self, cpu: u32);
    /// Says how far we have read, and with it that both ends have attached.
    fn open(self, cons: u64);
    /// Says that our sends leave TCP after `n` bytes; false if the peer cannot be told.
    fn switch(self, n: u64) -> bool;
    /// Says that our sends will not leave TCP, where the peer may wait for their answer.
    fn refuse(self, of: &Conn);
    /// Says that nothing follows in the peer's ring; then sends are on TCP.
    fn end_ring(self, of: &Conn);

    /// Says how far we have read, when that need not arrive yet.
    fn confirm(self, cons: u64);
    /// Makes that arrive, behind our `cpu` word if that has changed.
    fn confirm_now(self, cpu: Option<u32>);
    /// Asks for a doorbell at the next data; false when the peer cannot be told now.
    fn arm_data(self) -> bool;
    /// Asks for a doorbell at the next space.
    fn arm_space(self);
    /// Lets the wait numbered `wait` (0: none) stand for our arms, if one can.
    fn cover(self, wait: u32);
    /// Says what our bounds are.
    fn bound(self, cpu: u32);
    /// Says where we are with our end, behind everything that was sent.
    fn end(self, cons: u64);
    /// Adds to what was said of our end.
    fn flag(self, flags: u64);
    /// Puts one doorbell on the stream; whether the kernel holds it back, as it may if there is
    /// `more`.
    fn ring(self, of: &Conn, fd: i32, counts: &Counts, more: bool) -> bool;

    /// Publishes what a send has placed that was left in the middle.
    fn resume(self, of: &Conn, fd: i32, tx: &mut Tx);
    /// Whether sends must make way for the owner of the ring, which they do at once where they can.
    fn makes_way(self, of: &Conn, tx: &mut Tx) -> bool;
    /// Whether they have made way, or are about to.
    fn has_made_way(self, of: &Conn) -> bool;
    /// Puts up to `chunk` bytes into the ring and publishes them.
    fn put(
        self,
        of: &Conn,
        tx: &mut Tx,
        chunk: u32,
        load: &Load,
        source: &mut impl Source,
    ) -> Result<Put, SendError>;
    /// Who sleeps for what was just published, and is to be rung for.
    fn sleeper(self, of: &Conn) -> Sleeper;
    /// What becomes of a send of which nothing could be put.
    fn failed(self, of: &Conn, fd: i32, error: SendError) -> Sent;

    /// Takes our ring back; whether the stream is, or will be, in order.
    fn recall(self, of: &Conn, fd: i32, foreign: bool, vanishing: bool) -> bool;
    /// The peer's takeback (`takeback::from`); 0 as long as there is none.
    fn takeback(self, of: &Conn) -> u64;
    /// Brings what the peer gives back within reach, for `resend`; false when it cannot be had.
    fn fetch(self, of: &Conn, tx: &Tx, word: u64) -> bool;
    /// The bytes of the peer's ring as they are to be sent again, from its first; null when they
    /// are not at hand.
    fn resend(self, of: &Conn) -> *const u8;
}

/// That of a connection.
#[derive(Clone, Copy)]
pub(super) enum Any<'a> {
    Mapped(Mapped<'a>),
    Image(Image<'a>),
}

/// Does the same with whichever it is.
macro_rules! each {
    ($reach:expr, $end:ident => $call:expr) => {
        match $reach {
            $crate::conn::reach::Any::Mapped($end) => $call,
            $crate::conn::reach::Any::Image($end) => $call,
        }
    };
}
pub(super) use each;

impl Conn {
    /// What lies between us and the peer's buffer.
    #[inline(always)]
    pub(super) fn reach(&self) -> Any<'_> {
        self.reach_in(self.window())
    }

    /// The same, of the connection's own window.
    #[inline(always)]
    pub(super) fn reach_in(&self, window: &'static Window) -> Any<'_> {
        if window.far.load(Relaxed) == 0 {
            Any::Mapped(Mapped { my: header(&window.my), peer: header(&window.peer) })
        } else {
            Any::Image(Image { of: self, window })
        }
    }

    /// Whether we take our ring back by one store.
    pub(super) fn revokes(&self) -> bool {
        fn revokes<R: Reach>(_: R) -> bool {
            R::REVOKES
        }
        each!(self.reach(), reach => revokes(reach))
    }

    /// Whether our ring was taken back so that nothing more can come into it.
    pub(super) fn has_revoked(&self, ph: Phase) -> bool {
        ph.has(p::RECALLED) && self.revokes()
    }

    /// That of a peer's buffer at a distance.
    #[inline]
    pub(super) fn image(&self) -> Option<Image<'_>> {
        if let Any::Image(image) = self.reach() { Some(image) } else { None }
    }

    /// Whether the peer has asked for its ring and has not got it.
    #[inline]
    pub(super) fn is_recalled(&self) -> bool {
        self.image().is_some_and(Image::is_recalled)
    }

    /// Whether the peer is out of reach at present.
    #[inline]
    pub(super) fn out_of_reach(&self) -> bool {
        self.image().is_some_and(Image::is_lost)
    }

    /// Whether the peer will not be reached any more although a direction still needs it.
    pub(super) fn cut_off(&self) -> bool {
        self.image().is_some_and(Image::is_cut_off)
    }
}
