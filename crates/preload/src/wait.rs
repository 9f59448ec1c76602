//! Waiting: spin briefly where it pays, then sleep in a real kernel call on the real descriptor, so that signals,
//! timeouts, cancellation and resets are the kernel's.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use smc::config::CONFIG;
use smc::conn::sleepers::{READS, Seat, WRITES};
use smc::conn::wakeups::now_us;
use smc::conn::{Conn, Got, IN, OUT, rest};
use smc::sys;

use crate::{errno, fds, next};

/// Score below which spinning is only tried now and then.
const PAYS: u32 = 4;
const BEST: u32 = 16;
/// One wait in so many is a probe while spinning does not pay.
const PROBE: u32 = 32;

/// How well spinning has paid, and whether to try now.
pub struct Spin<'a> {
    score: &'a AtomicU32,
}

impl<'a> Spin<'a> {
    /// A spin accounted to `score`, if one is worth trying.
    pub fn try_now(score: &'a AtomicU32) -> Option<Self> {
        if CONFIG.spin_ns.load(Relaxed) == 0 {
            return None;
        }
        let s = score.load(Relaxed);
        let (level, skipped) = (s & 0xff, s >> 8);
        if level < PAYS && skipped < PROBE {
            score.store(level | (skipped + 1) << 8, Relaxed);
            return None;
        }
        Some(Self { score })
    }

    /// Spins until `done` or the budget is spent. `done` is asked every few dozen cycles.
    pub fn until(self, mut done: impl FnMut() -> bool) -> bool {
        let budget = u64::from(CONFIG.spin_ns.load(Relaxed));
        let start = sys::now_ns();
        let level = self.score.load(Relaxed) & 0xff;
        let mut last = start;
        loop {
            for _ in 0..8 {
                if done() {
                    self.score.store((level + 2).min(BEST), Relaxed);
                    return true;
                }
                core::hint::spin_loop();
            }
            let now = sys::now_ns();
            // A gap means that somebody else ran here: the processor is wanted, and spinning only delays the peer. Who lets it
            // spin for long, between emulated processors perhaps, means shorter ones not.
            let preempted = now - last > (budget / 2).max(50_000);
            if now - start > budget || preempted {
                self.score.store(level.saturating_sub(if preempted { 8 } else { 2 }), Relaxed);
                return false;
            }
            last = now;
        }
    }
}

/// What a call that POSIX makes a cancellation point does first: one that finds data, room or events never sleeps, and a thread
/// that always finds some could not be cancelled.
#[inline(always)]
pub fn cancellation_point() {
    if CANCELS.load(Relaxed) {
        // SAFETY: nothing is held; a thread that ends here leaves its hooks as it would by a jump.
        unsafe { next::pthread_testcancel() };
    }
}

/// Whether any thread was ever cancelled.
static CANCELS: AtomicBool = AtomicBool::new(false);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    CANCELS.store(true, SeqCst);
    // SAFETY: forwarded.
    unsafe { next::pthread_cancel(thread) }
}

/// A call that may have to wait on a connection, from its first wait to its end: if another thread closes the connection
/// meanwhile, that takes effect when the call has ended, as in the kernel.
pub struct Stay<'a> {
    /// The connection.
    pub conn: &'a Conn,
    fd: i32,
    seat: Option<Seat<'a>>,
    /// O_NONBLOCK at its first wait: who changes it meanwhile, in another thread or process, means later calls.
    nonblocking: Option<bool>,
    /// When it began to wait, or began if it insists on more than a byte: its time limit counts from here.
    since: Option<u64>,
    /// The time limit, which the kernel reads once in a call, too.
    limit: Option<Option<u64>>,
    /// Sleeps given up in turn because a doorbell was left to another thread.
    held: u32,
}

/// So often it yields to the thread that the doorbell is for before it takes naps: that thread may be put off for long.
const YIELDS: u32 = 10;

impl<'a> Stay<'a> {
    #[inline(always)]
    pub fn new(conn: &'a Conn, fd: i32) -> Self {
        Self { conn, fd, seat: None, nonblocking: None, since: None, limit: None, held: 0 }
    }

    /// Of a call whose time limit holds for all of it.
    pub fn begin(&mut self) {
        self.since = Some(sys::now_ns());
    }

    /// Whether the call must not wait because of its socket.
    pub fn is_nonblocking(&mut self) -> bool {
        let fd = self.fd();
        *self.nonblocking.get_or_insert_with(|| sys::is_nonblocking(fd))
    }

    /// Where SO_RCVTIMEO or SO_SNDTIMEO ends the call.
    fn limit(&mut self, option: i32) -> Option<u64> {
        let (fd, since) = (self.fd(), *self.since.get_or_insert_with(sys::now_ns));
        *self.limit.get_or_insert_with(|| limit_of(fd, option, since))
    }

    /// The call may sleep in the kernel although the connection is, or may come to be, on a ring.
    pub fn is_inside(&mut self) {
        self.sleeps(0);
    }

    /// The descriptor by which the connection can be reached now.
    #[inline]
    pub fn fd(&self) -> i32 {
        if self.seat.is_none() { self.fd } else { fds::kept(self.conn).unwrap_or(self.fd) }
    }

    /// Whether the application's own descriptor is closed.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.seat.is_some() && fds::kept(self.conn).is_some()
    }

    /// See `Seat::sleeps_too`: of poll, whose list may name a connection more than once.
    pub fn sleeps_too(&mut self, kinds: u32) {
        let conn = self.conn;
        self.seat.get_or_insert_with(|| conn.sleepers.enter()).sleeps_too(kinds);
    }

    /// See `Seat::sleeps`.
    fn sleeps(&mut self, kinds: u32) {
        let conn = self.conn;
        self.seat.get_or_insert_with(|| conn.sleepers.enter()).sleeps(kinds);
    }
}

impl Drop for Stay<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            drop(seat);
            fds::left(self.conn);
        }
    }
}

/// Waits until there may be something to read. Err(errno) ends the call: EAGAIN, EINTR, or an end error; Ok(None) means look
/// again, Ok(Some(got)) is the end of the stream.
pub fn for_data(stay: &mut Stay, dontwait: bool) -> Result<Option<Got>, i32> {
    let (conn, fd) = (stay.conn, stay.fd());
    if dontwait || stay.is_nonblocking() {
        conn.look_now_and_then(fd, sys::ticks());
        return if conn.ready(fd) & IN != 0 { Ok(None) } else { Err(libc::EAGAIN) };
    }
    if conn.peer_elsewhere()
        && let Some(spin) = Spin::try_now(&conn.spin)
        && spin.until(|| conn.has_news())
    {
        return Ok(None);
    }
    // For other connections of the process: this sleep cannot be cut into naps.
    rest::stir();
    rest::before_sleep();
    stay.sleeps(READS);
    let insists = stay.since.is_some() && stay.limit.is_none();
    if insists {
        stay.limit(libc::SO_RCVTIMEO);
    }
    let r = sleep_for_data(stay, fd);
    stay.sleeps(0);
    r
}

/// How often a wait looks by itself, in nanoseconds, while the kernel's low-water mark is above what it waits for.
const UNMARKED_NS: u64 = 1_000_000;

/// Whether the kernel's poll goes by the application's mark: until the exposure.
fn marked(conn: &Conn) -> bool {
    conn.user_rcvlowat.load(Relaxed) > 1 && !conn.is_exposed()
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// SO_RCVTIMEO or SO_SNDTIMEO of a call that began at `since`, as a point in time.
fn limit_of(fd: i32, option: i32, since: u64) -> Option<u64> {
    let mut tv = [0i64; 2];
    sys::getsockopt(fd, libc::SOL_SOCKET, option, &mut tv);
    (tv != [0, 0]).then(|| since + tv[0] as u64 * 1_000_000_000 + tv[1] as u64 * 1000)
}

/// How long a receive waits for one of another thread, which began before the upgrade, before it looks again.
const TURN_NS: u64 = 10_000_000;

/// Waits while another thread is inside the kernel's receive; false with errno when this one must fail.
pub fn for_turn(stay: &mut Stay) -> bool {
    stay.is_inside();
    let limit = stay.limit(libc::SO_RCVTIMEO);
    let left = limit.map_or(TURN_NS, |l| l.saturating_sub(sys::now_ns()).min(TURN_NS));
    if left == 0 {
        crate::set_errno(libc::EAGAIN);
        return false;
    }
    let mut p = libc::pollfd { fd: stay.fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: pointers to live locals.
    let r = unsafe { next::ppoll(&raw mut p, 1, &timespec(left), core::ptr::null()) };
    r >= 0 || is_restarted(limit)
}

/// Whether a receive that has nothing goes on after the error of its wait: as in the kernel, behind a handler that asks for it
/// if there is no time limit.
#[cold]
fn is_restarted(limit: Option<u64>) -> bool {
    errno() == libc::EINTR && limit.is_none() && crate::calls::process::restarts()
}

/// Waits until the kernel's socket is readable (with `any`, whatever its mark), or has one of the events `also`; false
/// with errno when the receive must fail.
pub fn for_kernel(stay: &mut Stay, also: i16, any: bool) -> bool {
    let (conn, fd) = (stay.conn, stay.fd());
    let limit = stay.limit(libc::SO_RCVTIMEO);
    let mut p = libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP | also, revents: 0 };
    loop {
        let mut left = limit.map(|l| l.saturating_sub(sys::now_ns()));
        if any && marked(conn) {
            if conn.queued(fd) > 0 {
                return true;
            }
            left = Some(left.unwrap_or(UNMARKED_NS).min(UNMARKED_NS));
        }
        let t = left.map(timespec);
        // SAFETY: pointers to live locals.
        let r = unsafe { next::ppoll(&raw mut p, 1, t.as_ref().map_or(core::ptr::null(), |t| t), core::ptr::null()) };
        match r {
            0 if limit.is_none_or(|l| sys::now_ns() < l) => continue,
            0 => crate::set_errno(libc::EAGAIN),
            1.. => return true,
            _ if is_restarted(limit) && !conn.is_closed() => continue,
            _ => {}
        }
        return false;
    }
}

/// A short sleep of a call in front of bytes that are too few for it; false when no more of them will come in time, or a
/// signal did.
pub fn for_a_while(stay: &mut Stay) -> bool {
    if stay.limit(libc::SO_RCVTIMEO).is_some_and(|limit| sys::now_ns() >= limit) {
        return false;
    }
    let mut p = libc::pollfd { fd: stay.fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: pointers to live locals.
    unsafe { next::ppoll(&raw mut p, 1, &timespec(UNMARKED_NS), core::ptr::null()) == 0 }
}

/// Waits for the rest of a receive that has something already; false when it must return that.
pub fn for_more(stay: &mut Stay, there: impl Fn() -> bool) -> bool {
    if stay.is_nonblocking() {
        return false;
    }
    let (fd, limit) = (stay.fd(), stay.limit(libc::SO_RCVTIMEO));
    stay.sleeps(READS);
    let r = sleep_for_more(stay, fd, limit, there);
    stay.sleeps(0);
    r
}

fn sleep_for_more(stay: &Stay, mut fd: i32, limit: Option<u64>, there: impl Fn() -> bool) -> bool {
    let conn = stay.conn;
    loop {
        let unarmed = conn.is_unarmed();
        let seen = conn.doorbells_seen();
        conn.arm_data();
        if there() {
            return true;
        }
        if conn.receives_are_shut() {
            // By another thread: TCP gives what it has. The kernel would tell of it for ever, and not let us sleep.
            return false;
        }
        let held = conn.clear_stale(fd, seen, true, false) || unarmed;
        let left = limit.map(|l| l.saturating_sub(sys::now_ns()));
        if left == Some(0) {
            return false;
        }
        let unmarked = marked(conn);
        if unmarked && conn.queued(fd) > 0 {
            return true;
        }
        let left = if held || unmarked { Some(left.unwrap_or(UNMARKED_NS).min(UNMARKED_NS)) } else { left };
        let t = left.map(timespec);
        let mut p = libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
        let slept = now_us();
        // SAFETY: pointers to live locals.
        let r = unsafe { next::ppoll(&raw mut p, 1, t.as_ref().map_or(core::ptr::null(), |t| t), core::ptr::null()) };
        if r < 0 {
            return false;
        }
        fd = stay.fd();
        if r > 0 {
            conn.woken(slept);
        }
        conn.kernel_end(p.revents as u16 as u32);
        if r > 0 && (!conn.receives_on_ring() || there()) {
            return true;
        }
    }
}

/// A short sleep of a wait that nobody can wake.
fn nap_unarmed(stay: &mut Stay) -> Result<Option<Got>, i32> {
    let left = time_left(stay)?.map_or(UNMARKED_NS, |left| left.min(UNMARKED_NS));
    let mut p = libc::pollfd { fd: stay.fd(), events: 0, revents: 0 };
    // SAFETY: pointers to live locals.
    let r = unsafe { next::ppoll(&raw mut p, 1, &timespec(left), core::ptr::null()) };
    if r < 0 && !is_restarted(stay.limit(libc::SO_RCVTIMEO)) { Err(errno()) } else { Ok(None) }
}

/// What a receive that has waited before has left of its time limit, if there is one; EAGAIN if nothing.
fn time_left(stay: &mut Stay) -> Result<Option<u64>, i32> {
    match stay.limit(libc::SO_RCVTIMEO).map(|limit| limit.saturating_sub(sys::now_ns())) {
        Some(0) => Err(libc::EAGAIN),
        left => Ok(left),
    }
}

fn sleep_for_data(stay: &mut Stay, fd: i32) -> Result<Option<Got>, i32> {
    let conn = stay.conn;
    // Looked at before arming, which comes to nothing in that state.
    let unarmed = conn.is_unarmed();
    let seen = conn.doorbells_seen();
    conn.arm_data();
    if conn.ready(fd) & IN != 0 {
        return Ok(None);
    }
    if unarmed {
        return nap_unarmed(stay);
    }
    if conn.clear_stale(fd, seen, true, false) {
        // The byte belongs to a writer that is waking up: let it.
        stay.held += 1;
        if stay.held > YIELDS {
            return nap_unarmed(stay);
        }
        std::thread::yield_now();
        return Ok(None);
    }
    stay.held = 0;
    let (mut byte, mut flags) = (0u8, libc::MSG_PEEK);
    let slept = now_us();
    // A second sleep of one call, which in the kernel's receive would begin its time limit anew.
    if stay.since.is_some()
        && let Some(left) = time_left(stay)?
    {
        let mut p = libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
        // SAFETY: pointers to live locals.
        match unsafe { next::ppoll(&raw mut p, 1, &timespec(left), core::ptr::null()) } {
            0 => return Err(libc::EAGAIN),
            1.. => flags |= libc::MSG_DONTWAIT,
            _ => return Err(errno()),
        }
    }
    stay.since.get_or_insert_with(sys::now_ns);
    let fd = stay.fd();
    // SAFETY: one writable byte. The next definition is used because this call is a cancellation point.
    let r = unsafe { next::recv(fd, (&raw mut byte).cast(), 1, flags) };
    let e = if r < 0 { errno() } else { 0 };
    match (r, e) {
        (1, _) => {
            conn.woken(slept);
            if !conn.has_news() {
                conn.check_stray(stay.fd());
            }
            Ok(None)
        }
        (0, _) => {
            conn.kernel_end(smc::conn::RDHUP);
            Ok(None)
        }
        // Another thread was faster.
        (_, libc::EAGAIN) if flags & libc::MSG_DONTWAIT != 0 => Ok(None),
        (_, libc::EINTR | libc::EAGAIN) => Err(e),
        _ => match conn.kernel_error(e) {
            Got::Empty => Ok(None),
            got => Ok(Some(got)),
        },
    }
}

/// Waits until there may be room. Err(errno) ends the call, which with `begun` has sent something already.
pub fn for_space(stay: &mut Stay, dontwait: bool, begun: bool) -> Result<(), i32> {
    let (conn, fd) = (stay.conn, stay.fd());
    if dontwait || stay.is_nonblocking() {
        // Armed, because whoever learns that there is no room waits for it next.
        conn.arm_space();
        conn.keep_bells_flowing(fd);
        return if conn.ready(fd) & OUT != 0 { Ok(()) } else { Err(libc::EAGAIN) };
    }
    // Not armed yet: the peer would ring for somebody who looks anyway.
    if conn.peer_elsewhere()
        && let Some(spin) = Spin::try_now(&conn.spin)
        && spin.until(|| conn.ready(fd) & OUT != 0)
    {
        return Ok(());
    }
    stay.sleeps(WRITES);
    let limit = stay.limit(libc::SO_SNDTIMEO);
    let r = sleep_for_space(stay, fd, begun, limit);
    stay.sleeps(0);
    r
}

/// Longest sleep of a writer: another thread may shut the socket, of which the kernel does not tell who waits for doorbells.
const WRITER_NS: u64 = 20_000_000;

fn sleep_for_space(stay: &Stay, mut fd: i32, begun: bool, limit: Option<u64>) -> Result<(), i32> {
    let conn = stay.conn;
    let mut nap = 1_000_000u64;
    // The kernel reports a side that is shut, or payload that nobody fetches, for ever: asked about it, it would not let
    // us sleep.
    let mut noisy = false;
    loop {
        let seen = conn.doorbells_seen();
        conn.arm_space();
        if conn.ready(fd) & OUT != 0 {
            return Ok(());
        }
        let held = conn.clear_stale(fd, seen, false, true);
        let now = sys::now_ns();
        if limit.is_some_and(|l| now >= l) {
            return Err(libc::EAGAIN);
        }
        let mut left = limit.map_or(u64::MAX, |l| l - now).min(WRITER_NS);
        if conn.space_is_silent() || held || noisy {
            left = left.min(nap);
            // Where doorbells do not get through, the peer may be fast all the same.
            nap = (nap * 2).min(if conn.is_muffled() { 1_000_000 } else { 10_000_000 });
        }
        let t = libc::timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
        let events = if held || noisy { 0 } else { libc::POLLIN | libc::POLLRDHUP };
        let mut p = libc::pollfd { fd, events, revents: 0 };
        if !conn.sends_on_ring() {
            p.events |= libc::POLLOUT;
        }
        let slept = now_us();
        // SAFETY: pointers to live locals.
        let r = unsafe { next::ppoll(&raw mut p, 1, &raw const t, core::ptr::null()) };
        let e = if r < 0 { errno() } else { 0 };
        if r < 0 {
            // poll is never restarted after a signal, send is if its handler says so, it has no time limit and nothing to
            // return.
            if e == libc::EINTR && !begun && limit.is_none() && crate::calls::process::restarts() {
                continue;
            }
            return Err(e);
        }
        fd = stay.fd();
        if p.revents & libc::POLLIN != 0 {
            conn.woken(slept);
        }
        noisy = r > 0 && (conn.doorbells_due() == 0 || conn.has_payload_left());
        conn.kernel_end(p.revents as u16 as u32);
    }
}
