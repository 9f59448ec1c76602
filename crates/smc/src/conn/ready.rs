//! What poll and epoll may say about an upgraded connection, and how a waiter arms it.

use super::announce::{self, Announced, has_row};
use super::reach::{Any, Reach, each};
use super::sleepers::{READS, WRITES};
use super::*;
use crate::sys;
use core::sync::atomic::fence;
use shm::cursor::CURSOR_MASK;

/// Doorbells that may lie unread in front of a sleep. With the two that ring during it (data,
/// space) they fit the smallest congestion window that a sender without losses is ever given: 4
/// segments, bbr's while it probes the round-trip time.
const MAX_UNREAD: u32 = 3;
/// Doorbells behind payload that the application leaves unread, from which on no further ones are
/// asked for. They cannot be taken off, and would fill the socket's receive buffer until none came
/// through any more.
const MUFFLED: u32 = 6;

/// Spans of `sys::span` after which a connection is looked at for its end, however many there are.
const SELDOM: u64 = 10;
/// Looks in one span from which on only those are made that are due after `SELDOM` spans.
const OFTEN: u64 = 16;
static LOOKS: Looks = Looks(AtomicU64::new(0));

/// poll(2) bits, the same as epoll's.
pub const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32;
/// Writable.
pub const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;
/// The peer will send no more.
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// Both directions are shut.
pub const HUP: u32 = libc::EPOLLHUP as u32;
/// An error waits to be fetched.
pub const ERR: u32 = libc::EPOLLERR as u32;

impl Conn {
    /// Events that hold now. Costs no system call while both directions are on rings and the peer
    /// lives. That it does not, see `look_now_and_then`.
    pub fn ready(&self, fd: i32) -> u32 {
        let ph = self.phase();
        if ph.is_plain()
            && let Some(ev) = self.plainly_ready()
        {
            return ev;
        }
        let mut ev = 0;
        let mut ask = 0i16;
        let mut gone = ph.has(p::DEAD | p::BROKEN);
        let mut ends = 0;
        gone |= self.ended_behind_shutdown(fd, ph);
        if ph.is_exposed() {
            let my = self.my();
            ends = my.cons.load(Acquire) & ENDS;
            gone |= ends & (CLOSED | ABORT) != 0;
            if my.takeback.load(Relaxed) & 1 != 0 || ph.has(p::RESEND) {
                self.flush_takeback(fd);
            }
            gone |= self.image().is_some_and(|image| image.look(fd));
        }
        if ph.receives_on_ring() {
            let word = self.my().prod.load(Acquire);
            if word & REVERTED != 0 {
                // Behind what is left in the ring TCP has the end of the stream.
                ask |= libc::POLLRDHUP;
            }
            if self.rx.tcp_left() > 0 {
                ask |= IN as i16;
            } else if word & CURSOR_MASK != self.rx.word.load(Relaxed) {
                let mark = self.mark();
                if mark <= 1 || ends != 0 || gone || ph.has(p::SHUT_RD) || self.unread(fd) >= mark {
                    ev |= IN;
                }
            } else if word & REVERTED != 0 || self.has_revoked(ph) {
                self.try_back_to_tcp(fd);
                ask |= IN as i16 | libc::POLLRDHUP;
            } else if ends != 0 || gone || ph.has(p::SHUT_RD) {
                ev |= IN;
            }
            if ends != 0 || gone || ph.has(p::SHUT_RD) {
                ev |= RDHUP;
            }
        } else {
            ask |= IN as i16 | libc::POLLRDHUP | libc::POLLPRI;
        }
        if ph.sends_on_ring() && !ph.has(p::SHUT_WR) && !gone {
            if self.has_space() || self.space_is_silent() && self.has_vanished(fd) {
                ev |= OUT;
            }
        } else if ph.has(p::SHUT_WR) || gone {
            ev |= OUT;
        } else {
            ask |= OUT as i16;
        }
        // What TCP answers by a reset: a close that threw data away, ours or, when a process was
        // killed, the kernel's.
        let killed = ph.has(p::DEAD)
            && ph.sends_on_ring()
            && ends & (CLOSED | ABORT) == 0
            && self.unread_there();
        let reset = ends & ABORT != 0 || ph.has(p::BROKEN) || killed;
        // An RST that only an unread doorbell caused is no error to the application.
        let quiet = ends & (DONE | CLOSED) != 0
            && ends & ABORT == 0
            && !killed
            && !ph.has(p::SENT_TO_GONE)
            && (ph.sends_on_ring() || ph.sends_go_back());
        if ask != 0 || reset || (gone && (ph.has(p::SENT_TO_GONE) || !ph.sends_on_ring())) {
            let mut k = sys::poll_now(fd, ask) as u16 as u32;
            if k & IN != 0 && k & RDHUP == 0 && self.short_of_mark(fd) {
                k &= !IN;
            }
            if ph.sends_on_ring()
                && !ph.receives_on_ring()
                && ends == 0
                && k & (RDHUP | HUP | ERR) != 0
                && !self.has_space()
            {
                self.probe(fd, k);
            }
            ev |= if quiet { k & !(ERR | HUP) } else { k };
            if reset {
                ev |= IN | OUT | RDHUP | HUP;
                // Once the kernel has the reset it knows whether the error was fetched.
                if !ph.has(p::ENDED) && k & HUP == 0 {
                    ev |= ERR;
                }
            }
        }
        if ph.has(p::SHUT_WR) && ev & RDHUP != 0 {
            ev |= HUP;
        }
        ev
    }

    /// What `ready` says of a connection in the middle of its life: with both directions on rings
    /// that are mapped here, and no word of an end. None: there is more to look at.
    #[inline(always)]
    fn plainly_ready(&self) -> Option<u32> {
        let Any::Mapped(reach) = self.reach() else { return None };
        let ends = reach.my.cons.load(Acquire) & ENDS;
        let prod = reach.my.prod.load(Acquire);
        let goes_on = ends == 0 && prod & !CURSOR_MASK == 0;
        let is_whole = reach.my.takeback.load(Relaxed) & 1 == 0 && self.rx.tcp_left() == 0;
        if !goes_on || !is_whole || self.mark() > 1 {
            return None;
        }
        let reads = if prod != self.rx.word.load(Relaxed) { IN } else { 0 };
        Some(reads | if self.has_space() { OUT } else { 0 })
    }

    /// Changes whenever something new can be read: the edge of edge-triggered epoll.
    pub fn read_stamp(&self) -> u64 {
        if !self.receives_on_ring() {
            return u64::MAX;
        }
        let my = self.my();
        let ends = my.cons.load(Acquire) & ENDS;
        let ph = self.phase();
        let dead = ph.has(p::DEAD | p::BROKEN);
        // Our own shutdown behind the peer's end is a hangup.
        let hung_up = (dead || ends != 0) && ph.has(p::SHUT_WR);
        (my.prod.load(Acquire) & CURSOR_MASK)
            | ends
            | u64::from(dead) << 56
            | u64::from(hung_up) << 57
    }

    /// Whether a receive would not find the ring empty: the cheap look of a spinning wait.
    #[inline]
    pub fn has_news(&self) -> bool {
        if !self.receives_on_ring() {
            return self.switch_due();
        }
        let my = self.my();
        my.prod.load(Acquire) & (CURSOR_MASK | REVERTED) != self.rx.word.load(Relaxed)
            || my.cons.load(Relaxed) & ENDS != 0
            || self.phase().has(p::DEAD | p::BROKEN)
    }

    /// Whether the ring is read to its end and nothing follows but the end of the connection.
    pub fn only_its_end_is_left(&self) -> bool {
        self.has_news()
            && !self.reads_tcp()
            && self.my().prod.load(Acquire) & (CURSOR_MASK | REVERTED) == self.rx.word.load(Relaxed)
    }

    /// Whether receives still come from TCP, all of them or up to the switch.
    pub fn reads_tcp(&self) -> bool {
        !self.receives_on_ring() || self.rx.tcp_left() > 0
    }

    /// Changes whenever a sender found the ring full.
    pub fn space_epoch(&self) -> u32 {
        if !self.is_committed() { 0 } else { self.peer().tx_arm.load(Relaxed) }
    }

    /// Bytes that can be read without waiting (FIONREAD).
    pub fn unread(&self, fd: i32) -> usize {
        let left = self.rx.tcp_left();
        if left > 0 && (self.queued(fd) as u64) < left {
            return self.queued(fd);
        }
        // Behind the payload in the kernel lie doorbells.
        let there = left as usize + self.unread_in_ring();
        let Ok(held) = self.lock_rx() else { return there };
        let rx = &*held;
        // What a peer sends that has gone back to TCP lies behind its last doorbell.
        let is_back = left == 0 && self.my().prod.load(Acquire) & (REVERTED | REVOKED) != 0;
        let behind = || self.queued(fd).saturating_sub(self.doorbells_due_by(rx) as usize);
        there + if is_back { behind() } else { 0 }
    }

    /// Those of them that are in our ring.
    pub fn unread_in_ring(&self) -> usize {
        let Ok(mut held) = self.lock_rx() else { return 0 };
        self.refresh_rx(&mut held).unwrap_or(0) as usize
    }

    /// Bytes that the kernel has for us.
    pub fn queued(&self, fd: i32) -> usize {
        sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0).max(0) as usize
    }

    /// Bytes sent that the peer has not read.
    pub fn unsent(&self) -> usize {
        let Ok(mut held) = self.lock_tx() else { return 0 };
        let tx = &mut *held;
        let used = self.refresh_tx(tx).unwrap_or(0);
        (used - self.image().map_or(0, |image| image.read_untold(tx, used))) as usize
    }

    /// A FIN without flags: half-closed over TCP and slow, or dead. A dead peer's kernel answers a
    /// doorbell with a reset.
    #[cold]
    fn probe(&self, fd: i32, kernel: u32) {
        if kernel & (HUP | ERR) != 0 && !self.phase().has(p::SHUT_WR) {
            self.set(p::DEAD);
        } else if self.ending.probes.fetch_add(1, Relaxed).is_multiple_of(64) {
            self.ring(fd, &self.tx.counts);
        }
    }

    /// Whether something we sent lies unread at the peer.
    pub(super) fn unread_there(&self) -> bool {
        self.my().cons.load(Acquire) & CURSOR_MASK != self.tx.word.load(Relaxed)
    }

    /// At least a third of what may be under way is free: TCP's own rule for "writable".
    pub fn has_space(&self) -> bool {
        let w = self.window();
        let prod = self.tx.word.load(Relaxed);
        let cons = header(&w.my).cons.load(Acquire) & CURSOR_MASK;
        let size = w.peer_size.load(Relaxed);
        let (pc, cc) = ((prod >> 16) as u32, (cons >> 16) as u32);
        // Unchecked, so only ever a hint: a lying peer makes us try a send that finds the ring
        // full.
        let used = if prod as u16 == cons as u16 {
            pc.wrapping_sub(cc)
        } else {
            size.wrapping_sub(cc).wrapping_add(pc)
        };
        (used <= self.tx_room_in(w) / 3 * 2 || header(&w.peer).prod.load(Relaxed) & REVOKED != 0)
            && (w.far.load(Relaxed) == 0 || !self.out_of_reach())
    }

    /// Asks for a doorbell at the next data. The caller looks again before it sleeps. False when the
    /// peer cannot be told: its process has ended, and the child that goes on with the connection has
    /// not told its name yet. It would ring for nobody, so a wait must ask again from time to time.
    #[must_use]
    pub fn arm_data(&self) -> bool {
        !self.is_committed() || each!(self.reach(), reach => Reach::arm_data(reach))
    }

    /// Whether the peer has left TCP and cannot be asked for doorbells yet. Whoever sleeps then
    /// would not be woken.
    pub fn is_unarmed(&self) -> bool {
        let ph = self.phase();
        ph.receives_on_ring() && !ph.is_committed()
    }

    /// Whether payload that was sent before the peer's switch may lie unread in the kernel, in
    /// front of any doorbell.
    pub fn has_payload_left(&self) -> bool {
        !self.receives_on_ring() || self.rx.tcp_left() > 0
    }

    /// Whether doorbells have gathered behind such payload: a wait must look by itself from time to
    /// time.
    pub fn is_muffled(&self) -> bool {
        self.has_payload_left() && self.doorbells_due() >= MUFFLED
    }

    /// Asks for a doorbell when a third of the peer's ring is free. The caller looks again before
    /// it sleeps.
    pub fn arm_space(&self) {
        if self.is_committed() && !self.is_muffled() {
            each!(self.reach(), reach => reach.arm_space());
            self.stir();
        }
    }

    /// Whether a wait for space must look by itself from time to time, because the peer cannot
    /// ring: its own sends have not left TCP, have gone back to it, or are shut. Or because its
    /// doorbells do not get through.
    pub fn space_is_silent(&self) -> bool {
        let my = self.my();
        self.out_of_reach()
            // While payload from before the peer's switch is unread the socket is readable anyway, so
            // a doorbell behind it wakes nobody; and a peer whose socket is full of such payload
            // cannot even send one.
            || self.has_payload_left()
            || my.cons.load(Acquire) & DONE != 0
            || my.prod.load(Acquire) & REVERTED != 0
    }

    /// Takes doorbells off the TCP stream that would make a sleep return at once, unless another
    /// thread's wake-up hangs on them. True when they had to be left, or there is something for the
    /// caller by now, so that it must not sleep. `seen` was counted before the
    /// caller armed what it waits for, which is data (`reader`), space (`writer`) or both, and
    /// looked at it. Take the count before arming: a byte counted afterwards may answer this very
    /// arm for data already read; removing it would leave us asleep with no arm outstanding.
    pub fn clear_stale(&self, fd: i32, seen: u32, reader: bool, writer: bool) -> bool {
        if self.doorbells_due() == 0 {
            return false;
        }
        let readers = !reader && self.sleepers.others(READS);
        let writers = !writer && self.sleepers.others(WRITES);
        if readers || writers {
            // The others' arms may be spent on the very bytes that are about to be taken: the peer
            // rang early, or a third thread was faster. Renewed they bring bytes that `seen` does
            // not count.
            // Where they cannot be renewed now, the byte that is left wakes the others.
            if readers && !self.arm_data() {
                return true;
            }
            if writers {
                self.arm_space();
            }
            let ready = self.ready(fd);
            if readers && ready & IN != 0 || writers && ready & OUT != 0 {
                return true;
            }
        }
        let before = self.rx.drained();
        self.drain_doorbells(fd, seen);
        if self.rx.drained() == before {
            return false;
        }
        // One that was counted may be on its way still, or never come: its thread was put off, or
        // left by a jump. Then one that answers the caller's own arm was taken in its stead.
        let ready = self.ready(fd);
        reader && ready & IN != 0 || writer && ready & OUT != 0
    }

    /// Takes doorbells off the TCP stream once a few have gathered, on behalf of a caller that
    /// looks at data and space afterwards. Doorbells that nobody reads are acknowledged after 40 ms
    /// only: they would fill the peer's congestion window, and its next doorbell would wait there
    /// while both ends sleep.
    #[inline]
    pub fn keep_bells_flowing(&self, fd: i32) {
        if self.doorbells_due() >= MAX_UNREAD {
            self.take_bells(fd);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_bells(&self, fd: i32) {
        let seen = self.doorbells_seen();
        self.clear_stale(fd, seen, false, false);
    }

    /// Lets the wait numbered `wait` stand for this connection's own arming. With a `row` (of
    /// `table::take_row`; 0: none) the peer tells there of what happens, from now on: whether it does.
    pub fn cover(&self, wait: u32, row: u32) -> bool {
        if !self.is_committed() {
            return false;
        }
        let is_told = row != 0 && self.window().my_bits().is_some();
        let cover = announce::cover_of(wait, if is_told { row } else { 0 });
        each!(self.reach(), reach => reach.cover(cover));
        is_told
    }

    /// Takes that back, unless another wait has come to stand for it: its sleeper would be asleep
    /// unarmed.
    pub fn uncover(&self, wait: u32) {
        if self.is_committed()
            && let Any::Mapped(reach) = self.reach()
        {
            reach.uncover(wait);
        }
    }

    /// Whether the wait numbered `wait` stands for it.
    pub fn is_covered_by(&self, wait: u32) -> bool {
        // Our word in the peer's memory: changed there, it is the peer's own doorbells that go
        // wrong.
        self.image().is_none() && announce::wait_of(self.peer().cover.load(Relaxed)) == wait
    }

    /// The bits in which it is announced, and which of them is its own.
    pub fn announced(&self) -> Option<(&'static Announced, u32)> {
        self.window().my_bits()
    }

    /// Who looks at the connections of our arena, by slot, and the bells of its peer's waits.
    pub fn bells(&self) -> Option<&'static Bells> {
        // SAFETY: what `expose` was given, type-stable.
        unsafe { self.window().bells.load(Relaxed).as_ref() }
    }

    /// Tells whoever passes over it as long as nothing is announced that something of it has changed
    /// by what this process does.
    #[inline(never)]
    pub(super) fn stir(&self) {
        // In this order: a process without upgrades has no windows, and is to make none.
        if self.phase().is_committed()
            && let Some((bits, slot)) = self.window().my_bits()
        {
            // SYNC: bits. Behind whatever has changed, plain stores too, and in front of the look whether
            // there is a row; pairs with `Mapped::cover`.
            fence(SeqCst);
            // Our own word, in the peer's memory: changed there, bits of ours are set that cost a look.
            bits.set(self.peer().cover.load(Relaxed), slot);
        }
    }

    /// The same where a send has left little room, without a fence for connections that have no row. A
    /// set that gives it one meanwhile may take it for calm: whoever is refused room stirs in order.
    #[inline]
    pub(super) fn stir_if_announced(&self) {
        if has_row(self.peer().cover.load(Relaxed)) {
            self.stir();
        }
    }

    /// Tells the peer, if it passes over it, of a change that was published by more than the
    /// producer word.
    pub(super) fn announce(&self) {
        if let Some((bits, slot)) = self.window().peer_bits() {
            bits.set(self.my().cover.load(SeqCst), slot);
        }
    }

    /// Whether the peer last ran on another processor, so that spinning for it can pay.
    #[inline]
    pub fn peer_elsewhere(&self) -> bool {
        if !self.is_exposed() {
            return false;
        }
        let cpu = bounds::processor(self.my().cpu.load(Relaxed));
        // The processors of another guest are numbered for themselves.
        let in_guest = || {
            self.identity.path.load(Relaxed) == path::IVSHMEM
                && self.identity.peer_pid.load(Relaxed) == 0
        };
        cpu != 0 && (cpu != sys::cpu() || in_guest())
    }

    /// Whether a peer that cannot ring, because its sends have ended or are TCP's, is gone with our
    /// bytes unread. A doorbell now and then makes its kernel answer for it.
    #[cold]
    fn has_vanished(&self, fd: i32) -> bool {
        if self.ending.probes.fetch_add(1, Relaxed) % 1024 == 16 {
            self.ring(fd, &self.tx.counts);
        }
        let gone = crate::inet::TcpInfo::of(fd).is_some_and(|i| i.is_closed());
        if gone {
            self.set(p::DEAD);
        }
        gone
    }

    /// Asks the kernel for the end of a peer that was killed, of which nothing in user space tells:
    /// about a hundred times a second at most, and in the first call after a pause. Where more than
    /// `OFTEN` connections are in use, the rest are asked for ten times a second, since each of those
    /// may be used so seldom that all its calls would ask.
    #[inline]
    pub fn look_now_and_then(&self, fd: i32, ticks: u64) {
        if self.is_to_look(ticks) {
            self.look_for_end(fd, ticks);
        }
    }

    /// Whether it is time for that.
    #[inline(always)]
    pub(super) fn is_to_look(&self, ticks: u64) -> bool {
        LOOKS.is_due(ticks.wrapping_sub(self.ending.looked.load(Relaxed)), ticks)
    }

    /// The same about ten times a second: of a connection that the kernel watches beside many
    /// others, and of whose end it tells by itself. What it tells may be taken by another thread,
    /// or another process.
    #[inline]
    pub fn look_at_times(&self, fd: i32, ticks: u64) {
        if ticks.wrapping_sub(self.ending.looked.load(Relaxed)) > SELDOM * sys::span() {
            self.look_for_end(fd, ticks);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn look_for_end(&self, fd: i32, ticks: u64) {
        self.ending.looked.store(ticks, Relaxed);
        LOOKS.note(ticks);
        let ph = self.phase();
        // Behind the end of its stream the peer may still be sent to.
        let over = if ph.sends_on_ring() && !ph.has(p::SHUT_WR) { 0 } else { p::ENDED };
        if self.switched() && !ph.has(p::DEAD | p::BROKEN | p::CLOSED | over) {
            self.prod_half_closed(fd);
            self.look_at_patience(fd);
            self.ended_behind_shutdown(fd, ph);
            self.kernel_end(sys::poll_now(fd, libc::POLLRDHUP) as u16 as u32);
        }
    }

    /// Whether the peer died after our shutdown(SHUT_RD), which looks the same as its end to poll.
    fn ended_behind_shutdown(&self, fd: i32, ph: Phase) -> bool {
        let ended = ph.has(p::SHUT_RD)
            && ph.receives_on_ring()
            && !ph.has(p::DEAD | p::BROKEN)
            && self.my().cons.load(Acquire) & ENDS == 0
            && crate::inet::TcpInfo::of(fd).is_some_and(|i| i.peer_ended());
        if ended {
            self.set(p::DEAD);
        }
        ended
    }

    /// Of a peer that has ended its half the kernel says nothing more when it is killed, before
    /// something is sent to it: our bytes would go into its ring for nobody until that is full. A
    /// doorbell gets the answer that they would get in TCP. A peer that lives and does not read
    /// gets fewer and fewer of them.
    fn prod_half_closed(&self, fd: i32) {
        let ph = self.phase();
        if !(ph.is_exposed() && ph.sends_on_ring() && self.unread_there()) {
            return;
        }
        let word = self.my().cons.load(Acquire);
        let half_closed = match word & ENDS {
            DONE => true,
            // Its end is the kernel's to tell while its sends are.
            0 => {
                !ph.receives_on_ring()
                    && crate::inet::TcpInfo::of(fd).is_some_and(|i| i.peer_ended())
            }
            _ => false,
        };
        if !half_closed {
            return;
        }
        let (there, last) = (word & CURSOR_MASK, self.ending.stalled.load(Relaxed));
        let looks = if last & CURSOR_MASK == there {
            (last >> 48).saturating_add(1).min(0xffff)
        } else {
            1
        };
        self.ending.stalled.store(looks << 48 | there, Relaxed);
        if looks.is_power_of_two() {
            self.ring(fd, &self.tx.counts);
        }
    }

    /// Notes what the kernel said about the connection's end; true when the peer died without a
    /// word.
    pub fn kernel_end(&self, events: u32) -> bool {
        let ph = self.phase();
        let mut says = RDHUP | HUP | ERR;
        if ph.has(p::SHUT_RD) {
            // Our own shutdown shows in the same bits; `ready` asks otherwise.
            says = if ph.has(p::SHUT_WR) { ERR } else { HUP | ERR };
        }
        if !ph.receives_on_ring() {
            // A FIN is the kernel's to report. A reset ends the ring that we send to as well.
            says = if ph.has(p::SHUT_WR) { ERR } else { HUP | ERR };
        }
        // After our own reset of the connection the kernel has nothing to say of the peer.
        if events & says == 0 || !ph.switched() || ph.has(p::BROKEN) || self.has_no_device() {
            return false;
        }
        let ends = self.my().cons.load(Acquire) & ENDS;
        // Who has only ended its half is there still; a reset is its kernel's word for it.
        let reset = ends == DONE && !ph.has(p::SHUT_WR) && events & (HUP | ERR) != 0;
        if (ends == 0 || reset) && self.my().prod.load(Acquire) & REVERTED == 0 {
            self.set(p::DEAD);
            return true;
        }
        false
    }
}

/// How many looks for an end the process has made in this span: above the lowest byte which span that is.
struct Looks(AtomicU64);

impl Looks {
    const MOST: u64 = 0xff;

    /// Whether a connection that was looked at `since` ticks ago is to be looked at again.
    #[inline(always)]
    fn is_due(&self, since: u64, ticks: u64) -> bool {
        since > sys::span() && (since > SELDOM * sys::span() || self.has_one_left(ticks))
    }

    /// Of those that one span has. Threads that ask at once may all be told so.
    fn has_one_left(&self, ticks: u64) -> bool {
        let known = self.0.load(Relaxed);
        known >> 8 != Self::span(ticks) || known & Self::MOST < OFTEN
    }

    /// One has been made.
    fn note(&self, ticks: u64) {
        let (known, span) = (self.0.load(Relaxed), Self::span(ticks));
        let count = if known >> 8 == span { (known & Self::MOST).min(Self::MOST - 1) } else { 0 };
        self.0.store(span << 8 | (count + 1), Relaxed);
    }

    fn span(ticks: u64) -> u64 {
        (ticks / sys::span()) & (u64::MAX >> 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each of so many connections the looks in a hundred spans, where each has a call every so many
    /// hundredths of a span, all in the same moment if `together`.
    fn looks(connections: u64, every: u64, together: bool) -> Vec<u64> {
        let (process, step) = (Looks(AtomicU64::new(0)), sys::span() / 100);
        let mut ends: Vec<_> = (0..connections).map(|i| (i, 0, 0)).collect();
        for moment in 1000..=1000 + 100 * 100 {
            let now = moment * step;
            for (i, looked, count) in &mut ends {
                let shift = if together { 0 } else { *i };
                if (moment + shift).is_multiple_of(every) && process.is_due(now - *looked, now) {
                    process.note(now);
                    (*looked, *count) = (now, *count + 1);
                }
            }
        }
        ends.into_iter().map(|end| end.2).collect()
    }

    #[test]
    fn a_few_connections_are_looked_at_in_each_span_and_many_in_ten() {
        // A call in each tenth of a span, of which the first behind a span looks.
        for together in [false, true] {
            for counts in [looks(1, 10, together), looks(2, 10, together), looks(16, 10, together)]
            {
                assert!(counts.iter().all(|n| (85..=101).contains(n)), "{counts:?}");
            }
        }
        for together in [false, true] {
            // Their calls are more than a span apart, so each of 40,000 would have been a look.
            let counts = looks(500, 120, together);
            assert!(counts.iter().all(|n| *n >= 8), "{counts:?}");
            let all = counts.iter().sum::<u64>();
            assert!(all <= 500 * 11 + 101 * OFTEN, "{all}");
        }
    }
}
