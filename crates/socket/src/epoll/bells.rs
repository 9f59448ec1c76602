//! The bells that a set listens to: pipes from its peers, which the kernel watches beside everything else in the set.
//!
//! There is one for each control page in which the set's sleeps are told. It is asked for at the first of them and comes later, if
//! ever; until then, and for whatever a sleep arms singly, doorbells come over TCP. One for peers of another user is a socket,
//! which is made here.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering::*};

use libc::epoll_event;
use smc::conn::{Conn, Waits};
use smc::group::bells::Source;
use smc::{group, hidden, sys};

/// Control pages in which one sleep can be told; connections of further link groups are armed singly.
pub const PAGES: usize = 16;
/// A bell of our own that its peer lets go after fewer rings is not full, and is not made again: the peer has no room for it.
const FEW: u32 = 64;
/// Sleeps after which a bell is made here. Sets that do not live for long would leave theirs with peers that never ring.
const OFTEN: u32 = 8;
/// As `TAG` of registrations: upper half of the data of a bell. Below it are 24 bits of its number, and its place.
const TAG: u64 = 0x2b99_26c7 << 32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bell {
    Asked,
    /// It rings here: a descriptor of ours.
    Heard(i32),
    /// The same of a bell that we have made, and how often it has rung.
    Own(i32, u32),
    /// After so many more sleeps one is made.
    After(u32),
    /// There will be none.
    Refused,
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
    fn descriptor(self) -> Option<i32> {
        match self {
            Bell::Heard(fd) | Bell::Own(fd, _) => Some(fd),
            Bell::Asked | Bell::After(_) | Bell::Refused => None,
        }
    }

    /// What comes behind one that was made here and that its peer has let go: full it is made again, at the next sleep.
    fn next(self) -> Option<Self> {
        match self {
            Bell::Own(_, ..FEW) => Some(Bell::Refused),
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

    /// Sees to it that wait `wait`, a number of the set `epfd`, has a bell in `page`, the control page of the peer of `c`. The
    /// set is awake.
    pub fn listen(&mut self, epfd: i32, wait: u32, c: &Conn, page: &Waits) {
        let place = |page| self.0.iter().position(|ear| core::ptr::eq(ear.page, page));
        let Some(at) = place(core::ptr::from_ref(page)).or_else(|| place(core::ptr::null())) else {
            // Whoever had the number before may have been killed while it listened.
            return page.stop_listening(wait, page.bell_asked_for(wait));
        };
        let ear = &mut self.0[at];
        let group = c.group.load(Relaxed);
        let known = core::ptr::eq(ear.page, page) && ear.group == group;
        let data = |number: u32| TAG | u64::from(number & 0xff_ffff) << 8 | at as u64;
        match &mut ear.bell {
            Bell::Refused | Bell::Own(..) if known => return,
            Bell::After(sleeps @ 1..) if known => {
                *sleeps -= 1;
                return;
            }
            bell @ (Bell::Asked | Bell::Heard(_)) if known && page.bell_asked_for(wait) == ear.number => {
                match (*bell, page.has_bell(wait, ear.number)) {
                    (Bell::Heard(_), true) | (Bell::Asked, false) => return,
                    (Bell::Asked, true) => {
                        *bell = group::bells::fetch(c, wait, ear.number)
                            .filter(|&fd| watch(epfd, fd, data(ear.number)))
                            .map_or(Bell::Refused, Bell::Heard);
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
        let source = if edges_are_told() { group::bells::make(c, wait, often) } else { Source::Nowhere };
        let (number, bell) = match source {
            Source::Made(fd, number) if watch(epfd, fd, data(number)) => {
                page.listen(wait, number);
                (number, Bell::Own(fd, 0))
            }
            Source::Peer => (page.ask_for_bell(wait), Bell::Asked),
            without => {
                // Nobody is to look for one.
                page.stop_listening(wait, page.bell_asked_for(wait));
                let later = if often { 0 } else { OFTEN };
                (0, if without == Source::Later { Bell::After(later) } else { Bell::Refused })
            }
        };
        *ear = Ear { page, group, number, bell };
    }

    /// An event of the kernel, by its data: the control page whose peer rang, or null, if it is of a bell. One that has hung up
    /// is let go.
    pub fn told(&mut self, epfd: i32, data: u64, events: u32) -> Option<*const Waits> {
        if data & !0xffff_ffff != TAG {
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
                // SAFETY: a control page, type-stable.
                unsafe { (*ear.page).stop_listening(wait, ear.number) };
            }
            ear.close(epfd);
        }
    }

    /// In a fork child, whose descriptors of bells are closed.
    pub fn forget(&mut self) {
        *self = Self::new();
    }

    /// A descriptor of ours has moved to another number.
    pub fn moved_fd(&mut self, from: i32, to: i32) {
        for ear in &mut self.0 {
            if let Bell::Heard(fd) | Bell::Own(fd, _) = &mut ear.bell
                && *fd == from
            {
                *fd = to;
            }
        }
    }
}

impl Ear {
    const NONE: Self = Self { page: core::ptr::null(), group: 0, number: 0, bell: Bell::Refused };

    /// The peer may have a copy of its end yet: closed here, it would stay in the set.
    fn close(&mut self, epfd: i32) {
        if let Some(fd) = self.bell.descriptor() {
            sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, &epoll_event { events: 0, u64: 0 });
            hidden::close(fd);
        }
        *self = Ear::NONE;
    }
}

fn watch(epfd: i32, fd: i32, data: u64) -> bool {
    let event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: data };
    let watched = sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &event) == 0;
    if !watched {
        hidden::close(fd);
    }
    watched
}

/// Whether the kernel tells of each byte in a pipe that nobody reads. Linux 5.5 to 5.13 may tell of the first one only.
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
