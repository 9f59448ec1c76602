//! What changes sets and registrations: epoll_create and epoll_ctl, closes, switches from and to
//! TCP, fork.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use libc::epoll_event;
use smc::{reason, table as connections};

use super::set::{Entry, SHARE, Set, held};
use super::table::{Tables, Turn, entry, find_by_turn, of_conn, set, slot, tables, turn};
use crate::fail;
use crate::fds::{self, Kind};

/// A new epoll descriptor.
pub fn open(epfd: i32) -> i32 {
    if epfd >= 0
        && !fds::has_stopped()
        && let Some(t) = tables()
        && let Some(index) = t.spare_set()
        && let Some(s) = slot(index)
        && renew(index, s, epfd)
    {
        drop(t);
        fds::mark(epfd, Kind::Epoll(index));
    }
    epfd
}

/// Makes a set of a slot that may have been one before. `sleepers` stays: who still waits on the
/// old one counts down.
fn renew(index: u32, s: &'static Set, epfd: i32) -> bool {
    let Some(mut h) = held(index, s) else { return false };
    h.hot().clear();
    s.wait.store(0, Relaxed);
    s.spin.store(8, Relaxed);
    s.last_kernel.store(0, Relaxed);
    s.share.store(16 * SHARE, Relaxed);
    s.given.store(0, Relaxed);
    s.busy.store(0, Relaxed);
    for flag in [&s.solo, &s.tagged, &s.nested, &s.kernel_first] {
        flag.store(false, Relaxed);
    }
    s.epfd.store(epfd, Relaxed);
    s.refs.store(1, Release);
    true
}

/// A further descriptor for the set.
pub fn share(index: u32) {
    if let Some(s) = set(index) {
        s.refs.fetch_add(1, Relaxed);
    }
}

/// `fd`, a descriptor of the set, is gone; with the last one the set goes.
pub fn forget(index: u32, fd: i32) {
    let (Some(t), Some(s)) = (tables(), set(index)) else { return };
    if s.refs.load(Relaxed) > 1 {
        s.refs.fetch_sub(1, AcqRel);
        if s.epfd.load(Relaxed) == fd
            && let Some(other) =
                (0..fds::high()).find(|&f| f != fd && fds::kind(f) == Kind::Epoll(index))
        {
            s.epfd.store(other, Relaxed);
        }
        return;
    }
    if s.is_interrupted() {
        // A signal handler in the middle of a look: the slot is lost.
        return;
    }
    // SYNC: generation. Whoever waits on it finds another one and leaves; pairs with `Wait::run`. A
    // set that takes the slot is renewed under the lock behind this, so that a wait that has looked
    // into that one finds it, too.
    s.generation.fetch_add(1, Release);
    for (i, e) in t.of_set(s) {
        release(&t, i, e);
    }
    let mut row = 0;
    if let Some(mut h) = held(index, s) {
        h.ears().close(s.epfd.load(Relaxed), s.wait.load(Relaxed));
        row = core::mem::take(&mut h.hot().row);
    }
    if let Some(c) = connections::get() {
        c.free_wait(s.wait.swap(0, Relaxed));
        c.free_row(row);
    }
    s.refs.store(0, Release);
}

/// Its readiness must be the kernel's.
pub(super) fn go_back(conn: u32, fd: i32) {
    fds::while_held(conn, fd, |port| fds::go_back_for_readiness(port, reason::UNSEEN.code()));
}

/// epoll_ctl; `call` is the front's, with another event than the application's `ev` where one is
/// given.
///
/// # Safety
/// `ev` must be what the application gives to epoll_ctl.
pub unsafe fn control(
    ep: i32,
    op: i32,
    fd: i32,
    ev: *const epoll_event,
    call: impl Fn(Option<&mut epoll_event>) -> isize,
) -> isize {
    let (Kind::Epoll(set), Some(port)) = (fds::kind(ep), fds::port(fd)) else {
        // A set that we did not see made, or one inside another set: hooked registrations there
        // would go unseen.
        if let (Kind::Other, Some(port)) = (fds::kind(ep), fds::existing(fd))
            && op == libc::EPOLL_CTL_ADD
        {
            fds::go_back_for_others(port, reason::UNSEEN.code());
        }
        if let (true, Kind::Epoll(inner)) = (op == libc::EPOLL_CTL_ADD, fds::kind(fd)) {
            nest(inner);
        }
        return call(None);
    };
    // SAFETY: the application's event.
    let event = if crate::faulty(ev) { None } else { unsafe { ev.as_ref() }.copied() };
    match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(e)) if e.events & libc::EPOLLEXCLUSIVE as u32 != 0 => {
            fds::go_back_for_others(port, reason::EXCLUSIVE.code());
            call(None)
        }
        (libc::EPOLL_CTL_ADD, Some(e)) => add(set, port.index, fd, e, |e| call(Some(e))),
        // The kernel refuses EPOLLEXCLUSIVE here.
        (libc::EPOLL_CTL_MOD, Some(e)) if e.events & libc::EPOLLEXCLUSIVE as u32 == 0 => {
            modify(set, port.index, fd, e, |e| call(Some(e)))
        }
        (libc::EPOLL_CTL_DEL, _) => delete(set, port.index, fd, || call(None)),
        _ => call(None),
    }
}

/// epoll_ctl(ADD) of a watched connection; `kernel` is the call.
fn add(
    set_index: u32,
    conn: u32,
    fd: i32,
    ev: epoll_event,
    kernel: impl FnOnce(&mut epoll_event) -> isize,
) -> isize {
    let mut theirs = ev;
    let Some(s) = set(set_index) else { return kernel(&mut theirs) };
    let Some(turn) = turn(set_index, s) else { return fail(libc::ENOMEM) };
    let c = fds::conn(conn);
    let generation = c.identity.gen_.load(Acquire);
    let (known, entry) = {
        let Some(t) = tables() else { return fail(libc::ENOMEM) };
        let known = t.find(set_index, conn, fd);
        if let Some((i, _)) = known
            && held(set_index, s).is_some_and(|mut h| h.revive(i, ev))
        {
            return 0;
        }
        bury(&t, conn, |e| !e.is_in(set_index) || e.fd() != fd);
        // In front of the call: who takes the connection off TCP before the kernel has it finds the
        // note, and leaves the connection there.
        let may_note = !s.nested.load(SeqCst) && fds::names(fd, conn);
        let entry = if !may_note {
            None
        } else {
            known.or_else(|| enter(&t, set_index, s, [conn, generation], fd, ev))
        };
        if let Some((i, e)) = entry {
            s.underway.begin(i);
            // What is off TCP too: until it is hooked, a thread that sleeps on the set would be told of
            // doorbells, which the application has never been sent.
            tag_if(c.needs_us() || is_oneshot(&ev), s, i, e, &mut theirs);
        }
        (known, entry)
    };
    let r = kernel(&mut theirs);
    if r < 0 {
        // Before anybody takes it for one that the kernel has.
        if let (None, Some(note)) = (known, entry) {
            withdraw(note, set_index);
        }
        refused(entry.filter(|_| known.is_some()), set_index, s, conn, turn);
        return r;
    }
    s.underway.end();
    // The kernel has taken it, so what we knew under that number is gone.
    if let Some((i, _)) = known
        && let Some(mut h) = held(set_index, s)
    {
        h.readmit(i, ev);
    }
    // Another thread may have closed the number meanwhile, or put something else there: then that
    // is what the kernel has.
    fds::settle_over();
    let is_noted = entry.is_some_and(|note| {
        note.1.is_in(set_index)
            && fds::names(fd, conn)
            && c.identity.gen_.load(Acquire) == generation
            && (!c.needs_us() || hook_new(set_index, s, note))
            && (theirs.u64 == ev.u64 || untag(set_index, s, note))
    });
    if !is_noted {
        known.or(entry).inspect(|note| withdraw(*note, set_index));
        if theirs.u64 != ev.u64 {
            // With a tag whose note is gone no event of it would be told. Where another thread has closed
            // the number there is nothing to change.
            s.control(libc::EPOLL_CTL_MOD, fd, ev);
        }
        drop(turn);
        leave_unnoted(conn, generation, fd);
    }
    0
}

/// A registration is in the kernel without a note: what it may be of has to stay on TCP, or go back
/// there.
#[cold]
fn leave_unnoted(conn: u32, generation: u32, fd: i32) {
    if fds::conn(conn).identity.gen_.load(Acquire) == generation {
        go_back_now(conn);
    }
    if !fds::names(fd, conn) {
        fds::astray(fd);
    }
}

/// Takes a note out of everything, unless a close has done so. The set's turn is held, so nobody
/// has noted another one there.
fn withdraw((i, e): (u32, &Entry), set_index: u32) {
    if let Some(t) = tables()
        && e.is_in(set_index)
    {
        release(&t, i, e);
    }
}

/// What is disabled by its event is tagged from the beginning: else nobody could tell, when the
/// connection leaves TCP, whether it was.
fn is_oneshot(ev: &epoll_event) -> bool {
    ev.events & libc::EPOLLONESHOT as u32 != 0
}

/// Puts our name for a registration in the place of the application's data, on a condition.
fn tag_if(condition: bool, s: &Set, index: u32, e: &Entry, ev: &mut epoll_event) {
    if condition {
        s.tagged.store(true, Relaxed);
        ev.u64 = e.tag(index);
    }
}

/// Notes a registration.
fn enter(
    t: &Tables,
    set_index: u32,
    s: &'static Set,
    conn: [u32; 2],
    fd: i32,
    ev: epoll_event,
) -> Option<(u32, &'static Entry)> {
    let (i, e) = t.take()?;
    e.admit(t, set_index, conn, fd, ev);
    t.link_conn(i, e);
    t.link_set(i, e, s);
    Some((i, e))
}

/// epoll_ctl(MOD); `kernel` is the call.
fn modify(
    set_index: u32,
    conn: u32,
    fd: i32,
    mut ev: epoll_event,
    kernel: impl FnOnce(&mut epoll_event) -> isize,
) -> isize {
    let Some(s) = set(set_index) else { return kernel(&mut ev) };
    let Some(turn) = turn(set_index, s) else { return fail(libc::ENOMEM) };
    let by_turn = find_by_turn(&turn, set_index, conn, fd);
    let member = by_turn.and_then(|i| {
        let mut h = held(set_index, s)?;
        // Not so where the search read one half of what was taken off a list, and the other half of what
        // came in its place, in another set.
        h.state(i).is_some().then_some((i, h))
    });
    let (i, mut h) = match member {
        Some(member) => member,
        None => {
            let known = match tables() {
                Some(t) => t.find(set_index, conn, fd),
                None => return fail(libc::ENOMEM),
            };
            let Some((i, _)) = known else { return kernel(&mut ev) };
            let Some(h) = held(set_index, s) else { return fail(libc::ENOMEM) };
            (i, h)
        }
    };
    // A close may have taken it away since. It is no other one: that would have needed the turn.
    let Some((e, st)) = h.state(i) else { return kernel(&mut ev) };
    if !st.hooked {
        // Under the lock, so that the event of the new registration is not taken for one of the
        // old.
        let mut theirs = ev;
        tag_if(is_oneshot(&ev), s, i, e, &mut theirs);
        let r = kernel(&mut theirs);
        if r >= 0 {
            (st.events, st.data, st.enabled) = (ev.events, ev.u64, true);
        }
        return r;
    }
    if st.dormant {
        return fail(libc::ENOENT);
    }
    (st.events, st.data, st.enabled) = (ev.events, ev.u64, true);
    // A change looks at the readiness anew, as the kernel does.
    st.look_anew(fds::conn(conn));
    h.heat(i);
    // SYNC: sleepers. After the change; a sleeper counts itself before it looks, both under the
    // lock.
    if s.sleepers.any() {
        h.kick(i);
    }
    0
}

/// Removals of a connection after which they are dormant.
const DORMANT_AFTER: u32 = 4;

/// epoll_ctl(DEL); `kernel` is the call.
fn delete(set_index: u32, conn: u32, fd: i32, kernel: impl FnOnce() -> isize) -> isize {
    let Some(s) = set(set_index) else { return kernel() };
    let Some(turn) = turn(set_index, s) else { return fail(libc::ENOMEM) };
    let known = {
        let Some(t) = tables() else { return fail(libc::ENOMEM) };
        let known = t.find(set_index, conn, fd);
        if let Some((i, _)) = known
            && let Some(mut h) = held(set_index, s)
            && let Some((_, st)) = h.state(i)
            && st.hooked
        {
            if st.dormant {
                return fail(libc::ENOENT);
            }
            // Whoever forks or has it in two sets may meet the kernel's registration where ours is
            // not known.
            let alone =
                of_conn(conn).nth(1).is_none() && !fds::is_shared(conn) && !s.solo.load(Relaxed);
            if alone && fds::local(conn).removals.fetch_add(1, Relaxed) >= DORMANT_AFTER {
                h.rest(i);
                return 0;
            }
        }
        known.inspect(|(i, _)| s.underway.begin(*i));
        known
    };
    let r = kernel();
    if let (0, Some(note)) = (r, known) {
        withdraw(note, set_index);
    }
    if r == 0 {
        s.underway.end();
    } else {
        refused(known, set_index, s, conn, turn);
    }
    r
}

/// The kernel has refused a change of what is noted, which therefore stays as it was: what a switch
/// has left to the change is done here.
#[cold]
#[inline(never)]
fn refused(note: Option<(u32, &Entry)>, set_index: u32, s: &'static Set, conn: u32, turn: Turn) {
    s.underway.end();
    // A close may have taken it away. It is no other one: that would have needed the turn.
    let stays = note.is_none_or(|(i, e)| {
        !fds::conn(conn).needs_us()
            || tables().is_some_and(|_tables| !e.is_in(set_index) || hook(set_index, s, i))
    });
    drop(turn);
    if !stays {
        go_back_now(conn);
    }
}

/// A registration that the kernel has taken is of a connection that is off TCP; false if it cannot
/// be hooked, or is none any more.
#[cold]
#[inline(never)]
fn hook_new(set_index: u32, s: &'static Set, (i, e): (u32, &Entry)) -> bool {
    tables().is_some_and(|_tables| e.is_in(set_index) && hook(set_index, s, i))
}

/// A registration was tagged because its connection was off TCP, which may be back there by now.
#[cold]
#[inline(never)]
fn untag(set_index: u32, s: &'static Set, (i, e): (u32, &Entry)) -> bool {
    tables().is_some_and(|_tables| {
        e.is_in(set_index) && held(set_index, s).is_some_and(|mut h| h.untag(i))
    })
}

#[cold]
#[inline(never)]
fn go_back_now(conn: u32) {
    go_back(conn, fds::local(conn).fd.load(Relaxed) as i32);
}

/// Takes dormant registrations of a connection out of the kernel's sets.
fn bury(t: &Tables, conn: u32, which: impl Fn(&Entry) -> bool) {
    // None is dormant that was not removed often, and one that is buried is forgotten there.
    if fds::local(conn).removals.load(Relaxed) == 0 {
        return;
    }
    while let Some((i, e)) = of_conn(conn).find(|(i, e)| {
        which(e) && set_of(e).and_then(|(at, s)| held(at, s)).is_some_and(|mut h| h.is_dormant(*i))
    }) {
        if let Some(mut h) = set_of(e).and_then(|(at, s)| held(at, s)) {
            h.bury(i);
        }
        release(t, i, e);
    }
}

/// The same for all of a set.
fn bury_all(t: &Tables, index: u32, s: &'static Set) {
    if s.dormant.load(Relaxed) == 0 {
        return;
    }
    for (i, _) in t.of_set(s) {
        if let Some(mut h) = held(index, s) {
            h.bury(i);
        }
    }
}

/// A descriptor that names the connection is about to be closed, and others live on.
pub fn before_close(conn: u32, fd: i32) {
    if fds::local(conn).regs.load(Acquire) != 0
        && let Some(t) = tables()
    {
        bury(&t, conn, |e| e.fd() == fd);
    }
}

/// The set was put into another one, which watches it by the kernel only: nothing in it may be
/// hooked, its connections stay on TCP.
pub fn nest(inner: u32) {
    let Some(s) = set(inner) else { return };
    s.nested.store(true, SeqCst);
    let Some(t) = tables() else { return };
    bury_all(&t, inner, s);
    let members: Vec<_> = t.of_set(s).map(|(_, e)| (e.conn(), e.fd())).collect();
    drop(t);
    for (conn, fd) in members {
        go_back(conn, fd);
    }
}

/// The process holds no descriptor of the connection any more.
#[inline]
pub fn forget_conn(conn: u32) {
    // SYNC: underway. Behind the change of its last number.
    if fds::local(conn).regs.load(SeqCst) != 0 {
        forget_registrations(conn);
    }
}

#[inline(never)]
fn forget_registrations(conn: u32) {
    let Some(t) = tables() else { return };
    while let Some((i, e)) = of_conn(conn).next() {
        release(&t, i, e);
    }
}

pub(super) fn set_of(e: &Entry) -> Option<(u32, &'static Set)> {
    let index = e.set_index()?;
    Some((index, slot(index)?))
}

/// Takes a registration out of everything.
fn release(t: &Tables, index: u32, e: &Entry) {
    t.unlink_conn(index, e);
    let Some((set_index, s)) = set_of(e) else { return };
    // A signal handler that closes a connection in the middle of a look at its set leaves it there:
    // the look passes over connections that are gone, and the set takes it along at its end.
    let Some(mut h) = held(set_index, s) else { return };
    h.dismiss(index);
    drop(h);
    t.unlink_set(e, s);
    t.give_back(index, e);
}

/// Whether a set has the connection under the number `fd`.
pub fn registered_as(conn: u32, fd: i32) -> bool {
    // SYNC: underway. Behind the change of that number.
    if fds::local(conn).regs.load(SeqCst) == 0 {
        return false;
    }
    tables().is_some_and(|_tables| of_conn(conn).any(|(_, e)| e.fd() == fd))
}

/// Changes the kernel's registration to ours; false when that is not possible. The tables' lock is
/// held.
#[cold]
#[inline(never)]
pub(super) fn hook(set_index: u32, s: &'static Set, index: u32) -> bool {
    // What an epoll_ctl is in the middle of adding or removing it hooks itself, if it then has it:
    // a thread that removes and adds a connection over and over would else meet the switch now and
    // then, and keep the connection on TCP for good. SYNC: underway. It looks at the switch behind
    // `Underway::end`. A signal handler that has interrupted that very epoll_ctl may wait for the
    // connection itself, a jump out of one leaves nobody who looks, and a thread that has ended
    // does not, either.
    if s.underway.is(index) {
        return s.turn.is_locked() && !s.turn.is_mine() && !s.turn.is_abandoned();
    }
    let Some(mut h) = held(set_index, s) else { return false };
    if s.wait.load(Relaxed) == 0
        && !s.solo.load(Relaxed)
        && let Some(c) = connections::get()
    {
        s.wait.store(c.take_wait(), Relaxed);
    }
    h.hook(index)
}

/// Either process may hook what both have registered, and the other one then meets its tag.
pub fn before_fork() {
    let Some(t) = tables() else { return };
    for (index, s) in t.sets() {
        s.tagged.store(true, Relaxed);
        bury_all(&t, index, s);
    }
}

/// In a fork child. The tables' lock was held over the fork and is free again.
pub fn after_fork_child() {
    let Some(t) = tables() else { return };
    let mut unseen = Vec::new();
    for (index, s) in t.sets() {
        let underway = s.underway.index();
        // SAFETY: the only thread of the child.
        unsafe { s.reset_locks() };
        if let Some(mut h) = held(index, s) {
            h.start_over(t.of_set(s).map(|(i, _)| i));
        }
        // The thread that was to look whether its connection has left TCP is the parent's.
        if let Some((i, e)) = underway.and_then(|i| Some((i, entry(i)?)))
            && e.is_in(index)
            && !hook(index, s, i)
        {
            unseen.push(e.conn());
        }
    }
    drop(t);
    unseen.into_iter().for_each(go_back_now);
}

#[cfg(test)]
mod tests;
