//! What changes sets and registrations: epoll_create and epoll_ctl, closes, switches from and to TCP, fork.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use libc::epoll_event;
use smc::{reason, table as connections};

use super::set::{Entry, SHARE, Set, held};
use super::table::{Tables, of_conn, set, slot, tables};
use crate::fds::{self, Kind};
use crate::{fail, ledger};

/// A new epoll descriptor.
pub fn open(epfd: i32) -> i32 {
    if epfd >= 0
        && !fds::has_left()
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

/// Makes a set of a slot that may have been one before. `sleepers` stays: who still waits on the old one counts down.
fn renew(index: u32, s: &'static Set, epfd: i32) -> bool {
    let Some(mut h) = held(index, s) else { return false };
    h.hot().list.clear();
    h.hot().next = 0;
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
            && let Some(other) = (0..fds::high()).find(|&f| f != fd && fds::kind(f) == Kind::Epoll(index))
        {
            s.epfd.store(other, Relaxed);
        }
        return;
    }
    if s.is_interrupted() {
        // A signal handler in the middle of a look: the slot is lost.
        return;
    }
    // Whoever waits on it finds another generation and leaves.
    s.generation.fetch_add(1, Release);
    for (i, e) in t.of_set(s) {
        release(&t, i, e);
    }
    if let Some(mut h) = held(index, s) {
        h.ears().close(s.epfd.load(Relaxed), s.wait.load(Relaxed));
    }
    if let Some(c) = connections::get() {
        ledger::free_wait(c, s.wait.swap(0, Relaxed));
    }
    s.refs.store(0, Release);
}

/// Its readiness must be the kernel's.
fn leave_ring(conn: u32, fd: i32) {
    fds::leave_ring(fds::port_at(conn, fd), reason::UNSEEN.code());
}

/// epoll_ctl; `call` is the front's, with another event than the application's `ev` where one is given.
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
        // A set that we did not see made, or one inside another set: hooked registrations there would go unseen.
        if let (Kind::Other, Some(port)) = (fds::kind(ep), fds::existing(fd))
            && op == libc::EPOLL_CTL_ADD
        {
            fds::give_up(port, reason::UNSEEN.code());
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
            fds::give_up(port, reason::EXCLUSIVE.code());
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
    mut ev: epoll_event,
    kernel: impl FnOnce(&mut epoll_event) -> isize,
) -> isize {
    let noted = {
        // Held over the call, so that the connection cannot leave TCP between the note and the registration.
        let Some(t) = tables() else { return fail(libc::ENOMEM) };
        let Some(s) = set(set_index) else { return kernel(&mut ev) };
        if s.is_interrupted() {
            return fail(libc::ENOMEM);
        }
        let stale = t.find(set_index, conn, fd);
        if let Some((i, _)) = stale
            && held(set_index, s).is_some_and(|mut h| h.revive(i, ev))
        {
            return 0;
        }
        bury(&t, conn, |e| !e.is_in(set_index) || e.fd() != fd);
        let nested = s.nested.load(SeqCst);
        let entry = if nested { None } else { enter(&t, set_index, s, conn, fd, ev) };
        if let Some((i, e)) = entry {
            tag_oneshot(s, i, e, &mut ev);
        }
        let r = kernel(&mut ev);
        match (r < 0, entry) {
            (true, Some((i, e))) => {
                release(&t, i, e);
                return r;
            }
            (true, None) => return r,
            (false, _) => {}
        }
        // The kernel has taken it, so what we knew under that number is gone.
        if let Some((i, e)) = stale {
            release(&t, i, e);
        }
        entry.is_some_and(|(i, _)| !fds::conn(conn).switched() || hook(set_index, s, i))
    };
    if !noted {
        leave_ring(conn, fd);
    }
    0
}

/// What is disabled by its event is tagged from the beginning: else nobody could tell, when the connection leaves TCP,
/// whether it was.
fn tag_oneshot(s: &Set, index: u32, e: &Entry, ev: &mut epoll_event) {
    if ev.events & libc::EPOLLONESHOT as u32 != 0 {
        s.tagged.store(true, Relaxed);
        ev.u64 = e.tag(index);
    }
}

/// Notes a registration.
fn enter(
    t: &Tables,
    set_index: u32,
    s: &'static Set,
    conn: u32,
    fd: i32,
    ev: epoll_event,
) -> Option<(u32, &'static Entry)> {
    let (i, e) = t.take()?;
    held(set_index, s)?.admit(i, conn, fd, ev);
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
    let (mut h, i) = {
        let Some(t) = tables() else { return fail(libc::ENOMEM) };
        let Some((i, _)) = t.find(set_index, conn, fd) else { return kernel(&mut ev) };
        let Some(h) = held(set_index, s) else { return fail(libc::ENOMEM) };
        (h, i)
    };
    let Some((e, st)) = h.state(i) else { return kernel(&mut ev) };
    if !st.hooked {
        // Under the lock, so that the event of the new registration is not taken for one of the old.
        let mut theirs = ev;
        tag_oneshot(s, i, e, &mut theirs);
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
    // SYNC: sleepers. After the change; a sleeper counts itself before it looks, both under the lock.
    if s.sleepers.any() {
        h.kick(i);
    }
    0
}

/// Removals of a connection after which they are dormant.
const DORMANT_AFTER: u32 = 4;

/// epoll_ctl(DEL); `kernel` is the call.
fn delete(set_index: u32, conn: u32, fd: i32, kernel: impl FnOnce() -> isize) -> isize {
    let Some(t) = tables() else { return fail(libc::ENOMEM) };
    if set(set_index).is_some_and(Set::is_interrupted) {
        return fail(libc::ENOMEM);
    }
    if let Some((i, _)) = t.find(set_index, conn, fd)
        && let Some(s) = set(set_index)
        && let Some(mut h) = held(set_index, s)
        && let Some((_, st)) = h.state(i)
        && st.hooked
    {
        if st.dormant {
            return fail(libc::ENOENT);
        }
        // Whoever forks or has it in two sets may meet the kernel's registration where ours is not known.
        let alone = of_conn(conn).nth(1).is_none() && !fds::is_shared(conn) && !s.solo.load(Relaxed);
        if alone && fds::local(conn).removals.fetch_add(1, Relaxed) >= DORMANT_AFTER {
            h.rest(i);
            return 0;
        }
    }
    let r = kernel();
    if r == 0
        && let Some((i, e)) = t.find(set_index, conn, fd)
    {
        release(&t, i, e);
    }
    r
}

/// Takes dormant registrations of a connection out of the kernel's sets.
fn bury(t: &Tables, conn: u32, which: impl Fn(&Entry) -> bool) {
    while let Some((i, e)) = of_conn(conn)
        .find(|(i, e)| which(e) && set_of(e).and_then(|(at, s)| held(at, s)).is_some_and(|mut h| h.is_dormant(*i)))
    {
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

/// The set was put into another one, which watches it by the kernel only: nothing in it may be hooked, its connections
/// stay on TCP.
fn nest(inner: u32) {
    let Some(s) = set(inner) else { return };
    s.nested.store(true, SeqCst);
    let Some(t) = tables() else { return };
    bury_all(&t, inner, s);
    let members: Vec<_> = t.of_set(s).map(|(_, e)| (e.conn(), e.fd())).collect();
    drop(t);
    for (conn, fd) in members {
        leave_ring(conn, fd);
    }
}

/// The process holds no descriptor of the connection any more.
pub fn forget_conn(conn: u32) {
    if fds::local(conn).regs.load(Relaxed) == 0 {
        return;
    }
    let Some(t) = tables() else { return };
    while let Some((i, e)) = of_conn(conn).next() {
        release(&t, i, e);
    }
}

fn set_of(e: &Entry) -> Option<(u32, &'static Set)> {
    let index = e.set_index()?;
    Some((index, slot(index)?))
}

/// Takes a registration out of everything.
fn release(t: &Tables, index: u32, e: &Entry) {
    t.unlink_conn(index, e);
    let Some((set_index, s)) = set_of(e) else { return };
    // A signal handler that closes a connection in the middle of a look at its set leaves it there: the look passes over
    // connections that are gone, and the set takes it along at its end.
    let Some(mut h) = held(set_index, s) else { return };
    h.dismiss(index);
    drop(h);
    t.unlink_set(e, s);
    t.give_back(index, e);
}

/// A direction of the connection has left TCP: its registrations change hands.
pub fn on_switched(conn: u32) {
    if fds::local(conn).regs.load(Acquire) == 0 {
        return;
    }
    let all = match tables() {
        Some(_tables) => of_conn(conn).fold(true, |all, (i, e)| set_of(e).is_none_or(|(at, s)| hook(at, s, i)) && all),
        None => false,
    };
    if !all {
        // A registration whose descriptor was closed while another one lives cannot be changed any more, nor can any in a
        // signal handler that interrupted a change: the kernel's readiness must stay the truth.
        leave_ring(conn, fds::local(conn).fd.load(Relaxed) as i32);
    }
}

/// Whether a set has the connection under the number `fd`.
pub fn registered_as(conn: u32, fd: i32) -> bool {
    if fds::local(conn).regs.load(Acquire) == 0 {
        return false;
    }
    tables().is_some_and(|_tables| of_conn(conn).any(|(_, e)| e.fd() == fd))
}

/// Changes the kernel's registration to ours; false when that is not possible. The tables' lock is held.
fn hook(set_index: u32, s: &'static Set, index: u32) -> bool {
    let Some(mut h) = held(set_index, s) else { return false };
    if s.wait.load(Relaxed) == 0
        && !s.solo.load(Relaxed)
        && let Some(c) = connections::get()
    {
        s.wait.store(ledger::take_wait(c), Relaxed);
    }
    h.hook(index)
}

/// The application lets more bytes be under way than before: who sleeps until there is room looks again.
pub fn on_more_room(conn: u32) {
    if fds::local(conn).regs.load(Acquire) == 0 {
        return;
    }
    let Some(_tables) = tables() else { return };
    for (i, e) in of_conn(conn) {
        let Some((s, mut h)) = set_of(e).and_then(|(at, s)| Some((s, held(at, s)?))) else { continue };
        let Some((_, st)) = h.state(i).filter(|(_, st)| st.hooked && !st.dormant) else { continue };
        st.look_for_space_anew(fds::conn(conn));
        h.heat(i);
        // SYNC: sleepers. After the change; a sleeper counts itself before it looks, both under the lock.
        if s.sleepers.any() {
            h.kick(i);
        }
    }
}

/// Both directions are back on TCP: the kernel's registrations become the application's again.
pub fn on_reverted(conn: u32) {
    if fds::local(conn).regs.load(Acquire) == 0 {
        return;
    }
    let Some(_tables) = tables() else { return };
    if fds::conn(conn).switched() {
        return;
    }
    for (i, e) in of_conn(conn) {
        if let Some(mut h) = set_of(e).and_then(|(at, s)| held(at, s)) {
            h.revert(i);
        }
    }
}

/// A descriptor of ours has moved to another number.
pub fn moved_fd(from: i32, to: i32) {
    let Some(t) = tables() else { return };
    for (index, s) in t.sets() {
        if let Some(mut h) = held(index, s) {
            h.ears().moved_fd(from, to);
        }
    }
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
    for (index, s) in t.sets() {
        // SAFETY: the only thread of the child.
        unsafe { s.reset_lock() };
        if let Some(mut h) = held(index, s) {
            h.start_over(t.of_set(s).map(|(i, _)| i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Epoll, connected, port, recv, send, serial, upgraded};
    use std::thread;

    fn known(fd: i32) -> usize {
        of_conn(port(fd).index).count()
    }

    /// Whoever comes first, the notes are the kernel's.
    #[test]
    fn threads_may_add_and_remove_the_same() {
        let _turn = serial();
        for pair in [connected(), upgraded()] {
            let eps = [Epoll::new(), Epoll::new()];
            let op = |ep: &Epoll, op| ep.control(op, pair.1, libc::EPOLLIN);
            thread::scope(|scope| {
                for ep in &eps {
                    for _ in 0..2 {
                        scope.spawn(|| {
                            for _ in 0..2000 {
                                let added = op(ep, libc::EPOLL_CTL_ADD);
                                assert!(added == 0 || added == -(libc::EEXIST as isize), "{added}");
                                let removed = op(ep, libc::EPOLL_CTL_DEL);
                                assert!(removed == 0 || removed == -(libc::ENOENT as isize), "{removed}");
                            }
                        });
                    }
                }
            });
            // The kernel refuses what it knows already.
            let none = epoll_event { events: 0, u64: 0 };
            let kernel_has = |ep: &&Epoll| match smc::sys::epoll_ctl(ep.0, libc::EPOLL_CTL_ADD, pair.1, &none) {
                0 => smc::sys::epoll_ctl(ep.0, libc::EPOLL_CTL_DEL, pair.1, &none) != 0,
                _ => true,
            };
            assert_eq!(known(pair.1), eps.iter().filter(kernel_has).count());
            eps.iter().for_each(|ep| _ = op(ep, libc::EPOLL_CTL_DEL));
            send(pair.0, b"1", 0);
            assert!(eps.iter().all(|ep| ep.now().is_empty()));
            eps.iter().for_each(|ep| ep.add(pair.1, libc::EPOLLIN));
            assert_eq!(known(pair.1), 2);
            for ep in &eps {
                assert_eq!(ep.wait(Some(10_000_000_000)), Ok(vec![(pair.1, libc::EPOLLIN as u32)]));
            }
            assert_eq!(recv(pair.1, 9, 0), Ok(b"1".to_vec()));
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_not_noted() {
        let _turn = serial();
        let (pair, ep) = (connected(), Epoll::new());
        ep.add(pair.1, libc::EPOLLIN);
        assert_eq!(ep.control(libc::EPOLL_CTL_ADD, pair.1, libc::EPOLLOUT), -(libc::EEXIST as isize));
        assert_eq!(known(pair.1), 1);
        send(pair.0, b"1", 0);
        assert_eq!(ep.wait(Some(10_000_000_000)), Ok(vec![(pair.1, libc::EPOLLIN as u32)]));
        assert_eq!(ep.control(libc::EPOLL_CTL_DEL, pair.1, 0), 0);
        assert_eq!(ep.control(libc::EPOLL_CTL_DEL, pair.1, 0), -(libc::ENOENT as isize));
        assert_eq!(known(pair.1), 0);
    }

    /// A handler that closes a connection, or adds one, interrupts a look at a set that another thread waits for with the tables.
    #[test]
    fn a_handler_in_a_look_does_not_wait_for_the_tables() {
        use core::sync::atomic::AtomicU32;
        static TOOK: AtomicU32 = AtomicU32::new(0);
        extern "C" fn handler(_: i32) {
            TOOK.store(1 + u32::from(tables().is_some()), SeqCst);
        }
        let _turn = serial();
        let ep = Epoll::new();
        let Kind::Epoll(index) = fds::kind(ep.0) else { panic!("no set") };
        let handler: extern "C" fn(i32) = handler;
        let raise = || {
            // SAFETY: a handler that touches atomics and a lock.
            unsafe {
                libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t);
                libc::raise(libc::SIGUSR2);
            }
            TOOK.swap(0, SeqCst)
        };
        assert_eq!(raise(), 2, "nothing is interrupted");
        let looking = held(index, set(index).unwrap());
        assert_eq!(raise(), 1);
        drop(looking);
        assert_eq!(raise(), 2);
    }
}
