//! Whether a connection that had nothing to tell has nothing to tell still: a look at a few words
//! in place of all that `Conn::ready` asks. A set with hundreds of connections spends its time on
//! those where nothing happens.

use super::reach::Any;
use super::*;
use shm::cursor::CURSOR_MASK;

/// Of a connection with both directions on rings, and nothing to tell of an end: all that its
/// readiness can come to change by. What this process does beside that (it reads, it sends) makes
/// it less ready.
///
/// Space is not among it: whoever waits for that, or was not told of it yet, has to look. So has
/// whoever is about to sleep and would be told of it: a send may have filled the ring since.
#[derive(Clone, Copy)]
pub struct Calm {
    /// Whose it is.
    pub conn: &'static Conn,
    my: &'static DmbHeader,
    peer: &'static DmbHeader,
    generation: u32,
    phase: Phase,
    prod: u64,
    rung: u32,
    /// What changes whenever a sender found the ring full.
    pub space: u32,
}

impl Calm {
    /// None if more than that has to be looked at.
    pub fn of(conn: &'static Conn) -> Option<Self> {
        // First: what follows is of this connection, or `lasts` finds another one.
        let generation = conn.identity.gen_.load(Acquire);
        let phase = conn.phase();
        let Any::Mapped(reach) = conn.reach() else { return None };
        let calm = Self {
            conn,
            my: reach.my,
            peer: reach.peer,
            generation,
            phase,
            prod: reach.my.prod.load(Acquire),
            rung: reach.my.rung.load(Relaxed),
            space: reach.peer.tx_arm.load(Relaxed),
        };
        let goes_on = calm.prod & (REVERTED | REVOKED) == 0;
        let is_plain = phase.is_plain() && goes_on && conn.rx.tcp_left() == 0 && conn.mark() <= 1;
        (is_plain && calm.lasts()).then_some(calm)
    }

    /// Whether there was nothing to read.
    pub fn is_empty(&self) -> bool {
        self.read_stamp() == self.conn.rx.word.load(Relaxed)
    }

    /// What changes whenever something new can be read: the edge of edge-triggered epoll.
    pub fn read_stamp(&self) -> u64 {
        self.prod & CURSOR_MASK
    }

    /// Whether nothing of it has changed.
    #[inline]
    pub fn lasts(&self) -> bool {
        // First: the buffers of a connection that has ended may be gone.
        self.conn.identity.gen_.load(Acquire) == self.generation
            // SYNC: prod. Pairs with the exchange by which the peer publishes: who sees the new
            // cursor sees the bytes below it.
            && self.my.prod.load(Acquire) == self.prod
            && self.my.cons.load(Relaxed) & ENDS == 0
            && self.my.takeback.load(Relaxed) & 1 == 0
            && self.my.rung.load(Relaxed) == self.rung
            && self.conn.phase() == self.phase
            && self.peer.tx_arm.load(Relaxed) == self.space
    }
}
