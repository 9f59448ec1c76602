//! Waiting on a set.

use core::sync::atomic::{AtomicU32, Ordering::*};

use libc::{epoll_event, sigset_t};
use smc::conn::{Conn, ERR, HUP, IN, OUT, RDHUP, Waits, phase};
use smc::sys;

use super::set::{Entry, Set, cool_list, entry, heat, held, set, tagged};
use crate::fds;
use crate::wait::Spin;
use crate::{errno, next};

/// A busy loop over rings asks the kernel about everything else at least this often, in nanoseconds.
const KERNEL_EVERY: u64 = 20_000;
/// Empty looks in front of a sleep after which a registration goes cold.
const COLD_AFTER: u32 = 64;
/// Longest sleep while a connection waits for space that its peer cannot announce.
const SILENT_NS: u64 = 2_000_000;
/// Link groups that one sleep can cover; connections of further ones are armed singly.
const PAGES: usize = 16;

/// How long a wait may last.
#[derive(Clone, Copy)]
pub enum Limit {
    Forever,
    Until(u64),
}

impl Limit {
    pub fn left(self) -> Option<u64> {
        match self {
            Limit::Forever => None,
            Limit::Until(t) => Some(t.saturating_sub(sys::now_ns())),
        }
    }
}

/// epoll_wait on a set with hooked registrations. `timeout` in nanoseconds, None for ever.
///
/// # Safety
/// `out` must be writable for `max` events, `mask` null or valid.
pub unsafe fn wait(
    index: u32,
    epfd: i32,
    out: *mut epoll_event,
    max: i32,
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> i32 {
    let Some(s) = set(index) else {
        // SAFETY: forwarded.
        return unsafe {
            next::epoll_pwait(epfd, out, max, timeout.map_or(-1, |t| t.div_ceil(1_000_000) as i32), mask)
        };
    };
    let limit = timeout.map_or(Limit::Forever, |t| Limit::Until(sys::now_ns().saturating_add(t)));
    let max = max as usize;
    let mut spun = false;
    if core::mem::take(&mut s.kernel_first) {
        // The last answer had no room for what only the kernel knows: its turn.
        // SAFETY: forwarded.
        let k = unsafe { kernel(s, epfd, out, max, 0, core::ptr::null()) };
        if k > 0 {
            return k;
        }
    }
    loop {
        // SAFETY: forwarded.
        let n = unsafe { look(s, out, max) };
        if n > 0 {
            s.kernel_first = n == max;
            let now = sys::now_ns();
            if n < max && now - s.last_kernel > KERNEL_EVERY {
                s.last_kernel = now;
                // SAFETY: the part behind the first n events is writable.
                let k = unsafe { kernel(s, epfd, out.add(n), max - n, 0, core::ptr::null()) };
                return (n + k.max(0) as usize) as i32;
            }
            return n as i32;
        }
        if timeout == Some(0) || !mask.is_null() && !spun {
            // SAFETY: forwarded. With a mask, a signal that it lets through is delivered before any spinning.
            let k = unsafe { kernel(s, epfd, out, max, 0, mask) };
            if k != 0 || timeout == Some(0) {
                // SAFETY: forwarded.
                return if k == 0 { unsafe { look(s, out, max) as i32 } } else { k };
            }
        }
        if !spun
            && may_pay(s)
            && let Some(spin) = Spin::try_now(score(s))
        {
            spun = true;
            let mut looks = 0u32;
            let mut got = 0;
            let hit = spin.until(|| {
                looks += 1;
                if news(s) {
                    return true;
                }
                if looks.is_multiple_of(256) {
                    // SAFETY: forwarded.
                    got = unsafe { kernel(s, epfd, out, max, 0, core::ptr::null()) };
                }
                got != 0
            });
            if got != 0 {
                return got;
            }
            if hit {
                continue;
            }
        }
        spun = true;
        // From here on whoever publishes rings.
        let silent = arm_set_locked(s);
        // SAFETY: forwarded.
        let n = unsafe { look(s, out, max) };
        if n > 0 {
            wake_set(s);
            return n as i32;
        }
        let mut left = limit.left();
        if left == Some(0) && timeout != Some(0) {
            wake_set(s);
            // SAFETY: forwarded.
            return unsafe { kernel(s, epfd, out, max, 0, mask) };
        }
        if silent {
            left = Some(left.unwrap_or(SILENT_NS).min(SILENT_NS));
        }
        s.sleepers.fetch_add(1, SeqCst);
        // SAFETY: forwarded.
        let k = unsafe { sleep(s, epfd, out, max, left, mask) };
        s.sleepers.fetch_sub(1, SeqCst);
        wake_set(s);
        if k != 0 {
            if k > 0 && (k as usize) < max {
                // SAFETY: the part behind the first k events is writable.
                return k + unsafe { look(s, out.add(k as usize), max - k as usize) } as i32;
            }
            return k;
        }
    }
}

/// Sleeps in the kernel. Whole milliseconds go through the call that every kernel has.
///
/// # Safety
/// As for `wait`.
unsafe fn sleep(
    s: &mut Set,
    epfd: i32,
    out: *mut epoll_event,
    max: usize,
    left: Option<u64>,
    mask: *const sigset_t,
) -> i32 {
    if let Some(l) = left.filter(|l| l % 1_000_000 != 0) {
        let t = libc::timespec { tv_sec: (l / 1_000_000_000) as i64, tv_nsec: (l % 1_000_000_000) as i64 };
        // SAFETY: forwarded; `t` is live.
        let n = unsafe { next::epoll_pwait2(epfd, out, max as i32, &raw const t, mask) };
        if n > 0 {
            // SAFETY: the kernel filled n events.
            return unsafe { sort_out(s, out, n as usize) } as i32;
        }
        if n == 0 || errno() != libc::ENOSYS {
            return n;
        }
    }
    let ms = left.map_or(-1, |l| l.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
    // SAFETY: forwarded.
    unsafe { kernel(s, epfd, out, max, ms, mask) }
}

/// Asks the kernel; events of hooked registrations make them hot and are taken out of the answer.
///
/// # Safety
/// As for `wait`.
unsafe fn kernel(s: &mut Set, epfd: i32, out: *mut epoll_event, max: usize, ms: i32, mask: *const sigset_t) -> i32 {
    // SAFETY: forwarded.
    let n = unsafe {
        if ms == 0 && mask.is_null() {
            let n = sys::syscall(libc::SYS_epoll_pwait, epfd as usize, out as usize, max, 0, 0, 8);
            if n < 0 {
                *libc::__errno_location() = -n as i32;
            }
            n.max(-1) as i32
        } else {
            next::epoll_pwait(epfd, out, max as i32, ms, mask)
        }
    };
    if n <= 0 {
        return n;
    }
    let saved = errno();
    // SAFETY: the kernel filled n events.
    let kept = unsafe { sort_out(s, out, n as usize) };
    crate::set_errno(saved);
    kept as i32
}

/// Takes hooked registrations' events out of the kernel's answer; how many events are left.
///
/// # Safety
/// `out` must hold `n` events.
unsafe fn sort_out(s: &mut Set, out: *mut epoll_event, n: usize) -> usize {
    let _guard = held(s);
    let mut kept = 0;
    for i in 0..n {
        // SAFETY: below n.
        let ev = unsafe { out.add(i).read() };
        let data = ev.u64;
        if let Some(at) = tagged(data)
            && let Some(e) = entry(at)
            && e.hooked
            && set(e.set).is_some_and(|of| core::ptr::eq(of, s))
        {
            fds::conn(e.conn).kernel_end(ev.events);
            e.urgent |= ev.events & libc::EPOLLPRI as u32 != 0;
            // A direction that is still the kernel's has the kernel's edges.
            let c = fds::conn(e.conn);
            if c.reads_tcp() {
                e.seen_read = u64::MAX - 1;
            }
            if c.phase() & phase::TX_RING == 0 {
                e.seen_space = c.space_epoch().wrapping_sub(1);
            }
            heat(s, at, e);
        } else {
            // SAFETY: kept <= i.
            unsafe { out.add(kept).write(ev) };
            kept += 1;
        }
    }
    kept
}

/// Events of a plain wait during which registrations were hooked.
///
/// # Safety
/// `out` must hold `n` events.
pub unsafe fn untag(index: u32, out: *mut epoll_event, n: i32) -> i32 {
    // SAFETY: forwarded.
    set(index).map_or(n, |s| unsafe { sort_out(s, out, n as usize) } as i32)
}

/// Gives out what is ready on the hot list.
///
/// # Safety
/// `out` must be writable for `max` events.
unsafe fn look(s: &mut Set, out: *mut epoll_event, max: usize) -> usize {
    let Ok(_guard) = held(s) else { return 0 };
    let mut n = 0;
    let len = s.hot.len();
    let mut at = if s.next_look < len { s.next_look } else { 0 };
    for _ in 0..len {
        if n == max {
            break;
        }
        let Some(&i) = s.hot.get(at) else { break };
        at = if at + 1 < len { at + 1 } else { 0 };
        let Some(e) = entry(i) else { continue };
        let c = fds::conn(e.conn);
        if !e.enabled || c.gen_.load(Relaxed) != e.generation {
            continue;
        }
        let ev = report(e, c);
        if ev != 0 {
            e.idle = 0;
            // SAFETY: n < max.
            unsafe { out.add(n).write(epoll_event { events: ev, u64: e.data }) };
            n += 1;
            if e.events & libc::EPOLLONESHOT as u32 != 0 {
                e.enabled = false;
            }
        }
    }
    // Where this look ended the next begins, so that a small `max` starves nobody.
    s.next_look = at;
    n
}

/// A descriptor of the connection: the registered one may be closed while another one lives.
fn io_fd(e: &Entry) -> i32 {
    fds::local(e.conn).fd.load(Relaxed) as i32
}

/// The events to give out for a registration now, by its mode.
fn report(e: &mut Entry, c: &Conn) -> u32 {
    let fd = io_fd(e);
    c.settle_rx(fd);
    let mut ready = c.ready(fd);
    if e.urgent {
        // Level-triggered as long as the kernel has it.
        ready |= sys::poll_now(fd, libc::POLLPRI) as u16 as u32 & libc::EPOLLPRI as u32;
        e.urgent = ready & libc::EPOLLPRI as u32 != 0 && e.events & libc::EPOLLET as u32 == 0;
    }
    let ev = ready & (e.events | ERR | HUP) & 0xffff;
    if ev & libc::EPOLLPRI as u32 != 0 {
        return ev;
    }
    if e.events & libc::EPOLLET as u32 == 0 || ev == 0 {
        return ev;
    }
    let (read, space) = (c.read_stamp(), c.space_epoch());
    let edge = (ev & (IN | RDHUP | ERR | HUP) != 0 && read != e.seen_read) || (ev & OUT != 0 && space != e.seen_space);
    if !edge {
        return 0;
    }
    e.seen_read = read;
    if ev & OUT != 0 {
        e.seen_space = space;
    }
    ev
}

fn score(s: &Set) -> &'static AtomicU32 {
    // SAFETY: a set is freed only by its last close; see `set`.
    unsafe { &*core::ptr::from_ref(&s.spin) }
}

/// A cheap look: has anything changed on the hot list?
fn news(s: &mut Set) -> bool {
    let Ok(_guard) = held(s) else { return false };
    s.hot.iter().any(|&i| {
        entry(i).is_some_and(|e| {
            let c = fds::conn(e.conn);
            e.enabled
                && (c.has_news()
                    && e.events & IN != 0
                    && (e.events & libc::EPOLLET as u32 == 0 || c.read_stamp() != e.seen_read)
                    || e.events & OUT != 0 && e.events & libc::EPOLLET as u32 == 0 && c.ready(io_fd(e)) & OUT != 0)
        })
    })
}

/// Whether spinning can bring anything: some hot peer runs on another processor.
fn may_pay(s: &mut Set) -> bool {
    let Ok(_guard) = held(s) else { return false };
    s.hot.iter().take(8).any(|&i| entry(i).is_some_and(|e| fds::conn(e.conn).peer_elsewhere()))
}

/// Arms everything hot, so that the next publication on any of it wakes the set. True when some connection must be
/// looked at from time to time because its peer cannot ring for space.
fn arm_set_locked(s: &mut Set) -> bool {
    let Ok(_guard) = held(s) else { return true };
    let mut pages: [*const Waits; PAGES] = [core::ptr::null(); PAGES];
    let mut used = 0;
    let mut silent = false;
    let mut at = 0;
    while let Some(&i) = s.hot.get(at) {
        at += 1;
        let Some(e) = entry(i) else { continue };
        let c = fds::conn(e.conn);
        e.idle += 1;
        if e.events & OUT != 0 && c.phase() & phase::TX_RING != 0 && c.ready(io_fd(e)) & OUT == 0 {
            c.arm_space();
            silent |= c.space_is_silent();
        }
        if e.idle > COLD_AFTER {
            cool_list(s, e);
            at -= 1;
            c.arm_data();
            // What came in between would ring nobody: keep it hot.
            if c.has_news() {
                heat(s, i, e);
            }
            continue;
        }
        let page = c.peer_waits();
        if !e.covered || page.is_null() {
            c.arm_data();
        } else if !pages[..used].contains(&page) {
            if used == PAGES {
                c.arm_data();
                continue;
            }
            pages[used] = page;
            used += 1;
        }
    }
    for page in &pages[..used] {
        // SAFETY: a control page, type-stable.
        unsafe { (**page).sleep(s.wait) };
    }
    silent
}

/// Nobody sleeps on the set any more: peers need not ring.
fn wake_set(s: &mut Set) {
    if s.sleepers.load(SeqCst) != 0 {
        return;
    }
    let Ok(_guard) = held(s) else { return };
    let mut last: *const Waits = core::ptr::null();
    for &i in &s.hot {
        let Some(e) = entry(i) else { continue };
        let page = fds::conn(e.conn).peer_waits();
        if e.covered && !page.is_null() && page != last {
            last = page;
            // SAFETY: a control page, type-stable.
            unsafe { (*page).wake(s.wait) };
        }
    }
}

/// Whether a wait on the set would return at once because of a hooked registration: for sets inside poll and epoll.
pub fn set_ready(index: u32) -> bool {
    let Some(s) = set(index) else { return false };
    let Ok(_guard) = held(s) else { return false };
    s.hot.iter().any(|&i| {
        entry(i).is_some_and(|e| {
            let c = fds::conn(e.conn);
            let ready = c.ready(io_fd(e)) & (e.events | ERR | HUP);
            let edge = e.events & libc::EPOLLET as u32 == 0 || c.read_stamp() != e.seen_read;
            e.enabled && ready != 0 && (edge || ready & OUT != 0 && c.space_epoch() != e.seen_space)
        })
    })
}

/// Arms a set that something else is about to sleep on.
pub fn arm_set(index: u32) {
    if let Some(s) = set(index) {
        arm_set_locked(s);
    }
}
