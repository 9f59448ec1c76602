//! Sets of descriptors to wait for, as `epoll` has them: rsockets and others in one wait.
//!
//! A set is two epoll sets of the kernel. The inner one has the members that the kernel knows:
//! other descriptors, and rsockets that listen or are datagrams. The outer one, whose number is
//! that of the set, has the inner one, the events of streams, and a bell for changes made while
//! somebody sleeps. Whether a stream is ready only the stream knows, so a wait looks at each; who
//! then sleeps has asked each for an event.
//!
//! librdmacm has a thread for each set that sleeps in `rpoll`; here the waiting thread itself does.
#![allow(unsafe_code)]

mod member;

use crate::hidden::Hidden;
use crate::numbers::Numbers;
use crate::socket::{Socket, last_error};
use crate::{config, kernel, poll, socket, table};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use member::Member;
use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use shm::Errno;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// In the outer set: the bell. Others there are numbers of streams, or [`INNER`].
const BELL: u64 = u64::MAX;
const INNER: u64 = u64::MAX - 1;
/// Events of streams that one sleep learns of; the others are found by the look behind it.
const HEARD: usize = 64;

/// See the head of this file.
pub struct Set {
    outer: OwnedFd,
    inner: Hidden,
    bell: Hidden,
    sleepers: AtomicU32,
    closed: AtomicBool,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    all: BTreeMap<RawFd, Member>,
    /// Behind this one the next look at streams begins, so that the first do not keep the others
    /// from a short array for ever.
    last: RawFd,
    kernel_first: bool,
}

/// A child of a fork begins without sets, whichever lock another thread of the parent has held: its
/// generation has a table of its own.
static SETS: [Mutex<BTreeMap<RawFd, Arc<Set>>>; table::GENERATIONS] =
    [const { Mutex::new(BTreeMap::new()) }; table::GENERATIONS];
/// Sets that were ever made: without any, nobody needs to look.
static MADE: AtomicU32 = AtomicU32::new(0);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic leaves behind is whole: entries are put in and taken out at once.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sets() -> MutexGuard<'static, BTreeMap<RawFd, Arc<Set>>> {
    locked(&SETS[table::generation() % table::GENERATIONS])
}

/// `repoll_create`: the number of a new set. `flags` may have EPOLL_CLOEXEC, and O_NONBLOCK, which
/// means nothing here.
pub fn create(flags: i32) -> Result<RawFd, Errno> {
    if flags & !(libc::EPOLL_CLOEXEC | libc::O_NONBLOCK) != 0 {
        return Err(Errno::INVAL);
    }
    let outer = epoll::create(epoll::CreateFlags::from_bits_retain(
        (flags & libc::EPOLL_CLOEXEC).cast_unsigned(),
    ))?;
    let inner = Hidden::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
    let bell = Hidden::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    for (fd, token) in [(inner.as_fd(), INNER), (bell.as_fd(), BELL)] {
        epoll::add(&outer, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
    }
    let number = outer.as_raw_fd();
    let set = Set {
        outer,
        inner,
        bell,
        sleepers: AtomicU32::new(0),
        closed: AtomicBool::new(false),
        members: Mutex::default(),
    };
    MADE.fetch_add(1, Ordering::Relaxed);
    // Not within the condition, which would hold the table's lock while descriptors are closed.
    let old = sets().insert(number, Arc::new(set));
    let generation = table::generation() as u32;
    if KNOWN_IN.swap(generation, Ordering::Relaxed) != generation {
        KNOWN.clear();
    }
    KNOWN.mark(number, true);
    if let Some(old) = old
        && let Ok(old) = Arc::try_unwrap(old)
    {
        // It was closed by the kernel's name, and its number is the new one's.
        let _ = old.outer.into_raw_fd();
    }
    Ok(number)
}

/// The set of this number: EINVAL for another descriptor, EBADF for none.
pub fn find(fd: RawFd) -> Result<Arc<Set>, Errno> {
    sets().get(&fd).cloned().ok_or_else(|| {
        // SAFETY: only asks.
        if unsafe { kernel::fcntl(fd, libc::F_GETFD, 0) } < 0 { Errno::BADF } else { Errno::INVAL }
    })
}

/// Ends a set; its members go on. EBADF if there is none.
pub fn close(fd: RawFd) -> Result<(), Errno> {
    let set = sets().remove(&fd).ok_or(Errno::BADF)?;
    KNOWN.mark(fd, false);
    // Who sleeps in it keeps the number until it has seen that.
    set.closed.store(true, Ordering::SeqCst);
    set.ring();
    Ok(())
}

/// `rclose`: of a set, or of an rsocket, which then is no member any more.
pub fn close_any(fd: RawFd) -> Result<(), Errno> {
    if MADE.load(Ordering::Relaxed) != 0 {
        if close(fd).is_ok() {
            return Ok(());
        }
        each_with(fd, |members| {
            members.all.remove(&fd);
        });
    }
    socket::close(fd)
}

/// To be called when an rsocket has begun to listen, or to connect: who sleeps waits for other
/// things now.
pub fn changed(fd: RawFd) {
    if MADE.load(Ordering::Relaxed) != 0 {
        each_with(fd, |_| {});
    }
}

fn each_with(fd: RawFd, f: impl Fn(&mut Members)) {
    for set in sets().values() {
        let mut members = locked(&set.members);
        if members.all.contains_key(&fd) {
            f(&mut members);
            set.ring();
        }
    }
}

/// A TCP socket of this number has become an rsocket: where it is a member, the kernel has watched
/// it until now.
pub fn taken_over(fd: RawFd, socket: &'static Socket) {
    if MADE.load(Ordering::Relaxed) == 0 {
        return;
    }
    for set in sets().values() {
        let mut members = locked(&set.members);
        if let Some(member) = members.all.get_mut(&fd) {
            if !member.take_over(set, fd, socket) {
                members.all.remove(&fd);
            }
            set.ring();
        }
    }
}

/// Whether it is a set of this process. Without the table's lock, which a thread may hold that
/// closes a descriptor.
pub fn is_known(fd: RawFd) -> bool {
    let generation = table::generation() as u32;
    KNOWN_IN.load(Ordering::Relaxed) == generation && KNOWN.has(fd)
}

/// Those of all sets.
pub fn numbers() -> Vec<RawFd> {
    sets().keys().copied().collect()
}

/// The generation whose sets they are: a child of a fork has none of its parent's.
static KNOWN_IN: AtomicU32 = AtomicU32::new(0);
/// Sets with higher numbers are not told from other descriptors.
static KNOWN: Numbers = Numbers::new();

/// What a thread that is about to sleep has prepared.
#[derive(Default)]
struct Sleep {
    entered: Vec<&'static Socket>,
    /// Beside the outer set: what rsockets wait for that are being opened; and whether there are any.
    openings: Vec<libc::pollfd>,
    is_opening: bool,
}

impl Set {
    /// `EPOLL_CTL_ADD`: EEXIST if it is a member, EINVAL for a set.
    pub fn add(&self, fd: RawFd, events: u32, data: u64) -> Result<(), Errno> {
        let socket = self.admits(fd)?;
        let mut members = locked(&self.members);
        if socket.is_some() && members.all.get(&fd).is_some_and(Member::is_rsocket) {
            return Err(Errno::EXIST);
        }
        let member = Member::new(socket, events, data);
        if !member.is_rsocket() {
            member.tell(self, libc::EPOLL_CTL_ADD, fd)?;
        }
        members.all.insert(fd, member);
        self.ring();
        Ok(())
    }

    /// `EPOLL_CTL_MOD`: ENOENT if it is no member. What it has shown by an edge it shows again, and
    /// after EPOLLONESHOT it takes part again.
    pub fn modify(&self, fd: RawFd, events: u32, data: u64) -> Result<(), Errno> {
        self.admits(fd)?;
        let mut members = locked(&self.members);
        let member = members.all.get_mut(&fd).ok_or(Errno::NOENT)?;
        let mut new = Member::new(None, events, data);
        if member.is_rsocket() {
            member.unwatch(self, fd);
            core::mem::swap(&mut new.kind, &mut member.kind);
        } else {
            new.tell(self, libc::EPOLL_CTL_MOD, fd)?;
        }
        *member = new;
        self.ring();
        Ok(())
    }

    /// `EPOLL_CTL_DEL`: ENOENT if it is no member.
    pub fn remove(&self, fd: RawFd) -> Result<(), Errno> {
        self.admits(fd)?;
        let member = locked(&self.members).all.remove(&fd).ok_or(Errno::NOENT)?;
        let done = member.leave(self, fd);
        self.ring();
        done
    }

    /// The rsocket of a number that may be a member, if it is one.
    fn admits(&self, fd: RawFd) -> Result<Option<&'static Socket>, Errno> {
        if fd < 0 {
            return Err(Errno::BADF);
        }
        // A set in a set would have to be asked like a stream, and could contain itself.
        if sets().contains_key(&fd) {
            return Err(Errno::INVAL);
        }
        Ok(table::find(fd))
    }

    /// `repoll_wait`, as `epoll_pwait`: the number of events in `out`, after at most `timeout` (None:
    /// for ever).
    pub fn wait(
        &self,
        out: &mut [libc::epoll_event],
        timeout: Option<Duration>,
        mask: Option<&libc::sigset_t>,
    ) -> Result<usize, Errno> {
        if out.is_empty() {
            return Err(Errno::INVAL);
        }
        let start = Instant::now();
        let left = |limit: Duration| limit.saturating_sub(start.elapsed());
        let spin = config::defaults().polling;
        let mut is_new = mask.is_some();
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return Err(Errno::BADF);
            }
            let found = self.look(out)?;
            let over = timeout.is_some_and(|t| left(t).is_zero());
            if found != 0 || over {
                return Ok(found);
            }
            if core::mem::take(&mut is_new) {
                poll::let_signals_in(mask)?;
            }
            if left(spin).is_zero() {
                self.sleep(timeout.map(left), mask)?;
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// One look at everything.
    fn look(&self, out: &mut [libc::epoll_event]) -> Result<usize, Errno> {
        let mut members = locked(&self.members);
        members.kernel_first ^= true;
        let kernel_first = members.kernel_first;
        let mut found = 0;
        if kernel_first {
            found = self.ask_kernel(&members, out)?;
        }
        found += self.ask_rsockets(&mut members, &mut out[found..])?;
        if !kernel_first {
            found += self.ask_kernel(&members, &mut out[found..])?;
        }
        Ok(found)
    }

    fn ask_kernel(&self, members: &Members, out: &mut [libc::epoll_event]) -> Result<usize, Errno> {
        let n = epoll_wait(self.inner.as_fd(), out, 0)?;
        let mut kept = 0;
        for i in 0..n {
            // One whose number was closed by the kernel's name is in the kernel's set as long as
            // another descriptor has the file.
            if let Some(member) = members.all.get(&(out[i].u64 as RawFd)) {
                out[kept] = libc::epoll_event { events: out[i].events, u64: member.data };
                kept += 1;
            }
        }
        Ok(kept)
    }

    fn ask_rsockets(
        &self,
        members: &mut Members,
        out: &mut [libc::epoll_event],
    ) -> Result<usize, Errno> {
        let mut found = 0;
        let begin = members.last;
        let behind = (Bound::Excluded(begin), Bound::Unbounded);
        for range in [behind, (Bound::Unbounded, Bound::Included(begin))] {
            for (&fd, member) in members.all.range_mut(range) {
                if found == out.len() {
                    return Ok(found);
                }
                let events = member.look(self, fd)?;
                if events != 0 {
                    out[found] = libc::epoll_event { events, u64: member.data };
                    found += 1;
                    members.last = fd;
                }
            }
        }
        Ok(found)
    }

    /// Sleeps until something may have changed.
    fn sleep(&self, timeout: Option<Duration>, mask: Option<&libc::sigset_t>) -> Result<(), Errno> {
        let mut sleep = Sleep::default();
        let mut heard = [libc::epoll_event { events: 0, u64: 0 }; HEARD];
        let slept = match self.prepare(&mut sleep) {
            Ok(true) => Ok(0),
            Ok(false) => {
                let limit = sleep.is_opening.then_some(poll::LOOK_AGAIN);
                let limit = limit.into_iter().chain(timeout).min();
                self.doze(sleep.openings, &mut heard, limit, mask)
            }
            Err(e) => Err(e),
        };
        let heard = &heard[..slept.unwrap_or(0)];
        for socket in sleep.entered {
            let fd = socket.raw();
            if let Some(stream) = socket.streaming() {
                stream.poll_leave(heard.iter().any(|event| event.u64 == fd as u64));
            }
        }
        // SYNC: set. The last one out silences the bell: until then it is for others, too. Under the
        // lock, as `prepare` counts: a ring that is taken here came for no thread that has counted
        // itself since, and what it was rung for is seen there.
        let members = locked(&self.members);
        if self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        drop(members);
        slept.map(drop)
    }

    fn doze(
        &self,
        mut fds: Vec<libc::pollfd>,
        heard: &mut [libc::epoll_event],
        timeout: Option<Duration>,
        mask: Option<&libc::sigset_t>,
    ) -> Result<usize, Errno> {
        fds.push(libc::pollfd { fd: self.outer.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        poll::kernel_poll(&mut fds, timeout, mask)?;
        epoll_wait(self.outer.as_fd(), heard, 0)
    }

    /// Asks every stream for an event. True if there is something to look at instead. Whatever
    /// comes of it, `sleep` says which streams are to be told when the sleep is over.
    fn prepare(&self, sleep: &mut Sleep) -> Result<bool, Errno> {
        let mut members = locked(&self.members);
        // SYNC: set. Counted before the look at the members and at `closed`: a change behind that
        // look sees the count and rings, one in front of it is seen here. Else this thread would
        // sleep on over a member that is new, or in a set that has been closed.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            return Ok(true);
        }
        for (&fd, member) in &mut members.all {
            if member.is_done(self) {
                continue;
            }
            let Some(socket) = member.waits_for(fd) else { continue };
            // One that has begun to listen since the last look.
            if member.watch(self, fd)? {
                continue;
            }
            // In front of the look for a stream, which it may become behind that.
            let is_opening = socket.phase().is_opening();
            if let Some(stream) = socket.streaming() {
                member.listen(self, fd, stream.event_fd())?;
                if stream.enter(|| member.would_show(stream) != 0) {
                    return Ok(true);
                }
                sleep.entered.push(socket);
            } else {
                sleep.is_opening |= is_opening;
                let opening = socket.wait_fds();
                let entry = |(fd, events)| libc::pollfd { fd, events, revents: 0 };
                sleep.openings.extend(opening.map(entry));
            }
        }
        Ok(false)
    }

    /// Who sleeps looks again.
    fn ring(&self) {
        // SYNC: set. Behind the change that is rung for.
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

fn epoll_wait(set: BorrowedFd, out: &mut [libc::epoll_event], millis: i32) -> Result<usize, Errno> {
    let room = i32::try_from(out.len()).unwrap_or(i32::MAX);
    if room == 0 {
        return Ok(0);
    }
    // SAFETY: a slice of entries.
    let n = unsafe { kernel::epoll_wait(set.as_raw_fd(), out.as_mut_ptr(), room, millis) };
    usize::try_from(n).map_err(|_| last_error())
}

#[cfg(test)]
mod tests;
