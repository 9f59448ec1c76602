//! Waiting on a set.
#![allow(unsafe_code)]

mod sort;

use core::sync::atomic::Ordering::*;

use libc::{epoll_event, sigset_t};
use smc::conn::rest;
use smc::conn::wakeups::now_us;
use smc::sys;

use super::look::SILENT_NS;
use super::set::{Held, SHARE, Set, held};
use super::table::set;
use crate::fds::{self, Kind, drain};
use crate::spin::Spin;
use crate::{fail, kernel};

/// A busy loop over rings asks the kernel about everything else at least this often, in
/// nanoseconds.
const KERNEL_EVERY: u64 = 20_000;
/// A thread that always finds something never sleeps, and the scheduler would let it run for up to
/// 8 ms while another one's connections wait for the same processor; with TCP threads sleep all the
/// time. So it yields, as often as suits whoever runs then: threads like this one are back soon,
/// and their connections are to wait no longer than with TCP; beside one that only computes, who
/// yields more often than once in a slice of the scheduler is put off for longer in turn.
const YIELD_EVERY: core::ops::RangeInclusive<u64> = 200_000..=3_000_000;
/// What the program makes of one helping takes about this long, in nanoseconds: its peers wait for
/// answers less than a spin.
const HELPING: u64 = 12_000;
/// Whoever is seldom asked gets all at once, however slow it is: `busy` counts up to `BUSIEST`, and
/// down when it sleeps.
const BUSY: u32 = 64;
const BUSIEST: u32 = 256;
const SLEPT: u32 = 8;
/// Events of rings that one answer has in the kernel's order.
const IN_ORDER: usize = 16;

fn now() -> u64 {
    kernel::get().now_ns()
}

/// One call of epoll_wait.
struct Wait {
    set: &'static Set,
    index: u32,
    generation: u32,
    epfd: i32,
    out: *mut epoll_event,
    max: usize,
    mask: *const sigset_t,
    /// An event of a hooked registration came from the kernel: whoever else sleeps will not be
    /// woken by it.
    took: bool,
    /// Registrations that were hooked when the kernel was asked last.
    hooked: u32,
    /// Since when it sleeps, or has slept until now: what the kernel tells is all that has happened
    /// since, in order.
    slept: Option<u64>,
    /// Since when it had slept when a bell rang.
    rung: Option<u64>,
    /// Registrations that were reported in that order.
    told: [u32; IN_ORDER],
    tolds: usize,
}

/// epoll_wait in all its forms. `timeout` in nanoseconds, None for ever; `plain` is the
/// application's own call.
///
/// # Safety
/// The application's obligations.
// By itself the compiler decides that anew with each change elsewhere: a call more costs each wait
// thirty instructions.
#[inline(always)]
pub unsafe fn wait(
    epfd: i32,
    out: *mut epoll_event,
    max: i32,
    timeout: Option<u64>,
    mask: *const sigset_t,
    plain: impl Fn() -> isize,
) -> isize {
    let Kind::Epoll(index) = fds::kind(epfd) else { return plain() };
    const MOST: i32 = i32::MAX / size_of::<epoll_event>() as i32;
    if !(1..=MOST).contains(&max) || crate::faulty(out) {
        return plain();
    }
    let max = max as usize;
    let Some(set) = set(index) else { return plain() };
    kernel::cancellation_point();
    if set.is_interrupted() {
        // A signal handler in the middle of a look at this set cannot look at it.
        return fail(libc::EINTR);
    }
    drain::look();
    let end = timeout.filter(|t| *t != 0).map(|t| now().saturating_add(t));
    let generation = set.generation.load(Relaxed);
    let (told, tolds) = ([0; IN_ORDER], 0);
    let mut w = Wait {
        set,
        index,
        generation,
        epfd,
        out,
        max,
        mask,
        took: false,
        hooked: 0,
        slept: None,
        rung: None,
        told,
        tolds,
    };
    if set.hooked.load(SeqCst) == 0
        && let Some(r) = w.unhooked(timeout, plain)
    {
        return r;
    }
    w.measure();
    // SAFETY: forwarded.
    let r = unsafe { if timeout == Some(0) { w.at_once() } else { w.run(end) } };
    w.pass_on();
    r
}

impl Wait {
    /// The plain call; None when it woke up for a registration that was hooked meanwhile, or that
    /// is off.
    #[inline(always)]
    fn unhooked(&mut self, timeout: Option<u64>, plain: impl Fn() -> isize) -> Option<isize> {
        // SYNC: sleepers. Counted before the second look: a registration that is hooked afterwards
        // fires an edge, and whoever takes that edge instead of us sees that somebody sleeps.
        self.set.sleepers.enter();
        let r = if timeout == Some(0) || self.set.hooked.load(SeqCst) == 0 { plain() } else { 0 };
        self.set.sleepers.leave();
        // The tag's note precedes the kernel's, whose lock orders them.
        if r < 0 || !self.set.tagged.load(Relaxed) {
            return (r != 0 || self.set.hooked.load(SeqCst) == 0).then_some(r);
        }
        // SAFETY: the kernel filled r events.
        let kept = unsafe { self.sort_out(self.out, r as usize, self.max) };
        if kept == 0 && (r != 0 || self.set.hooked.load(SeqCst) != 0) {
            return None;
        }
        self.pass_on();
        Some(kept as isize)
    }

    /// None, too, where the set was closed under this wait: another one may be in its place, whose
    /// events are its own waits'.
    #[inline(always)]
    fn held(&self) -> Option<Held> {
        let is_ours = |_: &Held| self.set.generation.load(Relaxed) == self.generation;
        held(self.index, self.set).filter(is_ours)
    }

    /// The program is back for more: how long what it got kept it says how much it gets. Threads on
    /// one set spoil each other's measure, but not beyond its bounds.
    fn measure(&self) {
        let s = self.set;
        let given = u64::from(s.given.swap(0, Relaxed));
        if given != 0 {
            let took = now().saturating_sub(s.given_at.load(Relaxed)).max(1);
            let due = (16 * given * HELPING / took).clamp(32, 16 * u64::from(SHARE)) as u32;
            s.share.store((7 * s.share.load(Relaxed) + due + 4) / 8, Relaxed);
        }
    }

    /// Looks at the hot list and leaves what is ready behind the first `n` events; how many there
    /// are then.
    ///
    /// # Safety
    /// As for `wait`.
    unsafe fn look(&self, n: usize) -> usize {
        let s = self.set;
        let share = if s.busy.load(Relaxed) < BUSY { SHARE } else { s.share.load(Relaxed) / 16 };
        let share = (self.max - n).min(share as usize);
        let told = if n == 0 { &[][..] } else { &self.told[..self.tolds] };
        let Some(mut h) = self.held().filter(|_| n == 0 || !self.may_be_told()) else { return n };
        h.rung = self.rung;
        // SAFETY: the part behind the first n events is writable.
        n + unsafe { h.look(self.out.add(n), share, told) }
    }

    /// Behind the kernel's events, and with the set held: a registration that was hooked since the
    /// kernel was asked may be among them, under the application's name, and must not be told
    /// twice.
    fn may_be_told(&self) -> bool {
        self.set.hooked.load(SeqCst) != self.hooked
    }

    /// A wait that does not wait.
    ///
    /// # Safety
    /// As for `wait`.
    unsafe fn at_once(&mut self) -> isize {
        // SAFETY: forwarded.
        unsafe {
            if let Some(n) = self.first() {
                return n;
            }
            let k = self.kernel(0, 0, self.mask);
            if k == 0 { self.look(0) as isize } else { k }
        }
    }

    /// What is there without waiting, the kernel's events beside ours now and then.
    ///
    /// # Safety
    /// As for `wait`.
    unsafe fn first(&mut self) -> Option<isize> {
        let s = self.set;
        if s.kernel_first.load(Relaxed) {
            s.kernel_first.store(false, Relaxed);
            // The last answer had no room for what only the kernel knows: its turn.
            // SAFETY: forwarded.
            let k = unsafe { self.kernel(0, 0, core::ptr::null()) };
            if k > 0 {
                return Some(k);
            }
        }
        // SAFETY: forwarded.
        let n = unsafe { self.look(0) };
        if n == 0 {
            return None;
        }
        rest::stir();
        let now = now();
        s.given_at.store(now, Relaxed);
        s.given.store(n as u32, Relaxed);
        s.busy.store((s.busy.load(Relaxed) + 1).min(BUSIEST), Relaxed);
        if n == self.max {
            s.kernel_first.store(true, Relaxed);
            return Some(n as isize);
        }
        if now.saturating_sub(s.last_kernel.load(Relaxed)) <= KERNEL_EVERY {
            return Some(n as isize);
        }
        s.last_kernel.store(now, Relaxed);
        self.leave_processor(now);
        let known = self.held().map_or(0, |mut h| h.hot().looked);
        // SAFETY: forwarded.
        let k = unsafe { self.kernel(n, 0, core::ptr::null()) };
        let k = n + k.max(0) as usize;
        let held = self.held().filter(|_| k == n || !self.may_be_told());
        // SAFETY: the part behind the first k events is writable.
        let more =
            held.map_or(0, |mut h| unsafe { h.look_behind(known, self.out.add(k), self.max - k) });
        // What only the kernel told, of doorbells too, is older than what the last looks at the
        // list did not find yet. SAFETY: the k + more events were written just now.
        unsafe { core::slice::from_raw_parts_mut(self.out, k + more) }.rotate_left(n);
        Some((k + more) as isize)
    }

    /// Lets others run now and then; `left` is the time.
    fn leave_processor(&self, left: u64) {
        let s = self.set;
        if left < s.next_yield.load(Relaxed) {
            return;
        }
        sys::yield_now();
        let back = now();
        // A little less than the others took: two that wait for each other shall not end up waiting
        // long. Nor shall one that was soon back among those that compute make us forget them.
        let longest = (back - left).max(s.yield_every.load(Relaxed));
        let every = (longest / 4 * 3).clamp(*YIELD_EVERY.start(), *YIELD_EVERY.end());
        s.yield_every.store(every, Relaxed);
        s.next_yield.store(back + every, Relaxed);
    }

    /// Waits until `end` (None: for ever).
    ///
    /// # Safety
    /// As for `wait`.
    unsafe fn run(&mut self, end: Option<u64>) -> isize {
        let mut spun = false;
        loop {
            // SYNC: generation. Behind the last look; pairs with the release in `forget`.
            if self.set.generation.load(Acquire) != self.generation {
                // Closed by another thread. The number may be another set's by now.
                return fail(libc::EBADF);
            }
            let drains = drain::look();
            // SAFETY: forwarded.
            if let Some(n) = unsafe { self.first() } {
                return n;
            }
            if !self.mask.is_null() && !spun {
                // A signal that the mask lets through is delivered before any spinning.
                // SAFETY: forwarded.
                let k = unsafe { self.kernel(0, 0, self.mask) };
                if k != 0 {
                    return k;
                }
            }
            if !core::mem::replace(&mut spun, true) {
                // SAFETY: forwarded.
                match unsafe { self.spin() } {
                    None => {}
                    Some(0) => continue,
                    Some(got) => return got,
                }
            }
            // SAFETY: forwarded.
            let r = unsafe { self.sleep_armed(end, drains) };
            if r != 0 || end.is_some_and(|e| now() >= e) {
                return r;
            }
        }
    }

    /// Spins if that may pay: None when nothing came, 0 when there is something to look at, else
    /// the kernel's answer.
    ///
    /// # Safety
    /// As for `wait`.
    unsafe fn spin(&mut self) -> Option<isize> {
        let s = self.set;
        if !self.held().is_some_and(|mut h| h.may_pay()) {
            return None;
        }
        let spin = Spin::try_now(&s.spin)?;
        let (mut looks, mut got) = (0u32, 0);
        let hit = spin.until(|| {
            looks += 1;
            if self.held().is_some_and(|mut h| h.has_news()) {
                return true;
            }
            if looks.is_multiple_of(256) {
                // SAFETY: forwarded.
                got = unsafe { self.kernel(0, 0, core::ptr::null()) };
            }
            got != 0
        });
        hit.then_some(got)
    }

    /// Asks for doorbells, looks once more and sleeps, for as long as `drains` says if it says
    /// something; the result of the call, 0 for "again".
    ///
    /// # Safety
    /// As for `wait`.
    unsafe fn sleep_armed(&mut self, end: Option<u64>, drains: Option<u64>) -> isize {
        // SYNC: sleepers. Counted before arming, both before the look: who changes the set
        // afterwards sees a sleeper, and who leaves it does not take the arms back.
        self.set.sleepers.enter();
        // From here on whoever publishes rings.
        let again = self.held().map_or(Some(SILENT_NS), |mut h| h.arm());
        // SAFETY: forwarded.
        let n = unsafe { self.look(0) };
        if n > 0 {
            self.set.kernel_first.store(n == self.max, Relaxed);
            self.woken();
            return n as isize;
        }
        let mut left = end.map(|e| e.saturating_sub(now()));
        let nap = match again {
            Some(nap) if nap <= SILENT_NS => Some(nap),
            // No rest is begun by who looks again that soon.
            _ => rest::before_sleep().or(drains).into_iter().chain(again).min(),
        };
        if let Some(nap) = nap {
            left = Some(left.unwrap_or(nap).min(nap));
        }
        (self.slept, self.rung, self.tolds) = (Some(now_us()), None, 0);
        // SAFETY: forwarded.
        let k = unsafe { self.sleep(left) };
        self.slept = None;
        self.woken();
        let (s, now) = (self.set, now());
        // Sleeping was asking the kernel.
        s.last_kernel.store(now, Relaxed);
        s.next_yield.store(now + s.yield_every.load(Relaxed), Relaxed);
        s.busy.store(s.busy.load(Relaxed).saturating_sub(SLEPT), Relaxed);
        if k < 0 || k as usize == self.max {
            return k;
        }
        // What the rings have beside it.
        // SAFETY: forwarded.
        unsafe { self.look(k as usize) as isize }
    }

    /// Sleeps in the kernel. Whole milliseconds go through the call that every kernel has.
    ///
    /// # Safety
    /// As for `wait`.
    unsafe fn sleep(&mut self, left: Option<u64>) -> isize {
        if let Some(l) = left.filter(|l| l % 1_000_000 != 0) {
            self.hooked = self.set.hooked.load(SeqCst);
            let limit = kernel::duration(l);
            let max = self.max as i32;
            // SAFETY: forwarded; `limit` is live.
            let n = unsafe {
                kernel::get().epoll_pwait2(self.epfd, self.out, max, &raw const limit, self.mask)
            };
            if n > 0 {
                // SAFETY: the kernel filled n events.
                return unsafe { self.sort_out(self.out, n as usize, max as usize) } as isize;
            }
            if !kernel::is_unknown(n) {
                return n;
            }
        }
        let ms = left.map_or(-1, |l| l.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
        // SAFETY: forwarded.
        unsafe { self.kernel(0, ms, self.mask) }
    }

    /// Asks the kernel, for events behind the first `n`; those of hooked registrations make them
    /// hot and are taken out of the answer.
    ///
    /// # Safety
    /// As for `wait`.
    unsafe fn kernel(&mut self, n: usize, ms: i32, mask: *const sigset_t) -> isize {
        let (epfd, room) = (self.epfd, self.max - n);
        self.hooked = self.set.hooked.load(SeqCst);
        // SAFETY: the part behind the first n events is writable; the rest is forwarded.
        let (out, k) = unsafe {
            let out = self.out.add(n);
            let k = if ms == 0 && mask.is_null() {
                sys::epoll_pwait(epfd, out, room as i32, 0, mask)
            } else {
                kernel::get().epoll_pwait(epfd, out, room as i32, ms, mask)
            };
            (out, k)
        };
        if k <= 0 {
            return k;
        }
        // SAFETY: the kernel filled k events.
        unsafe { self.sort_out(out, k as usize, room) as isize }
    }

    /// Takes the arms back, unless somebody else sleeps by them.
    fn woken(&self) {
        if self.set.sleepers.leave()
            && let Some(mut h) = self.held()
            // SYNC: sleepers. Again under the lock: who counted itself since has yet to arm.
            && !self.set.sleepers.any()
        {
            h.disarm();
        }
    }

    /// A thread that leaves with a doorbell that may have been for others asks for new ones in
    /// their stead, and wakes one of them if there is something for it already.
    fn pass_on(&self) {
        if !self.took || !self.set.sleepers.any() {
            return;
        }
        if let Some(mut h) = self.held() {
            h.pass_on();
        }
    }
}

#[cfg(test)]
mod tests;
