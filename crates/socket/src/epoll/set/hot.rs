//! The hot list: which registrations a wait knows of by itself, and which of them it looks at.
//!
//! A set with few of them looks at each, in every look. With many, peers announce in bits that the
//! set takes (`smc::conn::announce`) on which connections something has happened: those are looked
//! at until they have nothing more to tell.
#![allow(unsafe_code)]

use core::sync::atomic::{Ordering::*, fence};

use smc::conn::announce::{SLOTS, WORDS};
use smc::conn::sleepers::READS;
use smc::conn::{Conn, Waits};
use smc::table as connections;

use super::{Arena, Entry, Held, Hot, Page, Spot, Told};
use crate::epoll::bells::PAGES;
use crate::epoll::table::{entry, of_conn};
use crate::fds;

/// Registrations on the list from which on bits pay.
const MANY: usize = 16;
/// Calm connections that a look may go into for each event that it finds: to set a bit and to take it
/// costs both ends as much together.
const CALM: i32 = 4;
/// So long is remembered how many it were.
const MEMORY: i32 = 1024;

impl Hot {
    /// One of those that a look goes into.
    #[inline(always)]
    pub fn looked_at(&mut self, at: usize) -> Option<&mut Spot> {
        self.list[..self.looked].get_mut(at)
    }

    /// A look has gone into so many calm ones, and has found so many events.
    #[inline]
    pub fn wasted(&mut self, calm: i32, events: usize) {
        self.waste = (self.waste + calm - CALM * events as i32).clamp(-MEMORY, MEMORY);
    }
}

impl Held {
    /// Puts a hooked registration on the hot list. If it is there, the next look goes into it.
    pub fn heat(&mut self, index: u32) {
        let ticks = self.ticks();
        if let Some(spot) = self.spot(index) {
            (spot.idle, spot.since, spot.calm) = (0, ticks, None);
            self.look_at(index);
            return;
        }
        let place = self.hot().list.len();
        let Some((_, st)) = self.state(index) else { return };
        st.hot_at = place as u32 + 1;
        self.hot().list.push(Spot::new(index, ticks));
        self.look_at(index);
        self.cover(index);
    }

    /// A registration's place on the hot list.
    #[inline]
    pub fn spot(&mut self, index: u32) -> Option<&mut Spot> {
        let (_, st) = self.state(index)?;
        let at = (st.hot_at as usize).checked_sub(1)?;
        self.hot().list.get_mut(at)
    }

    /// Lets looks go into a registration on the list.
    pub fn look_at(&mut self, index: u32) {
        let place = self.state(index).map_or(0, |(_, st)| st.hot_at as usize);
        let hot = self.hot();
        let Some(at) = place.checked_sub(1).filter(|at| *at >= hot.looked) else { return };
        let Some(spot) = hot.list.get(at) else { return };
        if let Told::Here(arena, slot) = spot.told {
            hot.arenas[usize::from(arena)].settled[usize::from(slot / 64)] &= !(1 << (slot % 64));
        }
        hot.looked += 1;
        let last = hot.looked - 1;
        self.swap(at, last);
    }

    /// Lets looks pass over the one at a place, in a look that has begun at `begin`, went on to the last
    /// of them, and then to the first: those that it has not come to yet stay the same.
    pub fn pass_over(&mut self, at: usize, begin: &mut usize) {
        let mut at = at;
        if at < *begin {
            *begin -= 1;
            self.swap(at, *begin);
            at = *begin;
        }
        self.hot().looked -= 1;
        let last = self.hot().looked;
        self.swap(at, last);
    }

    fn swap(&mut self, one: usize, other: usize) {
        if one == other {
            return;
        }
        self.hot().list.swap(one, other);
        for at in [one, other] {
            let index = self.hot().list[at].index;
            if let Some((_, st)) = self.state(index) {
                st.hot_at = at as u32 + 1;
            }
        }
    }

    /// Lets the next look go into all of them.
    pub fn look_at_all(&mut self) {
        let mut at = 0;
        while let Some(spot) = self.hot().list.get(at) {
            let index = spot.index;
            match entry(index).and_then(Entry::current) {
                Some(_) => at += 1,
                // Closed in a signal handler that interrupted a look. Its arena may go, too.
                None => self.cool(index),
            }
        }
        let Hot { list, looked, arenas, .. } = self.hot();
        list.iter_mut().for_each(|spot| spot.calm = None);
        *looked = list.len();
        arenas.iter_mut().for_each(|arena| arena.settled = [0; WORDS]);
    }

    /// Lets looks go into those of which something was announced.
    pub fn take_news(&mut self) {
        let Some(row) = self.hot().row.checked_sub(1) else { return };
        for at in 0..PAGES {
            for word in 0..self.hot().arenas[at].words {
                let Arena { bits, bells, settled, .. } = &self.hot().arenas[at];
                // Where looks pass over nothing, the arena may be one that has ended.
                if settled[word] == 0 {
                    continue;
                }
                // SAFETY: in an arena of ours, type-stable.
                let mut slots = unsafe { &**bits }.take(row, word, settled[word]);
                // SAFETY: what stands beside an arena of ours, type-stable, too.
                let bells = unsafe { &**bells };
                while slots != 0 {
                    let slot = word as u32 * 64 + slots.trailing_zeros();
                    slots &= slots - 1;
                    if let Some(index) = bells.who(slot).checked_sub(1) {
                        self.look_at(index);
                    }
                }
            }
        }
    }

    /// Whether looks are to pass over what they find calm.
    #[inline]
    pub fn may_settle(&mut self) -> bool {
        self.hot().list.len() >= MANY && self.hot().waste > 0
    }

    /// Whether looks may pass over the registration at a place, which they have found calm: its peer
    /// announces what happens from then on.
    pub fn settles(&mut self, at: usize) -> bool {
        let Some(spot) = self.hot().looked_at(at) else { return false };
        let index = spot.index;
        let Some(calm) = spot.calm.filter(|_| !spot.page.is_null()) else { return false };
        match spot.told {
            Told::Here(arena, slot)
                if !spot.sends || calm.conn.has_space() && !calm.conn.counts() =>
            {
                let (word, bit) = (usize::from(slot / 64), 1 << (slot % 64));
                let row = self.hot().row - 1;
                let arena = &mut self.hot().arenas[usize::from(arena)];
                // One that was set before the last look is no news, and one set since is. SAFETY: in an
                // arena of ours, type-stable.
                let is_quiet = unsafe { &*arena.bits }.take(row, word, bit) == 0;
                if is_quiet {
                    arena.settled[word] |= bit;
                }
                is_quiet
            }
            // Not at once: what happened behind the last look was announced nowhere.
            Told::Unasked => {
                self.ask(index, calm.conn);
                false
            }
            _ => false,
        }
    }

    /// Asks the peer to announce what happens on a connection that the set covers.
    #[cold]
    fn ask(&mut self, index: u32, c: &'static Conn) {
        let wait = self.set.wait.load(Relaxed);
        if self.hot().row == 0 {
            self.hot().row = connections::get().map_or(0, |table| table.take_row());
        }
        let row = self.hot().row;
        let told = c.announced().zip(c.bells()).and_then(|((bits, slot), bells)| {
            let arenas = &mut self.hot().arenas;
            // Another arena may have come to the addresses of one that has ended.
            let is = |arena: &Arena| {
                !arena.is_free()
                    && core::ptr::eq(arena.bits, bits)
                    && core::ptr::eq(arena.bells, bells)
            };
            let known = arenas.iter().position(is);
            let at = known.or_else(|| arenas.iter().position(Arena::is_free))?;
            bells.name(slot, index + 1);
            if slot as usize >= SLOTS || !c.cover(wait, row) {
                return None;
            }
            if arenas[at].is_free() {
                arenas[at] = Arena { bits, bells, ..Arena::NONE };
            }
            arenas[at].spots += 1;
            arenas[at].words = arenas[at].words.max(slot as usize / 64 + 1);
            Some(Told::Here(at as u8, slot as u16))
        });
        if let Some(spot) = self.spot(index) {
            spot.told = told.unwrap_or(Told::Nowhere);
        }
    }

    /// Lets the set's wait word stand for a registration on the list, if it can.
    fn cover(&mut self, index: u32) {
        let wait = self.set.wait.load(Relaxed);
        let Some(e) = self.state(index).map(|(e, _)| e) else { return };
        let may_cover = |c: &&Conn| !c.peer_waits().is_null() && may_cover(e.conn(), c);
        let Some(c) = e.current().filter(|_| wait != 0).filter(may_cover) else { return };
        let (page, pages) = (c.peer_waits(), &mut self.hot().pages);
        let known = pages.iter().position(|at| at.spots > 0 && at.page == page);
        let free = || pages.iter().position(|at| at.spots == 0);
        // Connections of further link groups are armed by themselves.
        let Some(at) = known.or_else(free) else { return };
        pages[at] = Page { page, spots: pages[at].spots + 1, one: index };
        c.cover(wait, 0);
        if let Some(spot) = self.spot(index) {
            spot.page = page;
        }
    }

    /// Lets the set's wait word stand no more for a registration on the hot list: it is armed by
    /// itself.
    pub fn uncover(&mut self, index: u32) {
        let wait = self.set.wait.load(Relaxed);
        let Some(spot) = self.spot(index) else { return };
        let page = core::mem::replace(&mut spot.page, core::ptr::null());
        let hot = self.hot();
        if let Some(known) = hot.pages.iter_mut().find(|at| at.spots > 0 && at.page == page) {
            known.spots -= 1;
        }
        if !page.is_null()
            && let Some(c) = entry(index).and_then(Entry::current)
        {
            c.uncover(wait);
        }
        self.look_at(index);
        if let Some(spot) = self.spot(index)
            && let Told::Here(at, _) = core::mem::replace(&mut spot.told, Told::Unasked)
        {
            let arena = &mut self.hot().arenas[usize::from(at)];
            arena.spots -= 1;
            if arena.is_free() {
                *arena = Arena::NONE;
            }
        }
    }

    /// Takes a registration off the hot list.
    pub fn cool(&mut self, index: u32) {
        if self.spot(index).is_none() {
            return;
        }
        self.uncover(index);
        let Some((_, st)) = self.state(index) else { return };
        // It is looked at since it was uncovered. The last of those takes its place, and the last of
        // all that one's.
        let at = st.hot_at as usize - 1;
        self.hot().looked -= 1;
        let (looked, last) = (self.hot().looked, self.hot().list.len() - 1);
        self.swap(at, looked);
        self.swap(looked, last);
        self.hot().list.pop();
        self.state(index).into_iter().for_each(|(_, st)| st.hot_at = 0);
    }

    /// The control page at a place of `Hot::pages`, and a connection for which the set's wait word
    /// stands there. None if there is none that lives: then the page may be gone, too.
    pub fn page(&mut self, at: usize) -> Option<(&'static Waits, &'static Conn)> {
        let Page { page, spots, one } = self.hot().pages[at];
        if spots == 0 {
            return None;
        }
        let is_there = |spot: &Spot| {
            let c = entry(spot.index).and_then(Entry::current)?;
            (spot.page == page && c.peer_waits() == page).then_some((spot.index, c))
        };
        let known = self.spot(one).and_then(|spot| is_there(spot));
        let (one, c) = known.or_else(|| self.hot().list.iter().find_map(is_there))?;
        self.hot().pages[at].one = one;
        // SAFETY: the control page of a connection that lives.
        Some((unsafe { &*page }, c))
    }
}

/// Only one wait can stand for a connection: with several registrations each arms it by itself, and
/// so does a set beside a thread that sleeps on the connection, perhaps by a bell of its own.
fn may_cover(conn: u32, c: &Conn) -> bool {
    // SYNC: alone. Behind the registration; pairs with `bell::Sleep::covers`. Either the thread
    // sees the registration, or we see the thread.
    fence(SeqCst);
    of_conn(conn).nth(1).is_none()
        && !fds::is_shared(conn)
        && c.is_committed()
        && !c.sleepers.others(READS)
}
