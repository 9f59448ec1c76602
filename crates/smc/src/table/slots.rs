//! Which slot is whose. A process takes slots from a file that nobody else has: after a fork both
//! sides leave theirs, and with its next connection each begins another one. A fork costs a few
//! stores, and who makes no connection afterwards has no file.
//!
//! The slots of all files that a process has are mapped at places of one range of addresses, a
//! *chunk* at a time, so that an index, which is a process's own, leads to its slot by one
//! multiplication. What says which slots are free, and which this process uses, is private memory.
//! A chunk of a file that was left goes when this process uses none of its slots; another one is
//! mapped over it then. A fork child never uses the places of chunks that it has inherited for
//! others: in its ledger its parent would take them for the inherited ones.
#![allow(unsafe_code)]

mod heirs;

pub use heirs::{
    adopt, adopt_first, after_fork_child, after_fork_parent, before_fork, keep_for_exec, undo_exec,
};

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU16, AtomicU32, AtomicUsize, Ordering::*, fence,
};

use shm::lock::FastLock;

use super::own::Own;
use super::{CAPACITY, Header, LARGEST_PAGE, MAGIC, SLOTS_AT, VERSION, waits};
use crate::conn::Conn;
use crate::{hidden, sys};

/// Slots of a chunk: whole pages, however large these are and a slot is.
const CHUNK: u32 = {
    let mut slots = 64;
    while !(slots as usize * size_of::<Conn>()).is_multiple_of(LARGEST_PAGE) {
        slots *= 2;
    }
    slots
};
const CHUNKS: usize = (CAPACITY / CHUNK) as usize;
const CHUNK_LEN: usize = CHUNK as usize * size_of::<Conn>();
const _: () = assert!(SLOTS_AT.is_multiple_of(LARGEST_PAGE));

/// Numbers of files: none, the first, and that of a place which an inherited chunk had.
const NONE: u16 = 0;
const FIRST: u16 = 1;
const KEPT_FREE: u16 = u16::MAX;
/// Files beside the first that are kept open for `ss`, at most. The connections of further ones it
/// does not see.
const MOST_OPEN: usize = 32;

/// What this process knows of a place.
struct Place {
    /// In a list of free ones: the next, plus one.
    next: AtomicU32,
    /// Equals `ERA` if this process uses the slot.
    here: AtomicU32,
    /// `Conn::gen_` of the connection that was here last.
    generation: AtomicU32,
    own: Own,
}

/// What is mapped at the places of a chunk.
struct Chunk {
    /// The number of its file.
    file: AtomicU16,
    /// Mapped since before the last fork that made this process.
    inherited: AtomicBool,
}

/// A file, by its number less one.
struct File {
    /// Its hidden descriptor plus one; 0: there is none.
    fd: AtomicI32,
    /// Its chunks that are mapped.
    chunks: AtomicU32,
}

/// From where slots are taken. Guarded by `LOCK`.
struct Book {
    /// Chunks of the current file that are in use.
    chunks: u32,
    /// Slots of its last chunk that were never used.
    next: u32,
    end: u32,
    /// The first free slot, plus one.
    free: u32,
    /// The file that was current before the last fork.
    left: u16,
}

struct Guarded(UnsafeCell<Book>);
// SAFETY: used under `LOCK` alone.
unsafe impl Sync for Guarded {}

static LOCK: FastLock<false> = FastLock::new();
static BOOK: Guarded =
    Guarded(UnsafeCell::new(Book { chunks: 0, next: 0, end: 0, free: 0, left: NONE }));
static CHUNK_AT: [Chunk; CHUNKS] =
    [const { Chunk { file: AtomicU16::new(NONE), inherited: AtomicBool::new(false) } }; CHUNKS];
static FILES: [File; CHUNKS] =
    [const { File { fd: AtomicI32::new(0), chunks: AtomicU32::new(0) } }; CHUNKS];
/// No file from this one on was ever in use.
static TOP: AtomicUsize = AtomicUsize::new(1);
static PLACES: AtomicPtr<Place> = AtomicPtr::new(core::ptr::null_mut());
/// The file that slots are taken from; changed under `LOCK`.
static CURRENT: AtomicU16 = AtomicU16::new(FIRST);
/// The first of the slots that were given back and have not come to `Book::free`, plus one.
static RETURNED: AtomicU32 = AtomicU32::new(0);
/// No place from this one on was ever used.
static USED: AtomicU32 = AtomicU32::new(0);
/// A chunk may have become unused.
static EMPTIED: AtomicBool = AtomicBool::new(false);
/// There was a fork since a slot was taken.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Changes in every fork child, which uses but what it has descriptors of.
static ERA: AtomicU32 = AtomicU32::new(1);

/// Reserves what is known of places; false without memory for it.
pub fn begin() -> bool {
    if PLACES.load(Acquire).is_null() {
        let fresh = sys::reserve(CAPACITY as usize * size_of::<Place>(), false).cast::<Place>();
        // The loser's reservation stays: address space, never touched.
        let _ = PLACES.compare_exchange(core::ptr::null_mut(), fresh, AcqRel, Acquire);
    }
    !PLACES.load(Acquire).is_null()
}

fn place(index: u32) -> &'static Place {
    debug_assert!(index < CAPACITY);
    // SAFETY: below CAPACITY, set before there is a table and so before any index; zeroed memory is
    // a valid Place.
    unsafe { &*PLACES.load(Relaxed).add(index as usize) }
}

/// What this process notes of the connection there.
pub fn own(index: u32) -> &'static Own {
    &place(index).own
}

fn chunk(index: u32) -> &'static Chunk {
    &CHUNK_AT[(index / CHUNK) as usize]
}

/// See `USED`.
pub fn used() -> u32 {
    USED.load(Relaxed)
}

/// Whether this process uses the slot.
#[inline]
pub fn is_here(index: u32) -> bool {
    place(index).here.load(Acquire) == ERA.load(Relaxed)
}

/// Whether the slot is one of a file that this process has.
pub fn is_mapped(index: u32) -> bool {
    !matches!(chunk(index).file.load(Acquire), NONE | KEPT_FREE)
}

/// A free slot, and the generation before that of the connection which is to use it.
pub fn alloc(table: &Header) -> Option<(u32, u32)> {
    let _guard = LOCK.lock().ok()?;
    // SAFETY: the lock is held.
    let book = unsafe { &mut *BOOK.0.get() };
    if FORKED.load(Relaxed) {
        FORKED.store(false, Relaxed);
        book.leave_file();
    }
    if book.free == 0 {
        book.collect();
    }
    let index = match book.free.checked_sub(1) {
        Some(free) => {
            book.free = place(free).next.load(Relaxed);
            free
        }
        None => {
            if book.next == book.end {
                book.grow(table)?;
            }
            book.next += 1;
            USED.store(USED.load(Relaxed).max(book.next), Relaxed);
            book.next - 1
        }
    };
    let place = place(index);
    place.own.clear();
    place.here.store(ERA.load(Relaxed), Release);
    // Even, and another one than any that a late reader may have in mind, also in the fresh memory
    // of a new chunk.
    let generation = place.generation.load(Relaxed).wrapping_add(2) & !1;
    place.generation.store(generation, Relaxed);
    Some((index, generation))
}

/// The connection in a slot has ended, which is told once.
pub fn free(index: u32) {
    end(index, true);
}

/// Others use it on. What this thread reads next it reads behind that.
pub fn leave(index: u32) {
    end(index, false);
    // SYNC: held. Between the leave and the look at who holds it.
    fence(SeqCst);
}

fn end(index: u32, is_free: bool) {
    let place = place(index);
    if place.here.load(Relaxed) != ERA.load(Relaxed) {
        return;
    }
    let is_current = chunk(index).file.load(Relaxed) == CURRENT.load(Relaxed);
    if is_free && is_current {
        give_back(index);
    }
    // SYNC: returned. Behind the slot's return: a chunk that is found unused has none of its slots
    // about to come to the list.
    place.here.store(0, Release);
    if !is_current {
        EMPTIED.store(true, Release);
    }
}

/// Puts a slot on the list of those that `collect` takes in.
fn give_back(index: u32) {
    let mut first = RETURNED.load(Relaxed);
    loop {
        place(index).next.store(first, Relaxed);
        match RETURNED.compare_exchange_weak(first, index + 1, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
}

/// Uses a slot that others use; false if it is not mapped here (any more).
pub fn enter(index: u32) -> bool {
    let Ok(_guard) = LOCK.lock() else { return false };
    if !is_mapped(index) {
        return false;
    }
    place(index).here.store(ERA.load(Relaxed), Release);
    true
}

impl Book {
    /// Takes in what was given back, as far as it lies in the current file.
    fn collect(&mut self) {
        let mut at = RETURNED.swap(0, Acquire);
        while let Some(index) = at.checked_sub(1) {
            let place = place(index);
            at = place.next.load(Relaxed);
            // SYNC: returned. Who returned it has still to mark it as unused, and would mark its
            // next connection so. Another time.
            if place.here.load(Acquire) != 0 {
                give_back(index);
                continue;
            }
            if chunk(index).file.load(Relaxed) == CURRENT.load(Relaxed) {
                place.next.store(self.free, Relaxed);
                self.free = index + 1;
            }
        }
    }

    /// Another chunk of the current file, which is begun if there is none.
    #[cold]
    fn grow(&mut self, table: &Header) -> Option<()> {
        retire();
        let number = CHUNK_AT.iter().position(|chunk| chunk.file.load(Relaxed) == NONE)?;
        if CURRENT.load(Relaxed) == NONE {
            self.begin_file()?;
        }
        let current = CURRENT.load(Relaxed);
        let fd = fd_of(current);
        if current == FIRST {
            // Mapped as a whole, so its chunks are in use in their order.
            table.high_water.store((self.chunks + 1) * CHUNK, Relaxed);
        } else if !put(table, number, self.chunks, fd) {
            return None;
        } else if let Some(fd) = fd {
            write_head(fd, (self.chunks + 1) * CHUNK);
        }
        // SYNC: returned. What was given back of the chunk that was here before is not taken in.
        self.collect();
        FILES[usize::from(current) - 1].chunks.fetch_add(1, Relaxed);
        CHUNK_AT[number].inherited.store(false, Relaxed);
        CHUNK_AT[number].file.store(current, Release);
        self.chunks += 1;
        self.next = number as u32 * CHUNK;
        self.end = self.next + CHUNK;
        Some(())
    }

    /// A file of this process alone. Where none can be had the memory has no name, and `ss` does
    /// not see it.
    fn begin_file(&mut self) -> Option<()> {
        let number = spare_file()?;
        let is_too_many = || {
            files().filter(|file| file.fd.load(Relaxed) != 0).count() > MOST_OPEN
                || !hidden::room_to_stay()
        };
        if self.left > FIRST
            && fd_of(self.left).is_some()
            && is_too_many()
            && let Some(fd) = take_fd(self.left)
        {
            hidden::close(fd);
        }
        let fd = if super::may_be_long() { sys::memfd(c"shortwire-table") } else { -1 };
        if fd >= 0 {
            if sys::set_len(fd, super::len()) == 0 {
                FILES[usize::from(number) - 1].fd.store(hidden::park(fd) + 1, Relaxed);
            } else {
                sys::close(fd);
            }
        }
        self.chunks = 0;
        CURRENT.store(number, Relaxed);
        Some(())
    }

    /// The current file is another process's, too, from now on.
    fn leave_file(&mut self) {
        self.left = CURRENT.swap(NONE, Relaxed);
        (self.next, self.end, self.free, self.chunks) = (0, 0, 0, 0);
        EMPTIED.store(true, Relaxed);
    }
}

/// The number of a file that is not in use; never the first.
fn spare_file() -> Option<u16> {
    let spare = |file: &File| file.chunks.load(Relaxed) == 0 && file.fd.load(Relaxed) == 0;
    let at = FILES.iter().skip(1).position(spare)? + 1;
    TOP.store(TOP.load(Relaxed).max(at + 1), Relaxed);
    Some(at as u16 + 1)
}

/// The files that were ever in use.
fn files() -> impl Iterator<Item = &'static File> {
    FILES[..TOP.load(Relaxed)].iter()
}

/// Maps chunk `nth` of a file at the places of a chunk.
fn put(table: &Header, number: usize, nth: u32, fd: Option<i32>) -> bool {
    let at = table.conn(number as u32 * CHUNK) as *const Conn as *mut _;
    let from = fd.map(|fd| (fd, (SLOTS_AT + nth as usize * CHUNK_LEN) as u64));
    // SAFETY: places of the table, at which nobody uses a connection; who looks at one late finds
    // another at worst.
    unsafe { shm::address::map_over(at, CHUNK_LEN, from) }
}

/// A file's header, for readers; see `Header`.
fn write_head(fd: i32, high_water: u32) {
    let words = [MAGIC as u32, (MAGIC >> 32) as u32, VERSION, size_of::<Conn>() as u32, high_water];
    let mut bytes = [0; 20];
    bytes
        .chunks_exact_mut(4)
        .zip(words)
        .for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
    sys::write_at(fd, &bytes, 0);
}

/// Chunks of files that were left, of which this process uses no slot, go, and with its last one a
/// file. What is mapped stays until something else is mapped there.
fn retire() {
    if !EMPTIED.swap(false, Acquire) {
        return;
    }
    let current = CURRENT.load(Relaxed);
    let chunks = used().div_ceil(CHUNK) as usize;
    for (chunk, first) in CHUNK_AT[..chunks].iter().zip((0..).step_by(CHUNK as usize)) {
        let file = chunk.file.load(Relaxed);
        // SYNC: returned. `is_here` acquires; pairs with `end`.
        if matches!(file, NONE | KEPT_FREE)
            || file == current
            || (first..first + CHUNK).any(is_here)
        {
            continue;
        }
        chunk.file.store(if chunk.inherited.load(Relaxed) { KEPT_FREE } else { NONE }, Release);
        let last = FILES[usize::from(file) - 1].chunks.fetch_sub(1, Relaxed) == 1;
        if last
            && file != FIRST
            && let Some(fd) = take_fd(file)
        {
            hidden::close(fd);
        }
    }
}

fn fd_of(file: u16) -> Option<i32> {
    FILES[usize::from(file) - 1].fd.load(Relaxed).checked_sub(1).filter(|fd| *fd >= 0)
}

fn take_fd(file: u16) -> Option<i32> {
    FILES[usize::from(file) - 1].fd.swap(0, Relaxed).checked_sub(1).filter(|fd| *fd >= 0)
}

/// The first file's descriptor.
pub fn first_fd() -> Option<i32> {
    fd_of(FIRST)
}

/// See `first_fd`.
pub fn first_is(fd: i32) {
    FILES[0].fd.store(fd + 1, Relaxed);
}

/// The descriptors of the files.
pub fn hidden_fds() -> impl Iterator<Item = i32> {
    files().map(|file| file.fd.load(Relaxed) - 1).filter(|fd| *fd >= 0)
}

/// A hidden descriptor had to move.
pub fn moved_fd(from: i32, to: i32) {
    for file in files() {
        let _ = file.fd.compare_exchange(from + 1, to + 1, Relaxed, Relaxed);
    }
}
