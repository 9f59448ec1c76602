//! A peer's buffer that is mapped here: its words are stored where they belong, and seen at once.

use shm::doorbell::{arm, must_ring};
use shm::sync::{AtomicU32, Ordering::*, fence};

use super::announce::{Announced, has_row, wait_of};
use super::header::{CLAIMED, DmbHeader, REVERTED, REVOKED, RUNG_REVOKED, WAITS, Waits};

/// Who has asked for a doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleeper {
    /// Nobody sleeps, or the sleeper has been rung already.
    Nobody,
    /// A thread, or a wait, that a byte on the connection wakes.
    OnTcp,
    /// The wait of this number, which has more connections than this.
    InWait(u32),
}

/// The headers of both buffers of a connection.
#[derive(Clone, Copy)]
pub struct Mapped<'a> {
    /// Of our own, which the peer writes.
    pub my: &'a DmbHeader,
    /// Of the peer's, which we write.
    pub peer: &'a DmbHeader,
}

impl<'a> Mapped<'a> {
    /// Publishes all bytes up to the cursor `to`, of which those up to the word `from` were
    /// published before; false when the owner of the ring has taken it back.
    #[inline(always)]
    pub fn publish(self, from: u64, to: u64) -> bool {
        // SYNC: prod. Release of the bytes placed before; pairs with the acquire in `refresh_rx`.
        // SeqCst, and an exchange, because it is also the fence of the doorbell's Dekker pair and
        // must lose against REVOKED.
        self.peer.prod.compare_exchange(from, to, SeqCst, Relaxed).is_ok()
    }

    /// Who sleeps at the peer for data and is to be rung for by this caller, after a publication.
    /// `rung` is what the peer was last rung for, `page` our control page, and `bits` the peer's bits
    /// with its buffer's slot.
    #[inline(always)]
    pub fn sleeper<'b>(
        self,
        rung: &AtomicU32,
        page: Option<&Waits>,
        bits: impl FnOnce() -> Option<(&'b Announced, u32)>,
    ) -> Sleeper {
        // SYNC: cover. SeqCst after the SeqCst publication, as the load of the wait word below.
        let cover = self.my.cover.load(SeqCst);
        if has_row(cover) {
            announce(bits(), cover);
        }
        if must_ring(&self.my.rx_arm, rung) {
            Sleeper::OnTcp
        } else {
            covered_sleeper(wait_of(cover), page)
        }
    }

    /// Counts a doorbell that is about to be sent; false when the peer wants no more of them.
    pub fn count_bell(self) -> bool {
        let rung = &self.peer.rung;
        let mut n = rung.load(Relaxed);
        loop {
            if n & RUNG_REVOKED != 0 {
                return false;
            }
            let next = (n + 1) & !RUNG_REVOKED;
            // SYNC: rung. Counted before it is sent, so that a count read before a condition covers
            // every byte that announces it.
            match rung.compare_exchange(n, next, SeqCst, Relaxed) {
                Ok(_) => return true,
                Err(now) => n = now,
            }
        }
    }

    /// It could not be sent.
    pub fn uncount_bell(self) {
        self.peer.rung.fetch_sub(1, Relaxed);
    }

    /// Tells how far we have read.
    #[inline(always)]
    pub fn confirm(self, cons: u64) {
        // SYNC: cons. Release: our reads of the freed bytes are done; pairs with `refresh_tx`.
        self.peer.cons.store(cons, Release);
    }

    /// Orders what was told of our reading, and our `cpu` word if that has changed, in front of a
    /// look at whether the writer sleeps.
    #[inline(always)]
    pub fn confirm_now(self, cpu: Option<u32>) {
        if let Some(cpu) = cpu {
            self.peer.cpu.store(cpu, Relaxed);
        }
        // SYNC: doorbell. Either the writer sees the space, or we see its arm.
        fence(SeqCst);
    }

    /// Asks for a doorbell at the next data.
    pub fn arm_data(self) {
        arm(&self.peer.rx_arm);
    }

    /// Asks for a doorbell at the next space.
    pub fn arm_space(self) {
        arm(&self.peer.tx_arm);
    }

    /// Lets a wait stand for our arms, by its `cover` word (0: none).
    pub fn cover(self, cover: u32) {
        self.peer.cover.store(cover, Relaxed);
        // SYNC: cover. In front of the caller's look: what is published behind that finds the wait.
        fence(SeqCst);
    }

    /// Lets the wait numbered `wait` stand for them no more, if no other one does by now.
    pub fn uncover(self, wait: u32) {
        let cover = self.peer.cover.load(Relaxed);
        // Once: a peer that keeps changing the word would keep us here.
        if wait_of(cover) == wait {
            let _ = self.peer.cover.compare_exchange(cover, 0, SeqCst, Relaxed);
        }
    }

    /// Says that our sends leave TCP after `n` bytes.
    pub fn leave_tcp(self, n: u64) {
        // SYNC: switch. Release; pairs with the acquire in `switch_offset`. A doorbell is sent
        // after this store, so whoever receives one sees it.
        self.peer.switch.store(n << 1 | 1, SeqCst);
    }

    /// Says that nothing follows in the peer's ring. True if the peer has claimed what it has not
    /// read: that goes over TCP first.
    #[must_use]
    pub fn close_ring(self) -> bool {
        // SYNC: prod. Behind all data; pairs with `refresh_rx`, and with `claim`: of a return and a
        // claim the later one knows of the other.
        self.peer.prod.fetch_or(REVERTED, SeqCst) & CLAIMED != 0
    }

    /// Claims the bytes from position `from` on of our ring, which was taken back before. False when
    /// the peer has returned to TCP by itself: what it has sent there since would come in front of
    /// them.
    #[must_use]
    pub fn claim(self, from: u64) -> bool {
        let takeback = &self.peer.takeback;
        takeback.store(super::takeback::from(from), Relaxed);
        let claimed = |word| (word & REVERTED == 0).then_some(word | CLAIMED);
        // SYNC: prod. Behind the takeback, which whoever sees the claim acts on; pairs with
        // `close_ring` and `claimed`.
        let done = self.my.prod.fetch_update(SeqCst, SeqCst, claimed).is_ok();
        if !done {
            takeback.store(0, Relaxed);
        }
        done
    }

    /// The peer's takeback, if it has claimed what it has not read.
    pub fn claimed(self) -> Option<u64> {
        // SYNC: prod. Acquire of the takeback; pairs with `claim`.
        let is_claimed = self.peer.prod.load(Acquire) & CLAIMED != 0;
        is_claimed.then(|| self.my.takeback.load(Relaxed)).filter(|word| word & 1 != 0)
    }

    /// Takes our ring back: the peer's next publication fails. Its producer word before.
    pub fn revoke(self) -> u64 {
        self.my.prod.fetch_or(REVOKED, SeqCst)
    }

    /// Says where we are with our end, behind everything that was sent.
    pub fn end(self, cons: u64) {
        // SYNC: ends. Release, behind the producer word; pairs with `refresh_rx`.
        self.peer.cons.store(cons, SeqCst);
        fence(SeqCst);
    }

    /// Adds to what was said of our end.
    pub fn flag(self, flags: u64) {
        // SYNC: ends. Pairs with `refresh_rx`.
        self.peer.cons.fetch_or(flags, SeqCst);
    }
}

#[inline(never)]
fn announce(bits: Option<(&Announced, u32)>, cover: u32) {
    if let Some((bits, slot)) = bits {
        bits.set(cover, slot);
    }
}

/// The wait of this number, if it sleeps and has not been rung yet.
#[inline(always)]
fn covered_sleeper(wait: u32, page: Option<&Waits>) -> Sleeper {
    if wait == 0 || wait as usize >= WAITS {
        return Sleeper::Nobody;
    }
    let Some(page) = page else { return Sleeper::Nobody };
    let at = wait as usize;
    // SYNC: cover. SeqCst after the SeqCst publication; pairs with the fence in `Waits::sleep`.
    let armed = page.armed[at].load(SeqCst);
    let sleeps = armed & 1 == 1 && page.rung[at].load(Relaxed) != armed;
    if sleeps && page.rung[at].swap(armed, Relaxed) != armed {
        Sleeper::InWait(wait)
    } else {
        Sleeper::Nobody
    }
}

/// Fixes the number of doorbells that the peer puts on the stream: how many it is.
pub fn fix_bells(my: &DmbHeader) -> u32 {
    // SYNC: rung. Behind this no doorbell is counted, and an uncounted one is not sent.
    my.rung.fetch_or(RUNG_REVOKED, SeqCst) & !RUNG_REVOKED
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Both ends in plain memory.
    #[derive(Default)]
    struct Pair([DmbHeader; 2]);

    impl Pair {
        fn ends(&self) -> [Mapped<'_>; 2] {
            let [a, b] = &self.0;
            [Mapped { my: a, peer: b }, Mapped { my: b, peer: a }]
        }
    }

    fn page() -> Waits {
        let words = || [const { AtomicU32::new(0) }; WAITS];
        Waits { armed: words(), rung: words(), bell: words(), given: words() }
    }

    #[test]
    fn a_ring_that_was_taken_back_takes_no_publication() {
        let pair = Pair::default();
        let [writer, owner] = pair.ends();
        assert!(writer.publish(0, 7 << 16));
        assert_eq!(owner.revoke(), 7 << 16);
        assert!(!writer.publish(7 << 16, 9 << 16));
        assert!(!writer.close_ring());
        assert_eq!(owner.my.prod.load(Relaxed), 7 << 16 | REVOKED | REVERTED);
    }

    #[test]
    fn what_was_not_read_is_claimed_in_front_of_a_return_only() {
        for is_first in [true, false] {
            let pair = Pair::default();
            let [writer, owner] = pair.ends();
            assert!(writer.publish(0, 7 << 16));
            owner.revoke();
            let claims = |is| assert_eq!(owner.claim(3), is);
            let returns = |is| assert_eq!(writer.close_ring(), is);
            if is_first {
                claims(true);
                returns(true);
            } else {
                returns(false);
                claims(false);
            }
            assert_eq!(writer.claimed(), is_first.then_some(7));
        }
    }

    #[test]
    fn each_arm_costs_one_doorbell() {
        let pair = Pair::default();
        let ([writer, owner], rung) = (pair.ends(), AtomicU32::new(0));
        assert_eq!(writer.sleeper(&rung, None, || None), Sleeper::Nobody);
        owner.arm_data();
        assert_eq!(writer.sleeper(&rung, None, || None), Sleeper::OnTcp);
        assert_eq!(writer.sleeper(&rung, None, || None), Sleeper::Nobody);
    }

    #[test]
    fn a_wait_is_rung_once_by_whatever_it_covers() {
        let (pairs, page) = ([Pair::default(), Pair::default()], page());
        let rung = AtomicU32::new(0);
        for pair in &pairs {
            pair.ends()[1].cover(5);
        }
        let rings = |at: usize| {
            pairs[at].ends()[0].sleeper(&rung, Some(&page), || None) == Sleeper::InWait(5)
        };
        assert!(!rings(0), "it is awake");
        page.sleep(5);
        assert!(rings(1) && !rings(0) && !rings(1));
        page.wake(5);
        page.sleep(5);
        assert!(rings(0));
        // A number out of range is a peer's lie.
        page.sleep(5);
        pairs[0].ends()[1].cover(WAITS as u32);
        assert!(!rings(0));
    }

    #[test]
    fn who_stood_for_a_connection_leaves_it_to_who_does_by_now() {
        let pair = Pair::default();
        let owner = pair.ends()[1];
        owner.cover(5);
        owner.cover(6);
        owner.uncover(5);
        assert_eq!(owner.peer.cover.load(Relaxed), 6);
        owner.uncover(6);
        assert_eq!(owner.peer.cover.load(Relaxed), 0);
    }

    #[test]
    fn no_doorbell_is_counted_once_their_number_is_fixed() {
        let pair = Pair::default();
        let [writer, owner] = pair.ends();
        assert!(writer.count_bell() && writer.count_bell());
        writer.uncount_bell();
        assert_eq!((fix_bells(owner.my), writer.count_bell(), fix_bells(owner.my)), (1, false, 1));
    }

    #[test]
    fn what_is_said_of_the_end_adds_up() {
        let pair = Pair::default();
        let [one, other] = pair.ends();
        one.confirm(3 << 16);
        one.end(3 << 16 | super::super::header::DONE);
        one.flag(super::super::header::LEFT);
        assert_eq!(other.my.cons.load(Relaxed) >> 56, 0x90);
        one.leave_tcp(12);
        assert_eq!(other.my.switch.load(Relaxed), 25);
    }
}
