//! How much may be under way: what SO_SNDBUF, SO_RCVBUF and TCP_NOTSENT_LOWAT of the two ends leave
//! of a ring.
//!
//! A program sets them to bound how much it queues at a peer that does not read. The kernel keeps
//! the values, doubled where it doubles them; each end tells the other what was set, in the upper
//! half of the header's `cpu` word, so that both take the ring for equally small: the writer's idea
//! of "full" and the reader's of "the writer may be waiting" must not differ.

use super::reach::{Reach, each};
use super::*;
use crate::sys;
use core::sync::atomic::fence;

/// Says which of the two buffers the application has set (Linux 5.14). Not in the libc crate.
const SO_BUF_LOCK: i32 = 72;
const SNDBUF_LOCK: u32 = 1;
const RCVBUF_LOCK: u32 = 2;

/// What a send buffer that nobody has set holds: the kernel lets it grow to some MiB.
const USUAL_SEND: u32 = 1 << 20;
/// What a peer that does not read is sent into a receive buffer that nobody has set, as measured
/// over loopback.
const USUAL_RECEIVE: u32 = 128 << 10;

/// Where the codes of the send and of the receive buffer lie in the header's `cpu` word, above the
/// processor.
const SEND: u32 = 16;
const RECEIVE: u32 = 24;
const PROCESSOR: u32 = (1 << SEND) - 1;

/// A number of bytes in 8 bits, rounded down by an eighth at most: `8 + low 3 bits`, shifted by the
/// rest and 7. None is below 2 KiB, and 0 says that there is no bound.
fn encode(bytes: u32) -> u32 {
    let bytes = bytes.max(2 << 10);
    let shift = 28 - bytes.leading_zeros();
    (shift - 7) << 3 | bytes >> shift & 7
}

/// The bytes that a code of `encode` stands for; the peer may have sent any code.
fn decode(code: u32) -> u32 {
    ((8 + u64::from(code & 7)) << ((code >> 3 & 31) + 7)).min(1 << 31) as u32
}

/// The processor that a `cpu` word tells.
pub(super) fn processor(word: u32) -> u32 {
    word & PROCESSOR
}

/// Bytes that may be under way in a ring of `size`: the writer has set the send buffer that is in
/// `writer`, the reader the receive buffer in `reader`.
#[inline(always)]
fn room(size: u32, writer: u32, reader: u32) -> u32 {
    if (writer | reader) >> SEND == 0 { size } else { bounded(size, writer, reader) }
}

#[cold]
fn bounded(size: u32, writer: u32, reader: u32) -> u32 {
    let (send, receive) = (writer >> SEND & 0xff, reader >> RECEIVE & 0xff);
    let most = match (send, receive) {
        (0, 0) => return size,
        (send, 0) => decode(send).saturating_add(USUAL_RECEIVE),
        (0, receive) => decode(receive).saturating_add(USUAL_SEND),
        (send, receive) => decode(send).saturating_add(decode(receive)),
    };
    size.min(most)
}

impl Conn {
    /// The processor and our bounds, as the peer is told them.
    #[inline(always)]
    pub(super) fn with_bounds(&self, cpu: u32) -> u32 {
        cpu | self.identity.bounds.load(Relaxed)
    }

    /// Bytes that may be unread in the peer's ring.
    #[inline(always)]
    pub(super) fn tx_room(&self) -> u32 {
        self.tx_room_in(self.window())
    }

    #[inline(always)]
    pub(super) fn tx_room_in(&self, w: &Window) -> u32 {
        room(
            w.peer_size.load(Relaxed),
            self.identity.bounds.load(Relaxed),
            header(&w.my).cpu.load(Relaxed),
        )
    }

    /// Bytes that may be unread in our ring.
    #[inline(always)]
    pub fn rx_room(&self) -> u32 {
        self.rx_room_in(self.window())
    }

    #[inline(always)]
    pub(super) fn rx_room_in(&self, w: &Window) -> u32 {
        room(
            w.my_size.load(Relaxed),
            header(&w.my).cpu.load(Relaxed),
            self.identity.bounds.load(Relaxed),
        )
    }

    /// Asks the kernel what the application has set, after the exposure and whenever it sets one. True
    /// when there may be more room now.
    pub fn keep_bounds(&self, fd: i32) -> bool {
        // SYNC: options. Of an exposure and a call that sets an option at the same moment one comes
        // here behind both, whatever order the kernel's own words have.
        fence(SeqCst);
        let ph = self.phase.now_in_order();
        if !ph.is_exposed() {
            return false;
        }
        let (before, now) = (self.identity.bounds.load(Relaxed), set_by_application(fd));
        if before == now {
            return false;
        }
        let old = self.tx_room();
        self.identity.bounds.store(now, SeqCst);
        if ph.is_committed() {
            // A writer that is about to sleep and a reader that has not seen this yet would
            // disagree about who waits: the caller is still in its call when every reader has.
            let cpu = self.with_bounds(sys::cpu());
            each!(self.reach(), reach => reach.bound(cpu));
        }
        self.tx_room() > old
    }
}

/// The bounds that hold for a socket, as they stand in a `cpu` word.
fn set_by_application(fd: i32) -> u32 {
    let number = |level, name| {
        let mut value = 0u32;
        if sys::getsockopt(fd, level, name, &mut value) < 0 { 0 } else { value }
    };
    let set = number(libc::SOL_SOCKET, SO_BUF_LOCK);
    let buffer = |lock, name| if set & lock != 0 { number(libc::SOL_SOCKET, name) } else { 0 };
    let unsent = match number(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) {
        0 | u32::MAX => u32::MAX,
        bytes => bytes,
    };
    let send = match buffer(SNDBUF_LOCK, libc::SO_SNDBUF) {
        0 => unsent,
        bytes => bytes.min(unsent),
    };
    let send = if send == u32::MAX { 0 } else { encode(send) << SEND };
    let receive = match buffer(RCVBUF_LOCK, libc::SO_RCVBUF) {
        0 => 0,
        bytes => encode(bytes) << RECEIVE,
    };
    send | receive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lose_an_eighth_at_most_and_nothing_of_powers_of_two() {
        for bytes in (2u32 << 10..1 << 20).step_by(61).chain([1 << 30, i32::MAX as u32]) {
            let kept = decode(encode(bytes));
            assert!(kept <= bytes && kept >= bytes - bytes / 8, "{bytes}: {kept}");
        }
        for shift in 11..31 {
            assert_eq!(decode(encode(1 << shift)), 1 << shift);
        }
        assert_eq!((decode(encode(0)), decode(encode(1))), (2 << 10, 2 << 10));
        assert!(
            (2 << 10..1u32 << 31)
                .step_by(977)
                .all(|bytes| encode(bytes) < 256 && encode(bytes) != 0)
        );
        for code in 1..256 {
            assert!(decode(code) >= 1 << 10);
        }
    }

    #[test]
    fn what_nobody_has_set_bounds_nothing() {
        let (send, receive) = (encode(8192) << SEND, encode(4096) << RECEIVE);
        let size = 4 << 20;
        assert_eq!(room(size, 3, 7), size, "processors only");
        // The other direction's.
        assert_eq!(room(size, receive | 5, send | 2), size);
        assert_eq!(room(size, send | 5, 2), 8192 + USUAL_RECEIVE);
        assert_eq!(room(size, 5, receive | 2), 4096 + USUAL_SEND);
        assert_eq!(room(size, send, receive), 8192 + 4096);
        assert_eq!(room(16 << 10, send, 0), 16 << 10);
        assert_eq!(processor(send | receive | 0xfff), 0xfff);
    }
}
