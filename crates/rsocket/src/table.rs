//! From descriptor to socket: two loads, no lock.
//!
//! Sockets lie in memory that is shared over fork, one mapping each, so that parent and child use
//! the same connection as they would a kernel's. The table itself belongs to the process. A
//! socket's memory is never unmapped: a thread that is late finds a closed socket, and its reuse
//! waits for [`QUARANTINE`] others.
#![allow(unsafe_code)]

use crate::kept::Done;
use crate::socket::Socket;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use rustix::fd::RawFd;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use shm::{Errno, FastLock};
use std::collections::VecDeque;

const CHUNK: usize = 1024;
const QUARANTINE: usize = 64;

type Chunk = [AtomicPtr<Socket>; CHUNK];

static CHUNKS: [AtomicPtr<Chunk>; CHUNK] = [const { AtomicPtr::new(null_mut()) }; CHUNK];
/// Forks so far. What memory from before a fork shows may be in use in another process.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Closed sockets: where, and how many forks there had been when they were made.
static FREE: List<u32> = List::new();
/// Mappings of closed streams, and their lengths.
static ENDED: List<usize> = List::new();

/// This process, and how many forks it has made: a random number, 0 before there is one, and below
/// it the count. What is mapped in an era is in the forks of later ones, too, and in no other
/// process.
static ERA: AtomicU64 = AtomicU64::new(0);
/// The last one of this process that a fork has ended.
static FORKED: AtomicU64 = AtomicU64::new(0);
/// Eras of the parents at the forks that led here.
static PAST: [AtomicU64; GENERATIONS] = [const { AtomicU64::new(0) }; GENERATIONS];
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// From further back no stream is used on.
pub const GENERATIONS: usize = 32;
static LIVE: AtomicU32 = AtomicU32::new(0);

/// Forks between the program's start and this process.
pub fn generation() -> usize {
    GENERATION.load(Ordering::Relaxed) as usize
}

/// The present one.
pub fn era() -> u64 {
    let known = ERA.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut random = [0; 4];
    // Without random numbers it is this process's all the same.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    let fresh = u64::from(u32::from_ne_bytes(random) ^ std::process::id() | 1) << 32;
    ERA.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed)
        .map_or_else(|other| other, |_| fresh)
}

/// Whether what was mapped in that era is mapped here.
#[inline]
pub fn is_here(era: u64) -> bool {
    (era ^ ERA.load(Ordering::Relaxed)) >> 32 == 0 || is_inherited(era)
}

fn is_inherited(era: u64) -> bool {
    PAST.iter()
        .map(|past| past.load(Ordering::Relaxed))
        .any(|past| past >> 32 == era >> 32 && past >= era)
}

#[inline]
pub fn get(fd: RawFd) -> Result<&'static Socket, Errno> {
    find(fd).ok_or(Errno::BADF)
}

#[inline]
pub fn find(fd: RawFd) -> Option<&'static Socket> {
    let (high, low) = (fd as usize / CHUNK, fd as usize % CHUNK);
    let chunk = CHUNKS.get(high)?.load(Ordering::Acquire);
    // SAFETY: null, or a chunk that is never freed.
    let entry = unsafe { chunk.as_ref() }?[low].load(Ordering::Acquire);
    // SAFETY: null, or a socket whose memory is never unmapped and only changes through atomics and
    // cells.
    unsafe { entry.as_ref() }
}

/// Makes `socket` known as `fd`, in place of one whose number was closed behind our back.
pub fn insert(fd: RawFd, socket: &'static Socket) -> Result<(), Errno> {
    static REGISTERED: Done = Done::new();
    // Waits for a fork that is under way. SAFETY: registers functions of this library, which is
    // never unloaded.
    REGISTERED.once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), None, Some(after_fork_child));
    });
    crate::socket::is_linked();
    if OWNER.load(Ordering::Relaxed) == 0 {
        OWNER.store(std::process::id(), Ordering::Relaxed);
    }
    let (high, low) = (fd as usize / CHUNK, fd as usize % CHUNK);
    let place = CHUNKS.get(high).ok_or(Errno::MFILE)?;
    let mut chunk = place.load(Ordering::Acquire);
    if chunk.is_null() {
        let fresh: *mut Chunk =
            Box::into_raw(Box::new([const { AtomicPtr::new(null_mut()) }; CHUNK]));
        chunk = match place.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: made above and seen by nobody.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
    }
    // SAFETY: never freed once it is in place.
    let chunk = unsafe { &*chunk };
    let before = chunk[low].swap(core::ptr::from_ref(socket).cast_mut(), Ordering::AcqRel);
    if before.is_null() {
        LIVE.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The process whose table this is.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// False in the child of a `vfork`.
pub fn is_own_process() -> bool {
    matches!(OWNER.load(Ordering::Relaxed), 0)
        || OWNER.load(Ordering::Relaxed) == std::process::id()
}

/// The numbers of all sockets.
pub fn each_number(mut f: impl FnMut(RawFd)) {
    for (high, chunk) in CHUNKS.iter().enumerate() {
        // SAFETY: null, or never freed.
        let Some(chunk) = (unsafe { chunk.load(Ordering::Acquire).as_ref() }) else { continue };
        for (low, entry) in chunk.iter().enumerate() {
            if !entry.load(Ordering::Acquire).is_null() {
                f((high * CHUNK + low) as RawFd);
            }
        }
    }
}

/// Only who gets it may take it apart.
pub fn remove(fd: RawFd) -> Option<&'static Socket> {
    let (high, low) = (fd as usize / CHUNK, fd as usize % CHUNK);
    let chunk = CHUNKS.get(high)?.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    let entry = unsafe { chunk.as_ref() }?[low].swap(null_mut(), Ordering::AcqRel);
    if !entry.is_null() {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
    // SAFETY: as in `find`.
    unsafe { entry.as_ref() }
}

/// How many there are.
pub fn live() -> u32 {
    LIVE.load(Ordering::Relaxed)
}

/// Addresses that rest until [`QUARANTINE`] others have come behind them.
struct List<T> {
    /// One that the child of a fork can take over from a thread that it does not have.
    lock: FastLock<false>,
    resting: UnsafeCell<VecDeque<(usize, T)>>,
}

// SAFETY: used under the lock.
unsafe impl<T: Send> Sync for List<T> {}

impl<T> List<T> {
    const fn new() -> Self {
        Self { lock: FastLock::new(), resting: UnsafeCell::new(VecDeque::new()) }
    }

    /// None in a signal handler that has interrupted another call of it.
    fn with<R>(&self, f: impl FnOnce(&mut VecDeque<(usize, T)>) -> R) -> Option<R> {
        let (_held, recovered) = self.lock.lock_recovering().ok()?;
        if recovered {
            // It may be half changed. SAFETY: under the lock; what it held is given up.
            unsafe { self.resting.get().write(VecDeque::new()) };
        }
        // SAFETY: under the lock.
        Some(f(unsafe { &mut *self.resting.get() }))
    }

    /// In a signal handler that has interrupted another call of it the address is left out, and stays
    /// mapped.
    fn push(&self, at: usize, what: T) {
        self.with(|resting| resting.push_back((at, what)));
    }

    /// One that has rested.
    fn pop(&self) -> Option<(usize, T)> {
        self.with(|resting| if resting.len() > QUARANTINE { resting.pop_front() } else { None })?
    }
}

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::NORESERVE);

/// Zeroed memory that a fork shares.
pub fn map(len: usize) -> Result<*mut u8, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe { mmap_anonymous(null_mut(), len, ACCESS, SHARED) }.map(<*mut _>::cast)
}

/// Other memory, zeroed, at the same place.
///
/// # Safety
/// A mapping of [`map`] of that length, which this process does not use.
unsafe fn map_anew(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: by the contract.
    unsafe { mmap_anonymous(at.cast(), len, ACCESS, SHARED | MapFlags::FIXED) }.map(drop)
}

/// Ends a mapping of a stream that was closed, once many more have been. A call that another thread
/// has begun, or that a signal handler interrupted to close the stream, may yet read it.
pub fn unmap_later(at: *mut u8, len: usize) {
    ENDED.push(at as usize, len);
    if let Some((at, len)) = ENDED.pop() {
        // SAFETY: a mapping of ours, which nobody has known for as long as others were closed.
        let _ = unsafe { rustix::mm::munmap(at as *mut _, len) };
    }
}

/// Memory for one socket.
pub fn allocate() -> Result<*mut Socket, Errno> {
    let forks = FORKS.load(Ordering::Relaxed);
    if let Some((old, then)) = FREE.pop() {
        let old = old as *mut Socket;
        // SAFETY: that of a socket that was closed here, and is known to nobody any more.
        if then == forks || unsafe { map_anew(old.cast(), size_of::<Socket>()) }.is_ok() {
            return Ok(old);
        }
    }
    map(size_of::<Socket>()).map(<*mut u8>::cast)
}

/// The socket was closed here. Others that a fork gave it to may still use it.
pub fn release(socket: &'static Socket) {
    FREE.push(core::ptr::from_ref(socket) as usize, socket.born());
}

pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// All sockets.
pub fn each(mut f: impl FnMut(&'static Socket)) {
    for chunk in &CHUNKS {
        // SAFETY: null, or never freed.
        let Some(chunk) = (unsafe { chunk.load(Ordering::Acquire).as_ref() }) else { continue };
        for entry in chunk {
            // SAFETY: as in `find`.
            if let Some(socket) = unsafe { entry.load(Ordering::Acquire).as_ref() } {
                f(socket);
            }
        }
    }
}

extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    era();
    // The era ends first: what is mapped in it from now on is told as of the next. Two threads may
    // be forking, and the child of either has what both have ended.
    FORKED.fetch_max(ERA.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    each(Socket::share);
}

extern "C" fn after_fork_child() {
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed) as usize;
    PAST[generation % GENERATIONS].store(FORKED.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    ERA.store(0, Ordering::Relaxed);
    OWNER.store(std::process::id(), Ordering::Relaxed);
    dibs::Device::after_fork_child(&crate::shared::DEVICE);
    crate::shared::after_fork_child();
}
