//! Sets and registrations.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::*};

use libc::epoll_event;
use shm::lock::{FastGuard, FastLock, Reentered};
use smc::conn::Conn;
use smc::{sys, table};

use crate::fds::{self, Kind};

/// What the kernel watches for a hooked registration.
pub const WATCH: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET) as u32;
/// Upper half of the data of hooked registrations. Chosen so that no pointer or small number looks like it.
pub const TAG: u64 = 0xb7e1_5163 << 32;
const TAG_MASK: u64 = 0xffff_ffff << 32;
const NONE: u32 = u32::MAX;

/// One registration of a connection in a set.
pub struct Entry {
    pub set: u32,
    pub conn: u32,
    pub generation: u32,
    pub fd: i32,
    pub events: u32,
    pub data: u64,
    /// Its place in the set's hot list, or NONE.
    pub hot_at: u32,
    /// The kernel's registration carries our tag.
    pub hooked: bool,
    /// The set's wait word stands for it.
    pub covered: bool,
    /// Cleared when a oneshot event was given out.
    pub enabled: bool,
    /// What the last edge-triggered report had seen.
    pub seen_read: u64,
    pub seen_space: u32,
    /// The kernel told of an urgent byte.
    pub urgent: bool,
    /// Looks in a row that found nothing.
    pub idle: u32,
    next_of_conn: u32,
    live: bool,
}

/// One epoll descriptor's user-space half.
pub struct Set {
    pub lock: FastLock<false>,
    pub epfd: i32,
    /// Descriptors that name it.
    pub refs: AtomicU32,
    pub wait: u32,
    pub hot: Vec<u32>,
    /// Hooked registrations.
    pub hooked: AtomicU32,
    /// Threads asleep in the kernel on it.
    pub sleepers: AtomicU32,
    pub spin: AtomicU32,
    pub next_look: usize,
    pub last_kernel: u64,
    /// The last answer was full before the kernel was asked.
    pub kernel_first: bool,
    /// Inside another set.
    pub nested: AtomicU32,
    /// Inherited over fork: its wait word belongs to the parent.
    pub solo: bool,
}

pub struct Tables {
    pub lock: FastLock<false>,
    sets: UnsafeCell<Vec<Option<Box<Set>>>>,
    entries: UnsafeCell<Vec<Entry>>,
    free: UnsafeCell<Vec<u32>>,
}
// SAFETY: the vectors change only under `lock`; a set's contents only under its own lock.
unsafe impl Sync for Tables {}

static TABLES: Tables = Tables {
    lock: FastLock::new(),
    sets: UnsafeCell::new(Vec::new()),
    entries: UnsafeCell::new(Vec::new()),
    free: UnsafeCell::new(Vec::new()),
};

/// The lock that fork holds so that the child finds the tables whole.
pub fn table_lock() -> &'static FastLock<false> {
    &TABLES.lock
}

/// The set at `index`. Boxed and freed only by its last close, which is the application's race to avoid, as with any
/// closed descriptor.
pub fn set(index: u32) -> Option<&'static mut Set> {
    // SAFETY: a load of a pointer-sized slot; sets are boxed so the vector may move.
    unsafe {
        let sets = &mut *TABLES.sets.get();
        sets.get_mut(index as usize)?.as_deref_mut().map(|s| &mut *(s as *mut Set))
    }
}

/// Takes the set's lock.
pub fn held(s: &Set) -> Result<FastGuard<'static, false>, Reentered> {
    // SAFETY: a set is freed only by its last close; see `set`.
    let lock: &'static FastLock<false> = unsafe { &*core::ptr::from_ref(&s.lock) };
    lock.lock()
}

/// The registration at `index`. The vector is reserved once, so entries never move.
pub fn entry(index: u32) -> Option<&'static mut Entry> {
    // SAFETY: entries never move, see `take`.
    unsafe {
        let entries = &mut *TABLES.entries.get();
        entries.get_mut(index as usize).map(|e| &mut *(e as *mut Entry))
    }
}

const MAX_ENTRIES: usize = 1 << 18;

/// A new epoll descriptor.
pub fn open(epfd: i32) -> i32 {
    if epfd < 0 {
        return epfd;
    }
    let Ok(_guard) = TABLES.lock.lock() else { return epfd };
    // SAFETY: the lock is held.
    let (sets, entries) = unsafe { (&mut *TABLES.sets.get(), &mut *TABLES.entries.get()) };
    if entries.capacity() == 0 {
        // Reserved address space, touched as it is used.
        entries.reserve_exact(MAX_ENTRIES);
        sets.reserve_exact(4096);
    }
    let index = match sets.iter().position(Option::is_none) {
        Some(i) => i,
        None if sets.len() < sets.capacity() => {
            sets.push(None);
            sets.len() - 1
        }
        None => return epfd,
    };
    sets[index] = Some(Box::new(Set {
        lock: FastLock::new(),
        epfd,
        refs: AtomicU32::new(1),
        wait: 0,
        hot: Vec::new(),
        hooked: AtomicU32::new(0),
        sleepers: AtomicU32::new(0),
        spin: AtomicU32::new(8),
        next_look: 0,
        last_kernel: 0,
        kernel_first: false,
        nested: AtomicU32::new(0),
        solo: false,
    }));
    fds::mark(epfd, Kind::Epoll(index as u32));
    epfd
}

/// A further descriptor for the set.
pub fn share(index: u32) {
    if let Some(s) = set(index) {
        s.refs.fetch_add(1, Relaxed);
    }
}

/// A descriptor of the set is gone; with the last one the set goes.
pub fn forget(index: u32) {
    let Ok(_guard) = TABLES.lock.lock() else { return };
    let Some(s) = set(index) else { return };
    if s.refs.fetch_sub(1, AcqRel) != 1 {
        return;
    }
    // SAFETY: the lock is held.
    let (sets, entries) = unsafe { (&mut *TABLES.sets.get(), &mut *TABLES.entries.get()) };
    for i in 0..entries.len() as u32 {
        if entry(i).is_some_and(|e| e.live && e.set == index) {
            release(i);
        }
    }
    if let Some(t) = table::get() {
        t.free_wait(if s.solo { 0 } else { s.wait });
    }
    sets[index as usize] = None;
}

/// The registration of `fd` in a set.
fn find(set_index: u32, conn: u32, fd: i32) -> Option<u32> {
    of_conn(conn).find(|&i| entry(i).is_some_and(|e| e.set == set_index && e.fd == fd))
}

fn of_conn(conn: u32) -> impl Iterator<Item = u32> {
    let mut at = fds::local(conn).regs.load(Acquire);
    core::iter::from_fn(move || {
        let i = at.checked_sub(1)?;
        at = entry(i)?.next_of_conn;
        Some(i)
    })
}

/// epoll_ctl(ADD) of a watched connection succeeded in the kernel.
pub fn add(set_index: u32, conn: u32, fd: i32, ev: epoll_event) {
    if set(set_index).is_some_and(|s| s.nested.load(SeqCst) != 0) {
        fds::give_up(conn, fds::conn(conn), fd, smc::reason::UNSEEN.code());
        return;
    }
    let Ok(_guard) = TABLES.lock.lock() else { return };
    // SAFETY: the lock is held.
    let (entries, free) = unsafe { (&mut *TABLES.entries.get(), &mut *TABLES.free.get()) };
    let l = fds::local(conn);
    let fresh = Entry {
        set: set_index,
        conn,
        generation: fds::conn(conn).gen_.load(Relaxed),
        fd,
        events: ev.events,
        data: ev.u64,
        hot_at: NONE,
        hooked: false,
        covered: false,
        enabled: true,
        seen_read: u64::MAX,
        seen_space: 0,
        urgent: false,
        idle: 0,
        next_of_conn: l.regs.load(Relaxed),
        live: true,
    };
    let index = match free.pop() {
        Some(i) => {
            entries[i as usize] = fresh;
            i
        }
        // A registration that we cannot note would be blind after an upgrade.
        None if entries.len() == entries.capacity() => {
            fds::conn(conn).set(smc::conn::phase::FROZEN);
            return;
        }
        None => {
            entries.push(fresh);
            entries.len() as u32 - 1
        }
    };
    l.regs.store(index + 1, Release);
    if fds::conn(conn).switched() {
        hook(index);
    }
}

/// epoll_ctl(MOD): true when it is done here and the kernel need not be asked.
pub fn modify(set_index: u32, conn: u32, fd: i32, ev: epoll_event) -> bool {
    let Ok(_guard) = TABLES.lock.lock() else { return false };
    let Some(i) = find(set_index, conn, fd) else { return false };
    let (Some(e), Some(s)) = (entry(i), set(set_index)) else { return false };
    let Ok(_set_guard) = held(s) else { return false };
    e.events = ev.events;
    e.data = ev.u64;
    e.enabled = true;
    // A change looks at the readiness anew, as the kernel does.
    e.seen_read = u64::MAX - 1;
    e.seen_space = e.seen_space.wrapping_sub(1);
    if !e.hooked {
        return false;
    }
    heat(s, i, e);
    if s.sleepers.load(SeqCst) > 0 {
        kick(s, i, e);
    }
    true
}

/// epoll_ctl(DEL) succeeded in the kernel.
pub fn delete(set_index: u32, conn: u32, fd: i32) {
    let Ok(_guard) = TABLES.lock.lock() else { return };
    if let Some(i) = find(set_index, conn, fd) {
        release(i);
    }
}

/// The set was put into another one, which watches it by the kernel only: nothing in it may be hooked, its connections
/// stay on TCP.
pub fn nest(inner: u32) {
    if let Some(s) = set(inner) {
        s.nested.store(1, SeqCst);
    }
    let mut held = Vec::new();
    if let Ok(_guard) = TABLES.lock.lock() {
        // SAFETY: the lock is held.
        let entries = unsafe { &*TABLES.entries.get() };
        held.extend(entries.iter().filter(|e| e.live && e.set == inner).map(|e| (e.conn, e.fd)));
    }
    for (conn, fd) in held {
        fds::give_up(conn, fds::conn(conn), fd, smc::reason::UNSEEN.code());
    }
}

/// The process holds no descriptor of the connection any more.
pub fn forget_conn(conn: u32) {
    if fds::local(conn).regs.load(Relaxed) == 0 {
        return;
    }
    let Ok(_guard) = TABLES.lock.lock() else { return };
    while let Some(i) = of_conn(conn).next() {
        release(i);
    }
}

/// Takes a registration out of everything. The tables' lock is held.
fn release(index: u32) {
    let Some(e) = entry(index) else { return };
    if let Some(s) = set(e.set) {
        let _set_guard = held(s);
        cool_list(s, e);
        if e.hooked {
            s.hooked.fetch_sub(1, Relaxed);
        }
    }
    e.live = false;
    e.hooked = false;
    let l = fds::local(e.conn);
    if l.regs.load(Relaxed) == index + 1 {
        l.regs.store(e.next_of_conn, Release);
    } else if let Some(before) = of_conn(e.conn).find(|&i| entry(i).is_some_and(|b| b.next_of_conn == index + 1))
        && let Some(b) = entry(before)
    {
        b.next_of_conn = e.next_of_conn;
    }
    // SAFETY: the tables' lock is held.
    unsafe { (*TABLES.free.get()).push(index) };
}

/// A direction of the connection has left TCP: its registrations change hands.
pub fn on_switched(conn: u32) {
    if fds::local(conn).regs.load(Acquire) == 0 {
        return;
    }
    let mut lost = false;
    if let Ok(_guard) = TABLES.lock.lock() {
        for i in of_conn(conn) {
            lost |= !hook(i);
        }
    }
    if lost {
        // A registration whose descriptor was closed while another one lives cannot be changed any more: the kernel's
        // readiness must stay the truth.
        let fd = fds::local(conn).fd.load(Relaxed) as i32;
        fds::give_up(conn, fds::conn(conn), fd, smc::reason::UNSEEN.code());
    }
}

/// Changes the kernel's registration to ours; false when that is not possible. The tables' lock is held.
fn hook(index: u32) -> bool {
    let Some(e) = entry(index) else { return true };
    let Some(s) = set(e.set) else { return true };
    if e.hooked {
        return true;
    }
    let Ok(_set_guard) = held(s) else { return true };
    if s.wait == 0
        && !s.solo
        && let Some(t) = table::get()
    {
        s.wait = t.take_wait();
    }
    let mut ev = epoll_event { events: WATCH, u64: TAG | u64::from(index) };
    if control(s.epfd, libc::EPOLL_CTL_MOD, e.fd, &mut ev) < 0 {
        return false;
    }
    e.hooked = true;
    s.hooked.fetch_add(1, SeqCst);
    // The change fires the kernel's edge (the socket is writable), so a sleeper wakes and looks.
    e.seen_read = u64::MAX - 1;
    e.seen_space = fds::conn(e.conn).space_epoch().wrapping_sub(1);
    heat(s, index, e);
    true
}

/// Both directions are back on TCP: the kernel's registrations become the application's again.
pub fn on_reverted(conn: u32) {
    if fds::local(conn).regs.load(Acquire) == 0 {
        return;
    }
    let Ok(_guard) = TABLES.lock.lock() else { return };
    for i in of_conn(conn) {
        let (Some(e), c) = (entry(i), fds::conn(conn)) else { continue };
        let Some(s) = set(e.set) else { continue };
        if !e.hooked || c.switched() {
            continue;
        }
        let _set_guard = held(s);
        cool_list(s, e);
        e.hooked = false;
        s.hooked.fetch_sub(1, Relaxed);
        let events = if e.enabled { e.events } else { 0 };
        control(s.epfd, libc::EPOLL_CTL_MOD, e.fd, &mut epoll_event { events, u64: e.data });
    }
}

fn control(epfd: i32, op: i32, fd: i32, ev: &mut epoll_event) -> isize {
    // SAFETY: `ev` is live.
    unsafe { sys::syscall(libc::SYS_epoll_ctl, epfd as usize, op as usize, fd as usize, ev as *mut _ as usize, 0, 0) }
}

/// Wakes a sleeper of the set: changing a registration of a writable socket fires its edge.
fn kick(s: &Set, index: u32, e: &Entry) {
    control(s.epfd, libc::EPOLL_CTL_MOD, e.fd, &mut epoll_event { events: WATCH, u64: TAG | u64::from(index) });
}

/// Puts a registration on the hot list. The set's lock is held.
pub fn heat(s: &mut Set, index: u32, e: &mut Entry) {
    e.idle = 0;
    if e.hot_at != NONE {
        return;
    }
    e.hot_at = s.hot.len() as u32;
    s.hot.push(index);
    cover(s, e, fds::conn(e.conn));
}

fn cover(s: &Set, e: &mut Entry, c: &Conn) {
    // Only one wait can stand for a connection: with several registrations each arms it by itself.
    let alone = entry_is_alone(e.conn);
    e.covered = s.wait != 0 && alone && !fds::is_shared(e.conn) && c.phase() & smc::conn::phase::TX_READY != 0;
    if e.covered {
        c.cover(s.wait);
    }
}

fn entry_is_alone(conn: u32) -> bool {
    of_conn(conn).nth(1).is_none()
}

/// Takes a registration off the hot list. The set's lock is held.
pub fn cool_list(s: &mut Set, e: &mut Entry) {
    if e.hot_at == NONE {
        return;
    }
    let at = e.hot_at as usize;
    s.hot.swap_remove(at);
    if let Some(&moved) = s.hot.get(at)
        && let Some(m) = entry(moved)
    {
        m.hot_at = at as u32;
    }
    e.hot_at = NONE;
    if e.covered {
        e.covered = false;
        fds::conn(e.conn).cover(0);
    }
}

/// The registration that a kernel event's data names, if it is one of ours.
pub fn tagged(data: u64) -> Option<u32> {
    (data & TAG_MASK == TAG).then_some(data as u32)
}

/// Whether any registration of the set is hooked.
pub fn hooked(index: u32) -> bool {
    set(index).is_some_and(|s| s.hooked.load(SeqCst) > 0)
}

/// In a fork child: the parent's threads and wait words are not ours. Everything hooked becomes hot, armed singly.
pub fn after_fork_child() {
    // SAFETY: the only thread of the child.
    unsafe {
        for s in (*TABLES.sets.get()).iter_mut().flatten() {
            s.lock.reset();
            s.solo = true;
            s.wait = 0;
            s.sleepers.store(0, Relaxed);
            s.hot.clear();
        }
        for (i, e) in (*TABLES.entries.get()).iter_mut().enumerate() {
            e.hot_at = NONE;
            e.covered = false;
            if e.live
                && e.hooked
                && let Some(s) = set(e.set)
            {
                e.hot_at = s.hot.len() as u32;
                s.hot.push(i as u32);
            }
        }
    }
}
