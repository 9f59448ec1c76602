//! The bells that a set listens to: pipes from its peers, which the kernel watches beside
//! everything else in the set.
//!
//! There is one for each control page in which the set's sleeps are told. It is asked for at the
//! first of them and comes later, if ever; until then, and for whatever a sleep arms singly,
//! doorbells come over TCP. One for peers of another user is a socket, which is made here.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering::*};

use libc::epoll_event;
use smc::conn::{Conn, Waits};
use smc::group::bells::Source;
use smc::hidden::Handle;
use smc::{group, hidden, sys};

/// Control pages in which one sleep can be told; connections of further link groups are armed
/// singly.
pub const PAGES: usize = 16;
/// A bell of our own that its peer lets go after fewer rings is not full, and is not made again:
/// the peer has no room for it.
const FEW: u32 = 64;
/// Sleeps after which a bell is made here. Sets that do not live for long would leave theirs with
/// peers that never ring.
const OFTEN: u32 = 8;
/// Sleeps after which one is asked for again that could not be had, or did not come: there was no
/// room for it, or the channel was full.
const SELDOM: u32 = 10_000;
const TAG: u64 = group::bells::BELL;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bell {
    /// The peer is asked for it, and after so many more sleeps once more.
    Asked(u32),
    /// It rings here: a descriptor of ours.
    Heard(Handle),
    /// The same of a bell that we have made, and how often it has rung.
    Own(Handle, u32),
    /// After so many more sleeps there may be one.
    After(u32),
}

#[derive(Clone, Copy)]
struct Ear {
    page: *const Waits,
    /// The link group: another one may come to the same memory.
    group: u32,
    number: u32,
    bell: Bell,
}

impl Bell {
    fn handle(self) -> Option<Handle> {
        match self {
            Bell::Heard(handle) | Bell::Own(handle, _) => Some(handle),
            Bell::Asked(_) | Bell::After(_) => None,
        }
    }

    /// What comes behind one that was made here and that its peer has let go: full it is made
    /// again, at the next sleep.
    fn next(self) -> Option<Self> {
        match self {
            Bell::Own(_, ..FEW) => Some(Bell::After(SELDOM)),
            Bell::Own(..) => Some(Bell::After(0)),
            _ => None,
        }
    }
}

/// See the module documentation. What its set's lock guards.
pub struct Ears([Ear; PAGES]);

impl Ears {
    pub const fn new() -> Self {
        Self([Ear::NONE; PAGES])
    }

    /// Whether the set has a bell that rings for what is told in a control page.
    pub fn hears(&self, page: *const Waits) -> bool {
        self.0.iter().any(|ear| core::ptr::eq(ear.page, page) && ear.bell.handle().is_some())
    }

    /// Sees to it that wait `wait`, a number of the set `epfd`, has a bell in `page`, the control
    /// page of the peer of `c`. The set is awake.
    pub fn listen(&mut self, epfd: i32, wait: u32, c: &Conn, page: &Waits) {
        let place = |page| self.0.iter().position(|ear| core::ptr::eq(ear.page, page));
        let Some(at) = place(core::ptr::from_ref(page)).or_else(|| place(core::ptr::null())) else {
            // Whoever had the number before may have been killed while it listened.
            return page.stop_listening(wait, page.bell_asked_for(wait));
        };
        let ear = &mut self.0[at];
        let group = c.link_group();
        let known = core::ptr::eq(ear.page, page) && ear.group == group;
        let data = |number: u32| TAG | u64::from(number & 0xff_ffff) << 8 | at as u64;
        match &mut ear.bell {
            Bell::Own(..) if known => return,
            Bell::After(sleeps @ 1..) if known => {
                *sleeps -= 1;
                return;
            }
            bell @ (Bell::Asked(_) | Bell::Heard(_))
                if known && page.bell_asked_for(wait) == ear.number =>
            {
                match (&mut *bell, page.has_bell(wait, ear.number)) {
                    (Bell::Heard(_), true) => return,
                    (Bell::Asked(sleeps @ 1..), false) => {
                        *sleeps -= 1;
                        return;
                    }
                    (Bell::Asked(_), true) => {
                        *bell = group::bells::fetch(c, wait, ear.number)
                            .and_then(|fd| watch(epfd, fd, data(ear.number)))
                            .map_or(Bell::After(SELDOM), Bell::Heard);
                        if matches!(bell, Bell::Heard(_)) {
                            page.listen(wait, ear.number);
                        }
                        return;
                    }
                    // The peer has taken it away.
                    _ => {}
                }
            }
            _ => {}
        }
        let often = known && ear.bell == Bell::After(0);
        ear.close(epfd);
        let source =
            if edges_are_told() { group::bells::make(c, wait, often) } else { Source::Nowhere };
        let made = match source {
            Source::Made(fd, number) => {
                watch(epfd, fd, data(number)).map(|handle| (number, Bell::Own(handle, 0)))
            }
            Source::Peer => {
                let number = group::bells::number();
                page.ask_for_bell(wait, number);
                Some((number, Bell::Asked(SELDOM)))
            }
            Source::Later | Source::Nowhere => None,
        };
        let (number, bell) = made.unwrap_or_else(|| {
            // Nobody is to look for one.
            page.stop_listening(wait, page.bell_asked_for(wait));
            let later = if often { 0 } else { OFTEN };
            (0, Bell::After(if source == Source::Later { later } else { SELDOM }))
        });
        if matches!(bell, Bell::Own(..)) {
            page.listen(wait, number);
        }
        *ear = Ear { page, group, number, bell };
    }

    /// An event of the kernel, by its data: the control page whose peer rang, or null, if it is of
    /// a bell. One that has hung up is let go.
    pub fn told(&mut self, epfd: i32, data: u64, events: u32) -> Option<*const Waits> {
        if data & group::bells::TAG != TAG {
            return None;
        }
        let (at, number) = (data as usize & 0xff, data as u32 >> 8);
        let Some(ear) = self.0.get_mut(at).filter(|ear| ear.number & 0xff_ffff == number) else {
            return Some(core::ptr::null());
        };
        let page = ear.page;
        if let Bell::Own(_, rings) = &mut ear.bell {
            *rings += 1;
        }
        if events & libc::EPOLLHUP as u32 != 0 {
            let (group, next) = (ear.group, ear.bell.next());
            ear.close(epfd);
            if let Some(bell) = next {
                *ear = Ear { page, group, bell, ..Ear::NONE };
            }
        }
        Some(page)
    }

    /// The set goes, or its wait number does.
    pub fn close(&mut self, epfd: i32, wait: u32) {
        for ear in &mut self.0 {
            if !ear.page.is_null() && wait != 0 {
                // Not into the page of another group that has the memory by now.
                group::while_known(ear.group, || {
                    // SAFETY: the control page of a group that lives.
                    unsafe { (*ear.page).stop_listening(wait, ear.number) };
                });
            }
            ear.close(epfd);
        }
    }

    /// In a fork child, whose descriptors of bells are closed.
    pub fn forget(&mut self) {
        *self = Self::new();
    }
}

impl Ear {
    const NONE: Self = Self { page: core::ptr::null(), group: 0, number: 0, bell: Bell::After(0) };

    /// The peer may have a copy of its end yet: closed here, it would stay in the set.
    fn close(&mut self, epfd: i32) {
        if let Some(handle) = self.bell.handle() {
            // Of one that was moved the kernel knows the old number: it is told of then until the
            // peer closes its end, too.
            if let Some(fd) = handle.descriptor() {
                sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, &epoll_event { events: 0, u64: 0 });
            }
            handle.close();
        }
        *self = Ear::NONE;
    }
}

fn watch(epfd: i32, fd: i32, data: u64) -> Option<Handle> {
    let event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: data };
    let handle =
        hidden::handle(fd).filter(|_| sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &event) == 0);
    if handle.is_none() {
        hidden::close(fd);
    }
    handle
}

/// Whether the kernel tells of each byte in a pipe that nobody reads. Linux 5.5 to 5.13 may tell of
/// the first one only.
fn edges_are_told() -> bool {
    const YES: u8 = 1;
    const NO: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Relaxed) {
        0 => {
            let told = try_edges();
            KNOWN.store(if told { YES } else { NO }, Relaxed);
            told
        }
        known => known == YES,
    }
}

#[cold]
fn try_edges() -> bool {
    let Ok([read, write]) = sys::pipe() else { return false };
    let set = sys::epoll_create();
    let tells = || {
        let mut out = epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let n = unsafe { sys::epoll_pwait(set, &raw mut out, 1, 0, core::ptr::null()) };
        n == 1
    };
    let event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    let told = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, read, &event) == 0
        && (0..2).all(|_| sys::write(write, &[0]) == 1 && tells());
    for fd in [read, write, set] {
        sys::close(fd);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Pair, port, serial, upgraded};
    use smc::table as connections;

    /// A connection, the page in which its peer is asked for bells, a wait number, and a set of the
    /// kernel's.
    struct Place {
        pair: Pair,
        page: &'static Waits,
        wait: u32,
        epfd: i32,
        ears: Ears,
    }

    impl Place {
        fn new() -> Self {
            let pair = upgraded();
            // SAFETY: of a connection that lives.
            let page = unsafe { &*port(pair.1).conn.peer_waits() };
            let wait = connections::get().unwrap().take_wait();
            Self { pair, page, wait, epfd: sys::epoll_create(), ears: Ears::new() }
        }

        fn listen(&mut self) -> Bell {
            self.ears.listen(self.epfd, self.wait, port(self.pair.1).conn, self.page);
            self.ears.0[0].bell
        }

        /// Whether it listens by now, and to which number.
        fn word(&self) -> (u32, bool) {
            let number = self.page.bell_asked_for(self.wait);
            (number, self.page.bell[self.wait as usize].load(Relaxed) & 1 == 1)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            self.ears.close(self.epfd, self.wait);
            connections::get().unwrap().free_wait(self.wait);
            sys::close(self.epfd);
        }
    }

    #[test]
    fn a_bell_that_does_not_come_is_asked_for_again() {
        let _turn = serial();
        let mut at = Place::new();
        assert!(at.listen() == Bell::Asked(SELDOM));
        let first = at.word();
        for _ in 0..SELDOM {
            at.listen();
        }
        assert!(at.listen() == Bell::Asked(SELDOM));
        assert_eq!(at.word(), (first.0 + 1, false));
        // It is said to have been given, and nothing has come.
        at.page.given[at.wait as usize].store(first.0 + 1, Relaxed);
        assert!(at.listen() == Bell::After(SELDOM));
        for _ in 0..SELDOM {
            at.listen();
        }
        assert!(at.listen() == Bell::Asked(SELDOM));
        assert_eq!(at.word(), (first.0 + 2, false));
    }

    #[test]
    fn one_that_its_peer_lets_go_early_is_not_made_again_soon() {
        let _turn = serial();
        let mut at = Place::new();
        at.listen();
        let [read, write] = sys::pipe().unwrap().map(hidden::park);
        let own = watch(at.epfd, read, TAG | 7 << 8).unwrap();
        for (rings, next) in [(FEW - 1, SELDOM), (FEW, 0)] {
            at.ears.0[0].bell = Bell::Own(own, rings);
            assert!(at.ears.0[0].bell.next() == Some(Bell::After(next)));
        }
        (at.ears.0[0].bell, at.ears.0[0].number) = (Bell::Own(own, 3), 7);
        let page = at.ears.told(at.epfd, TAG | 7 << 8, libc::EPOLLHUP as u32);
        assert_eq!(page, Some(core::ptr::from_ref(at.page)));
        assert!(at.ears.0[0].bell == Bell::After(SELDOM) && own.descriptor().is_none());
        assert!(at.listen() == Bell::After(SELDOM - 1));
        hidden::close(write);
    }

    #[test]
    fn a_bell_whose_number_the_application_takes_is_closed_with_its_set() {
        let _turn = serial();
        let mut at = Place::new();
        at.listen();
        let [read, write] = sys::pipe().unwrap().map(hidden::park);
        let own = watch(at.epfd, read, TAG | 7 << 8).unwrap();
        at.ears.0[0].bell = Bell::Heard(own);
        // SAFETY: integers only.
        let put = || unsafe { libc::dup2(at.pair.0, read) } as isize;
        assert_eq!(crate::descriptors::dup_over(at.pair.0, read, put), read as isize);
        let moved = own.descriptor().unwrap();
        assert!(moved > read);
        let mut out = epoll_event { events: 0, u64: 0 };
        assert_eq!(sys::write(write, &[0]), 1);
        // SAFETY: room for one event.
        let told = unsafe { sys::epoll_pwait(at.epfd, &raw mut out, 1, 0, core::ptr::null()) };
        assert_eq!((told, out.u64), (1, TAG | 7 << 8));
        at.ears.close(at.epfd, at.wait);
        assert!(sys::fcntl(moved, libc::F_GETFD, 0) < 0 && sys::fcntl(read, libc::F_GETFD, 0) >= 0);
        crate::tests::close(read);
        hidden::close(write);
    }

    #[test]
    fn the_page_of_a_group_that_is_gone_is_left_alone() {
        let _turn = serial();
        let mut at = Place::new();
        at.listen();
        at.page.listen(at.wait, 9);
        at.ears.0[0].group += 1000;
        at.ears.close(at.epfd, at.wait);
        assert_eq!(at.word(), (9, true));
        at.page.stop_listening(at.wait, 9);
    }
}
