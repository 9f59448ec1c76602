//! Waiting: spin briefly where it pays, then sleep in a real kernel call on the real descriptor, so
//! that signals, timeouts, cancellation and resets are the kernel's.
#![allow(unsafe_code)]

mod limits;

pub use limits::{Refused, duration};
use limits::{is_restarted, limit_of};

use core::sync::atomic::Ordering::*;

use smc::conn::sleepers::{READS, Seat, WRITES};
use smc::conn::wakeups::now_us;
use smc::conn::{Conn, Flushed, Got, IN, OUT, rest};
use smc::sys;

use crate::bell::{LIMITS, Sleep, Woken};
use crate::epoll;
use crate::fds::{self, Port, drain};
use crate::kernel::{self, poll_one};
use crate::spin::{self, Spin};

fn now() -> u64 {
    kernel::get().now_ns()
}

/// A call that may have to wait on a connection, from its first wait to its end: if another thread
/// closes the connection meanwhile, that takes effect when the call has ended, as in the kernel.
pub struct Stay {
    /// The connection.
    pub conn: &'static Conn,
    /// Which of the connections that its place in the table has had.
    generation: u32,
    fd: i32,
    seat: Option<Seat<'static>>,
    /// O_NONBLOCK at its first wait: who changes it meanwhile, in another thread or process, means
    /// later calls.
    nonblocking: Option<bool>,
    /// When it began to wait, or began if it insists on more than a byte: its time limit counts
    /// from here.
    since: Option<u64>,
    /// The time limit, which the kernel reads once in a call, too.
    limit: Option<Option<u64>>,
    /// Sleeps given up in turn because a doorbell was left to another thread.
    held: u32,
}

/// So often it yields to the thread that the doorbell is for before it takes naps: that thread may
/// be put off for long.
const YIELDS: u32 = 10;

impl Stay {
    /// A call on this connection that has not waited yet.
    #[inline(always)]
    pub fn new(port: Port) -> Self {
        let Port { conn, fd, .. } = port;
        let generation = conn.identity.gen_.load(Relaxed);
        let (nonblocking, since, limit) = (None, None, None);
        Self { conn, generation, fd, seat: None, nonblocking, since, limit, held: 0 }
    }

    /// Whether the connection was closed by another thread and did not stay for this call: its place
    /// in the table may be another one's, of which nothing here is true.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.conn.identity.gen_.load(Relaxed) != self.generation
    }

    /// Of a call whose time limit holds for all of it.
    pub fn begin(&mut self) {
        self.since = Some(now());
    }

    /// Whether the call must not wait because of its socket.
    pub fn is_nonblocking(&mut self) -> bool {
        let fd = self.fd();
        *self.nonblocking.get_or_insert_with(|| sys::is_nonblocking(fd))
    }

    /// Where SO_RCVTIMEO or SO_SNDTIMEO ends the call.
    fn limit(&mut self, option: i32) -> Option<u64> {
        let (fd, since) = (self.fd(), *self.since.get_or_insert_with(now));
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

    /// The connection, which is at `index`, by that descriptor.
    #[inline]
    pub fn port(&self, index: u32) -> Port {
        Port { index, conn: self.conn, fd: self.fd() }
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

impl Drop for Stay {
    #[inline(always)]
    fn drop(&mut self) {
        let Some(seat) = self.seat.take() else { return };
        if self.is_gone() {
            // Who has the place now may sit there.
            core::mem::forget(seat);
        } else {
            drop(seat);
            fds::call_ended(self.conn);
        }
    }
}

/// Looks at the ring, of a receive that probably blocks, before the fcntl that asks for O_NONBLOCK;
/// the reply often arrives in that time.
const FIRST_LOOKS: u32 = 16;

/// Waits until there may be something to read. Err(errno) ends the call: EAGAIN, EINTR, or an end
/// error; Ok(None) means look again, Ok(Some(got)) is the end of the stream.
pub fn for_data(stay: &mut Stay, dontwait: bool) -> Result<Option<Got>, i32> {
    let nap = drain::look();
    let (conn, fd) = (stay.conn, stay.fd());
    // News need not be data that can be had: in front of it payload may be missing that a peer says
    // it has sent over TCP. To say "look again" for that would keep a call that must not wait for
    // as long as the peer likes.
    let is_soon_there = || (0..FIRST_LOOKS).any(|_| conn.has_news()) && conn.ready(fd) & IN != 0;
    if !dontwait && spin::may_block(&conn.identity.spin) && conn.peer_elsewhere() && is_soon_there()
    {
        return Ok(None);
    }
    let is_nonblocking = |stay: &mut Stay| {
        let is = stay.is_nonblocking();
        spin::note(&conn.identity.spin, !is);
        is
    };
    if dontwait || is_nonblocking(stay) {
        conn.look_now_and_then(fd, sys::ticks());
        return if conn.ready(fd) & IN != 0 { Ok(None) } else { Err(libc::EAGAIN) };
    }
    if conn.peer_elsewhere()
        && let Some(spin) = Spin::try_now(&conn.identity.spin)
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
    let r = match nap {
        Some(_) if conn.ready(fd) & IN == 0 => nap_unarmed(stay),
        _ => sleep_for_data(stay, fd),
    };
    if stay.is_gone() {
        return Err(libc::EBADF);
    }
    stay.sleeps(0);
    r
}

/// How often a wait looks by itself, in nanoseconds, while the kernel's low-water mark is above
/// what it waits for.
const UNMARKED_NS: u64 = 1_000_000;

/// Whether the kernel's poll goes by the application's mark: until the exposure.
fn marked(conn: &Conn) -> bool {
    conn.identity.user_rcvlowat.load(Relaxed) > 1 && !conn.is_exposed()
}

/// How long a receive waits for one of another thread, which began before the upgrade, before it
/// looks again.
const TURN_NS: u64 = 10_000_000;

/// Waits while another thread is inside the kernel's receive; Err(errno) when this one must fail.
pub fn for_turn(stay: &mut Stay) -> Result<(), i32> {
    stay.is_inside();
    let limit = stay.limit(libc::SO_RCVTIMEO);
    let left = limit.map_or(TURN_NS, |l| l.saturating_sub(now()).min(TURN_NS));
    if left == 0 {
        return Err(libc::EAGAIN);
    }
    match poll_one(stay.fd(), libc::POLLIN, Some(left)) {
        Err(e) if !is_restarted(e, limit) => Err(e),
        _ => Ok(()),
    }
}

/// Waits until the kernel's socket is readable (with `any`, whatever its mark), or has one of the
/// events `also`; Err(errno) when the receive must fail.
pub fn for_kernel(stay: &mut Stay, also: i16, any: bool) -> Result<(), i32> {
    let (conn, fd) = (stay.conn, stay.fd());
    let limit = stay.limit(libc::SO_RCVTIMEO);
    loop {
        let mut left = limit.map(|l| l.saturating_sub(now()));
        if any && marked(conn) {
            if conn.queued(fd) > 0 {
                return Ok(());
            }
            left = Some(left.unwrap_or(UNMARKED_NS).min(UNMARKED_NS));
        }
        match poll_one(fd, libc::POLLIN | libc::POLLRDHUP | also, left) {
            Ok(0) if limit.is_none_or(|l| now() < l) => continue,
            Ok(0) => return Err(libc::EAGAIN),
            Ok(_) => return Ok(()),
            Err(e) if is_restarted(e, limit) && !conn.is_closed() => continue,
            Err(e) => return Err(e),
        }
    }
}

/// Whether the kernel's socket has bytes, or has ended.
fn is_readable(fd: i32) -> bool {
    poll_one(fd, libc::POLLIN | libc::POLLRDHUP, Some(0)) != Ok(0)
}

/// A short sleep of a call in front of bytes that are too few for it; false when no more of them
/// will come in time, or a signal did.
pub fn for_a_while(stay: &mut Stay) -> bool {
    if stay.limit(libc::SO_RCVTIMEO).is_some_and(|limit| now() >= limit) {
        return false;
    }
    poll_one(stay.fd(), libc::POLLRDHUP, Some(UNMARKED_NS)) == Ok(0)
}

/// Waits for the rest of a receive that has something already; false when it must return that.
pub fn for_more(stay: &mut Stay, there: impl Fn() -> bool) -> bool {
    if stay.is_nonblocking() {
        return false;
    }
    let (fd, limit) = (stay.fd(), stay.limit(libc::SO_RCVTIMEO));
    stay.sleeps(READS);
    let r = sleep_for_more(stay, fd, limit, there);
    if stay.is_gone() {
        return false;
    }
    stay.sleeps(0);
    r
}

fn sleep_for_more(stay: &Stay, mut fd: i32, limit: Option<u64>, there: impl Fn() -> bool) -> bool {
    let conn = stay.conn;
    loop {
        let unarmed = conn.is_unarmed();
        let seen = conn.doorbells_seen();
        let unarmed = !conn.arm_data() || unarmed;
        if there() {
            return true;
        }
        if conn.receives_are_shut() {
            // By another thread: TCP gives what it has. The kernel would tell of it for ever, and
            // not let us sleep.
            return false;
        }
        let held = conn.clear_stale(fd, seen, true, false) || unarmed;
        if held && there() {
            return true;
        }
        // The peer may send the rest only when it has what it gave back, and rings for none of that.
        let held = held || conn.flush_takeback(fd) != Flushed::All;
        let left = limit.map(|l| l.saturating_sub(now()));
        if left == Some(0) {
            return false;
        }
        let unmarked = marked(conn);
        if unmarked && conn.queued(fd) > 0 {
            return true;
        }
        let left = if held || unmarked {
            Some(left.unwrap_or(UNMARKED_NS).min(UNMARKED_NS))
        } else {
            left
        };
        let slept = now_us();
        let Ok(told) = poll_one(fd, libc::POLLIN | libc::POLLRDHUP, left) else { return false };
        if stay.is_gone() {
            return false;
        }
        fd = stay.fd();
        if told != 0 {
            conn.woken(slept);
        }
        conn.kernel_end(told as u16 as u32);
        if told != 0 && (!conn.receives_on_ring() || there()) {
            return true;
        }
    }
}

/// A short sleep of a wait that nobody can wake.
fn nap_unarmed(stay: &mut Stay) -> Result<Option<Got>, i32> {
    let left = time_left(stay)?.map_or(UNMARKED_NS, |left| left.min(UNMARKED_NS));
    match poll_one(stay.fd(), 0, Some(left)) {
        Err(e) if !is_restarted(e, stay.limit(libc::SO_RCVTIMEO)) => Err(e),
        _ => Ok(None),
    }
}

/// What a receive that has waited before has left of its time limit, if there is one; EAGAIN if
/// nothing.
fn time_left(stay: &mut Stay) -> Result<Option<u64>, i32> {
    match stay.limit(libc::SO_RCVTIMEO).map(|limit| limit.saturating_sub(now())) {
        Some(0) => Err(libc::EAGAIN),
        left => Ok(left),
    }
}

/// A sleep of a receive that a bell may end.
fn sleep_by_bell(stay: &mut Stay, bell: &mut Sleep, port: Port) -> Result<Woken, i32> {
    // SYNC: limits. In front of the question: what is set behind the answer changes the number.
    let (limits, slept) = (LIMITS.load(Acquire), now_us());
    // What the call has asked before stays what it was: for the next one it may have changed since.
    let asked = stay.limit.is_some();
    let known = !asked && bell.has_no_limit(port);
    let left = if known { None } else { time_left(stay)? };
    let woken = bell.receive(port, left);
    if !asked && !known && left.is_none() {
        bell.found_no_limit(limits);
    }
    match woken {
        Ok(Woken::Time) => Err(libc::EAGAIN),
        Err(libc::EINTR) => {
            if kernel::get().restarts() && left.is_none() {
                Ok(Woken::Bell)
            } else {
                Err(libc::EINTR)
            }
        }
        woken => {
            port.conn.woken(slept);
            woken
        }
    }
}

fn sleep_for_data(stay: &mut Stay, fd: i32) -> Result<Option<Got>, i32> {
    let conn = stay.conn;
    // Looked at before arming, which comes to nothing in that state.
    let mut unarmed = conn.is_unarmed();
    let seen = conn.doorbells_seen();
    let port = stay.port(smc::table::index_of(conn) as u32);
    let mut bell = Sleep::begin().filter(Sleep::restarts).and_then(|mut bell| {
        bell.only_on(&[port]);
        bell.covers(port).then_some(bell)
    });
    match &mut bell {
        Some(bell) => bell.arm(),
        // Who cannot be told may have been killed, which the kernel knows at once.
        None if !conn.arm_data() => {
            unarmed = !conn.kernel_end(sys::poll_now(fd, libc::POLLRDHUP) as u16 as u32);
        }
        None => {}
    }
    if conn.ready(fd) & IN != 0 {
        return Ok(None);
    }
    // The peer has taken its ring back, and is about to return to TCP itself. It does not ring for
    // that, and may wait for the bytes first.
    if unarmed || conn.owes() {
        return nap_unarmed(stay);
    }
    if conn.clear_stale(fd, seen, true, false) {
        // There is something by now, or the byte belongs to a writer that is waking up: let it.
        stay.held += 1;
        if stay.held > YIELDS {
            return nap_unarmed(stay);
        }
        sys::yield_now();
        return Ok(None);
    }
    stay.held = 0;
    let mut flags = 0;
    let slept = now_us();
    if let Some(bell) = &mut bell {
        match sleep_by_bell(stay, bell, port)? {
            Woken::Kernel(_) if stay.is_gone() => return Err(libc::EBADF),
            Woken::Kernel(events) => {
                conn.kernel_end(events);
                flags = libc::MSG_DONTWAIT;
            }
            _ => return Ok(None),
        }
    }
    // A second sleep of one call, which in the kernel's receive would begin its time limit anew.
    if flags == 0
        && stay.since.is_some()
        && let Some(left) = time_left(stay)?
    {
        match poll_one(fd, libc::POLLIN | libc::POLLRDHUP, Some(left))? {
            0 => return Err(libc::EAGAIN),
            _ => flags = libc::MSG_DONTWAIT,
        }
    }
    stay.since.get_or_insert_with(now);
    let fd = stay.fd();
    let r = kernel::get().peek(fd, flags);
    if stay.is_gone() {
        return Err(libc::EBADF);
    }
    match (r, -r as i32) {
        (1.., _) => {
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
        (_, libc::EAGAIN) if flags != 0 => Ok(None),
        (_, e @ (libc::EINTR | libc::EAGAIN)) => Err(e),
        (_, e) => match conn.kernel_error(e) {
            Got::Empty => Ok(None),
            got => Ok(Some(got)),
        },
    }
}

/// Waits until there may be room. Err(errno) ends the call, which with `begun` has sent something
/// already.
pub fn for_space(stay: &mut Stay, dontwait: bool, begun: bool) -> Result<(), i32> {
    drain::look();
    let (conn, fd) = (stay.conn, stay.fd());
    if dontwait || stay.is_nonblocking() {
        // Armed, because whoever learns that there is no room waits for it next.
        conn.arm_space();
        conn.keep_bells_flowing(fd);
        // A muffled connection was not armed, so that no new arm tells an edge-triggered set of this
        // refusal: it would never report the room that comes.
        if conn.began_to_wait() || conn.is_muffled() {
            epoll::on_more_room(smc::table::index_of(conn) as u32);
        }
        return if conn.ready(fd) & OUT != 0 { Ok(()) } else { Err(libc::EAGAIN) };
    }
    // Not armed yet: the peer would ring for somebody who looks anyway.
    if conn.peer_elsewhere()
        && let Some(spin) = Spin::try_now(&conn.identity.spin)
        && spin.until(|| conn.ready(fd) & OUT != 0)
    {
        return Ok(());
    }
    stay.sleeps(WRITES);
    let limit = stay.limit(libc::SO_SNDTIMEO);
    let r = sleep_for_space(stay, fd, begun, limit);
    if stay.is_gone() {
        return Err(libc::EBADF);
    }
    stay.sleeps(0);
    r
}

/// Waits until what is to be sent again over TCP is there, in front of what is sent now.
#[cold]
#[inline(never)]
pub fn for_order(port: Port, dontwait: bool) -> Result<(), i32> {
    let mut stay = Stay::new(port);
    loop {
        match port.conn.flush_takeback(stay.fd()) {
            Flushed::All => return Ok(()),
            Flushed::Held => return Err(libc::EAGAIN),
            Flushed::Full => for_space(&mut stay, dontwait, false)?,
        }
    }
}

/// What stands in front of a receive by the kernel.
pub enum Ahead {
    /// Nothing.
    Clear,
    /// Bytes that are to be sent again, for which the socket has no room. There is something to
    /// receive, or the call must not wait: it must not sleep in the kernel.
    Owed,
    /// Such bytes, and receives come from the ring by now.
    Again,
}

/// Sends what the peer gave back, in front of a receive by the kernel. The peer may answer only
/// when it has that, and may read on only when what it sent is received: so this waits for either.
pub fn for_owed(stay: &mut Stay, dontwait: bool) -> Result<Ahead, i32> {
    let (conn, owed) = (stay.conn, stay.conn.owes());
    loop {
        match conn.flush_takeback(stay.fd()) {
            Flushed::All => {
                if owed {
                    epoll::on_reverted(smc::table::index_of(conn) as u32);
                }
                return Ok(Ahead::Clear);
            }
            // Whoever was interrupted sends on only when the handler has ended.
            Flushed::Held => return Ok(Ahead::Clear),
            Flushed::Full => {}
        }
        // A close in another thread takes effect when this call has ended.
        stay.is_inside();
        if dontwait || stay.is_nonblocking() || is_readable(stay.fd()) {
            return Ok(Ahead::Owed);
        }
        for_kernel(stay, libc::POLLOUT, false)?;
        if conn.receives_on_ring() {
            return Ok(Ahead::Again);
        }
    }
}

/// Longest sleep of a writer: another thread may shut the socket, of which the kernel does not tell
/// who waits for doorbells.
const WRITER_NS: u64 = 20_000_000;

fn sleep_for_space(stay: &Stay, mut fd: i32, begun: bool, limit: Option<u64>) -> Result<(), i32> {
    let conn = stay.conn;
    let mut nap = 1_000_000u64;
    // The kernel reports a side that is shut, or payload that nobody fetches, for ever: asked about
    // it, it would not let us sleep.
    let mut noisy = false;
    loop {
        drain::look();
        let seen = conn.doorbells_seen();
        conn.arm_space();
        if conn.ready(fd) & OUT != 0 {
            return Ok(());
        }
        let patience = conn.patience(fd);
        if patience.is_none() && conn.is_broken() {
            return Ok(());
        }
        let held = conn.clear_stale(fd, seen, false, true);
        if held && conn.ready(fd) & OUT != 0 {
            return Ok(());
        }
        let now = now();
        if limit.is_some_and(|l| now >= l) {
            return Err(libc::EAGAIN);
        }
        let most = patience.map_or(WRITER_NS, |left| left.min(WRITER_NS));
        let mut left = limit.map_or(most, |l| (l - now).min(most));
        if conn.space_is_silent() || held || noisy {
            left = left.min(nap);
            // Where doorbells do not get through, the peer may be fast all the same.
            nap = (nap * 2).min(if conn.is_muffled() { 1_000_000 } else { 10_000_000 });
        }
        let mut events = if held || noisy { 0 } else { libc::POLLIN | libc::POLLRDHUP };
        if !conn.sends_on_ring() {
            events |= libc::POLLOUT;
        }
        let slept = now_us();
        let told = match poll_one(fd, events, Some(left)) {
            Ok(told) => told,
            // poll is never restarted after a signal, send is if its handler says so, it has no
            // time limit and nothing to return.
            Err(e) if !begun && is_restarted(e, limit) => continue,
            Err(e) => return Err(e),
        };
        if stay.is_gone() {
            // Closed by another thread, past this call: the number is no descriptor, of which poll
            // tells at once, again and again.
            return Err(libc::EBADF);
        }
        fd = stay.fd();
        if told & libc::POLLIN != 0 {
            conn.woken(slept);
        }
        noisy = told != 0 && (conn.doorbells_due() == 0 || conn.has_payload_left());
        conn.kernel_end(told as u16 as u32);
    }
}

#[cfg(test)]
mod tests;
