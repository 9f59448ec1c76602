//! Leaving TCP, each direction by itself at a stream offset that the kernel tells.

use super::inflight::*;
use super::mapped::fix_bells;
use super::overtaken::Overtakes;
use super::reach::{Reach, each};
use super::receiver::UNKNOWN;
use super::*;
use crate::inet::{Received, TcpInfo, received, received_while_alone};
use crate::sys::SignalsHeld;

impl Conn {
    /// Moves our sends to the ring if that is possible now. Not once the peer has ended its stream:
    /// it may have closed, and what is sent to it must meet TCP's answer.
    pub fn try_switch_tx(&self, fd: i32) -> bool {
        self.switch_tx(fd, TcpInfo::established)
    }

    /// `try_switch_tx` in a state of the connection that `suits`.
    pub(super) fn switch_tx(&self, fd: i32, suits: fn(&TcpInfo) -> bool) -> bool {
        if !self.may_switch_sends() {
            return false;
        }
        if self.is_recalled() {
            self.flush_takeback(fd);
        }
        // A handler that sends in the middle of the switch would wait for the switch, and so for the
        // thread that it has interrupted; one that jumps would leave the switch to nobody.
        let _quiet = SignalsHeld::new();
        let size = || self.window().peer_size.load(Relaxed);
        let Some(_held) = self.tx.state.try_lock_recovering(size) else { return false };
        self.switch_locked(fd, suits)
    }

    /// The tx lock is held.
    pub(super) fn switch_locked(&self, fd: i32, suits: fn(&TcpInfo) -> bool) -> bool {
        if !self.may_switch_sends() {
            return false;
        }
        let mut ok = false;
        if begin_send_switch(&self.phase, &self.tx.kernel) {
            self.prompt(fd);
            match TcpInfo::of(fd) {
                Some(info) if !suits(&info) => {}
                // The peer would wait for payload that was never sent, and take doorbells for it. In front
                // of the first byte nothing can be counted wrong, and nobody pays for the look.
                Some(info) if info.sent() > 0 && crate::inet::is_miscounted(fd) => {
                    self.keep_sends(fd);
                }
                Some(info) => {
                    ok = each!(self.reach(), reach => reach.switch(info.sent()));
                    if ok {
                        self.phase.turn_sends(|_| Sends::Ring);
                    }
                }
                // A sandbox was entered since the upgrade, and every further try would cost as much
                // as this one.
                None => self.keep_sends(fd),
            }
        }
        end_send_switch(&self.phase);
        ok
    }

    /// Our sends stay on TCP, for good.
    #[cold]
    fn keep_sends(&self, fd: i32) {
        self.identity.reason.store(crate::reason::SYSTEM.code(), Relaxed);
        self.phase.turn_sends(Sends::gone_back);
        each!(self.reach(), reach => reach.refuse(self));
        self.restore_delays(fd);
    }

    /// Announces a kernel send; false when the ring must be used instead.
    #[inline]
    pub fn enter_kernel_send(&self) -> bool {
        enter_send(&self.phase, &self.tx.kernel)
    }

    /// Whether it is TCP with no upgrade begun: the kernel's answers are the whole truth.
    #[inline(always)]
    pub fn untouched(&self) -> bool {
        self.phase.now_in_order().is_untouched()
    }

    /// `enter_kernel_send` for an untouched connection; false when it is not one.
    #[inline(always)]
    pub fn enter_untouched_send(&self) -> bool {
        // A look before the count: the ring's path must not pay for it.
        if !self.untouched() {
            return false;
        }
        // SYNC: inflight. Once counted no switch can begin, so what is seen now holds until the
        // kernel has the bytes.
        self.tx.kernel.enter();
        if self.untouched() {
            return true;
        }
        self.tx.kernel.leave();
        false
    }

    /// `enter_kernel_recv` for an untouched connection without a low-water mark; false when it is
    /// not one.
    #[inline(always)]
    pub fn enter_untouched_recv(&self) -> bool {
        if !self.untouched() {
            return false;
        }
        // SYNC: inflight. As for sends.
        self.rx.kernel.enter();
        if self.untouched() && self.identity.user_rcvlowat.load(Relaxed) <= 1 {
            return true;
        }
        self.rx.kernel.leave();
        false
    }

    /// Ends what `enter_untouched_recv` began, if the connection is untouched still: the peer rings
    /// only after it has switched, for which our buffer must be exposed, so no doorbell is among
    /// the bytes.
    #[inline(always)]
    pub fn leave_untouched_recv(&self) {
        self.rx.kernel.leave();
    }

    /// Another thread inside a kernel receive or send, the first of several.
    pub fn inside_kernel(&self) -> impl Iterator<Item = u32> {
        [&self.rx.kernel, &self.tx.kernel].into_iter().filter_map(|calls| {
            let thread = calls.first();
            (thread != 0 && thread != shm::thread_id() && shm::thread::is_alive_here(thread))
                .then_some(thread)
        })
    }

    /// Ends what `enter_kernel_send` began.
    #[inline]
    pub fn leave_kernel_send(&self) {
        self.tx.kernel.leave();
    }

    /// The offset at which the peer left TCP, if it has.
    #[inline]
    fn switch_offset(&self) -> Option<u64> {
        // SYNC: switch.
        let word = self.my().switch.load(Acquire);
        (word & 1 == 1).then_some(word >> 1)
    }

    /// Stream bytes that were read from the socket, once the peer has left TCP.
    fn stream_read(&self, fd: i32) -> Option<u64> {
        let got = received(fd)?;
        let most = self.switch_offset()? + u64::from(self.doorbells_seen() & !RUNG_REVOKED);
        // Nothing but the payload up to the switch and counted doorbells can have come, so one more
        // is the FIN. A peer that went back to TCP may have sent more.
        let fin = got.fin.unwrap_or_else(|| {
            got.arrived == most + 1 && self.my().prod.load(Acquire) & REVERTED == 0
        });
        Some((got.arrived - u64::from(fin)).saturating_sub(got.queued))
    }

    /// Our buffer has just been exposed: from here on what is read from the socket is counted here
    /// too. The kernel knows better (`stream_read`), but may have been forbidden to say when the
    /// peer's switch is found. What it says now; None when it is forbidden already.
    pub(crate) fn begin_count(&self, fd: i32) -> Option<TcpInfo> {
        let Ok(mut held) = self.lock_rx() else { return TcpInfo::of(fd) };
        let mut info = None;
        let ask = || {
            let (got, said) = received_while_alone(fd)?;
            info = Some(said);
            Some(got)
        };
        self.recount(&mut held, 0, ask);
        info.or_else(|| TcpInfo::of(fd))
    }

    /// Notes what has been read, if no receive is under way but the caller's (`own`: 1), which has
    /// its bytes already.
    fn recount(&self, rx: &mut Rx, own: u32, received: impl FnOnce() -> Option<Received>) {
        // SYNC: inflight. Who counts itself after these looks sees `Ready`, and adds its bytes
        // under the lock held here.
        let alone = || self.rx.kernel.count() == own;
        if !alone() {
            return;
        }
        let Some(now) = received() else { return };
        if alone() {
            rx.tcp_read =
                (now.arrived - u64::from(now.fin == Some(true))).saturating_sub(now.queued);
        }
    }

    /// `got` bytes came from the socket after the exposure, before the peer left TCP.
    #[cold]
    fn count_read(&self, fd: i32, got: usize) {
        let Ok(mut held) = self.lock_rx() else { return };
        let rx = &mut *held;
        if rx.tcp_read == UNKNOWN {
            self.recount(rx, 1, || received(fd));
        } else {
            rx.tcp_read += got as u64;
        }
    }

    /// Where in the stream the socket is read to, `got` bytes of it by the caller just now, by the
    /// kernel's word or our own count.
    fn position(&self, fd: i32, rx: &Rx, got: u64) -> Option<u64> {
        let counted = || (rx.tcp_read != UNKNOWN).then(|| rx.tcp_read + got);
        self.stream_read(fd).or_else(counted)
    }

    /// Nobody can tell payload from doorbells: a reset is better than a guess.
    #[cold]
    fn break_unreadable(&self, fd: i32) {
        self.break_for(fd, crate::reason::SYSTEM, false);
        self.phase
            .turn_receives(|at| if at == Receives::Back { Receives::Ring } else { at.followed() });
    }

    /// Whether the peer has left TCP and our receives have not followed.
    #[inline]
    pub fn switch_due(&self) -> bool {
        self.phase().awaits_switch() && self.switch_offset().is_some()
    }

    /// Runs `f`, which may expose our buffer, unless several threads are inside kernel receives;
    /// None if they are. Where in the stream the bytes of each lie nobody could tell: one would
    /// give out the doorbells behind the peer's switch as payload, or cut off payload of another.
    pub(crate) fn while_few_receive<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        self.phase.turn_receives(|at| if at == Receives::Tcp { Receives::Exposing } else { at });
        // SYNC: inflight. Who counts itself after this look sees `Exposing`, or `Ready`, and enters
        // as the only one.
        let done = (!self.rx.kernel.may_be_several()).then(f);
        self.phase.turn_receives(|at| if at == Receives::Exposing { Receives::Tcp } else { at });
        done
    }

    /// Announces a kernel receive; false when receives are on the ring, or about to be, or (from a
    /// little before the exposure on) when another thread is already inside one: then the caller
    /// waits for readiness and tries again.
    #[inline]
    pub fn enter_kernel_recv(&self) -> bool {
        enter_receive(&self.phase, &self.rx.kernel)
    }

    /// Whether the receive that keeps others out of the kernel is one that will never end. For a
    /// receive that may wait: one in a signal handler that interrupted another one of the same
    /// thread must not.
    pub fn forget_abandoned_recv(&self) -> bool {
        self.rx.kernel.forget_lost(true)
    }

    /// Ends what `enter_kernel_recv` began. `got` bytes came (peeked or not); the number that is
    /// payload.
    pub fn leave_kernel_recv(&self, fd: i32, got: usize, peek: bool) -> usize {
        self.leave_kernel_recv_into(fd, got, peek, None)
    }

    /// As `leave_kernel_recv`, for a receive whose bytes lie in `into`: doorbells among them are
    /// cut out, and what the ring has in front of the last of them is put there.
    pub fn leave_kernel_recv_into(
        &self,
        fd: i32,
        got: usize,
        peek: bool,
        into: Option<Pieces>,
    ) -> usize {
        if !self.switch_due() {
            if got > 0 && !peek && self.phase().awaits_switch() {
                self.count_read(fd, got);
            }
            self.rx.kernel.leave();
            // The peer may have switched between the look and the count: its doorbells can only be
            // in what we got if its store was visible before the receive returned, and then
            // `switch_due` saw it.
            return got;
        }
        // The switch of receives, within a receive: a handler in the middle of it that receives, too,
        // would wait for the thread that it has interrupted.
        let _quiet = SignalsHeld::new();
        let payload = match (self.lock_rx(), self.switch_offset()) {
            (Ok(mut held), Some(n)) => {
                let rx = &mut *held;
                let taken = if peek { 0 } else { got as u64 };
                if self.left_in_vain() {
                    self.phase.turn_receives(Receives::back);
                    self.rx.kernel.leave();
                    return got;
                }
                let r = self.position(fd, rx, taken);
                let how = r.map(|r| (r, self.overtakes(rx, n, r, taken)));
                match how {
                    Some((_, Overtakes::Whole { doorbells: 0, .. })) => got,
                    Some((_, Overtakes::Whole { doorbells, behind })) if into.is_some() => {
                        if let Some(into) = into {
                            into.cut(behind, doorbells, got);
                        }
                        got - doorbells
                    }
                    Some((r, Overtakes::Early { doorbells, behind }))
                        if into.is_some_and(|into| {
                            into.cut(behind, doorbells, got);
                            self.put_in_order(rx, into, behind, got - doorbells - behind)
                        }) =>
                    {
                        self.begin_ring(rx, n, r.min(n + u64::from(fix_bells(self.my()))));
                        got - doorbells
                    }
                    Some((r, Overtakes::No)) => {
                        let payload =
                            n.saturating_sub(r.saturating_sub(taken)).min(got as u64) as usize;
                        if self.phase().awaits_switch() {
                            self.begin_ring(rx, n, r);
                        }
                        payload
                    }
                    Some(_) | None => {
                        self.break_unreadable(fd);
                        0
                    }
                }
            }
            _ => got,
        };
        self.rx.kernel.leave();
        payload
    }

    /// Whether the peer left TCP while we asked it to stay there, and has gone back without a byte
    /// or a doorbell.
    fn left_in_vain(&self) -> bool {
        let my = self.my();
        let ph = self.phase();
        let recalled = ph.has(p::RECALLED) && !ph.receives_on_ring() && !self.revokes();
        recalled && my.prod.load(Acquire) == REVERTED && my.rung.load(SeqCst) & !RUNG_REVOKED == 0
    }

    /// The peer left TCP at `n`, and `r` stream bytes have been read.
    fn begin_ring(&self, rx: &mut Rx, n: u64, r: u64) {
        rx.tcp_left = n.saturating_sub(r);
        rx.drained = r.saturating_sub(n) as u32;
        self.phase.turn_receives(Receives::followed);
    }

    /// Moves our receives to the ring if the peer has left TCP and nobody is inside a kernel
    /// receive.
    pub fn settle_rx(&self, fd: i32) -> bool {
        if self.receives_on_ring() {
            return true;
        }
        if !self.switch_due() {
            return false;
        }
        if self.left_in_vain() {
            self.phase.turn_receives(|at| if at == Receives::Ready { at.back() } else { at });
            return false;
        }
        // A handler that receives in the middle of the switch would wait for the thread that it has
        // interrupted; one that jumps would leave the switch to nobody. So does the death of a
        // process that shares the connection: then the lock is taken over.
        let _quiet = SignalsHeld::new();
        let Some(mut held) = self.try_lock_rx() else { return false };
        let mut ok = false;
        if begin_receive_switch(&self.phase, &self.rx.kernel)
            && let Some(n) = self.switch_offset()
        {
            let rx = &mut *held;
            match self.position(fd, rx, 0) {
                Some(r) => self.begin_ring(rx, n, r),
                None => self.break_unreadable(fd),
            }
            ok = true;
        }
        end_receive_switch(&self.phase);
        ok || self.receives_on_ring()
    }
}
