//! Rings that were made by number, with the memory of their submissions mapped a second time: where
//! the program has it mapped is its own matter.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use shm::guarded::{Fresh, Guarded};
use smc::config::CONFIG;
use smc::sys;

/// `struct io_uring_sqe`, its first 64 bytes, by words.
pub(crate) type Sqe = [AtomicU64; 8];

/// `struct io_uring_params`, of which the kernel fills in the latter part.
#[repr(C)]
pub struct Params {
    sq_entries: u32,
    cq_entries: u32,
    pub(crate) flags: u32,
    sq_thread: [u32; 2],
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq: SqOffsets,
    cq: [u64; 5],
}

/// `struct io_sqring_offsets`: where in the ring's memory its words are.
#[repr(C)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    user_addr: u64,
}

const _: () = assert!(size_of::<Params>() == 120);

/// Submissions are of 128 bytes.
pub(crate) const SETUP_SQE128: u32 = 1 << 10;
const SETUP_NO_SQARRAY: u32 = 1 << 16;

/// A ring of this process was entered where we see it. Before that, one that was made by number may
/// be entered by instruction, past us.
static PROVEN: AtomicBool = AtomicBool::new(false);
/// Rings that were made before that.
static UNPROVEN: AtomicU32 = AtomicU32::new(0);

const MOST: usize = 256;
/// In place of a count of descriptors: the last one is gone, and what was mapped is being given back.
const ENDING: u32 = 1 << 31;
const OFFSET_OF_SQES: u64 = 0x1000_0000;

struct Ring {
    /// Descriptors of it in this process; 0: a free place.
    refs: AtomicU32,
    /// Held from the look at submissions until the kernel has them.
    map: Guarded<Map>,
}

/// Addresses are those of our mappings; none: 0.
struct Map {
    words: usize,
    words_len: usize,
    sqes: usize,
    sqes_len: usize,
    /// Offsets in the first.
    head: u32,
    tail: u32,
    /// 0: there is none, and submissions lie in the order in which they are read.
    array: u32,
    mask: u32,
    /// From one submission to the next, in bytes.
    stride: usize,
}

impl Fresh for Map {
    const FRESH: Self = Self {
        words: 0,
        words_len: 0,
        sqes: 0,
        sqes_len: 0,
        head: 0,
        tail: 0,
        array: 0,
        mask: 0,
        stride: 0,
    };
}

static RINGS: [Ring; MOST] =
    [const { Ring { refs: AtomicU32::new(0), map: Guarded::new() } }; MOST];

fn of(index: u32) -> Option<&'static Ring> {
    RINGS.get(index as usize)
}

/// Notes a ring that the kernel has just made; false where it cannot be looked at. `go_back_all` takes
/// all connections to TCP.
pub(crate) fn note(fd: i32, params: &Params, flags: u32, go_back_all: impl FnOnce()) -> bool {
    let Some(map) = Map::of(fd, params, flags) else { return false };
    let free = RINGS
        .iter()
        .enumerate()
        .find(|(_, ring)| ring.refs.compare_exchange(0, 1, AcqRel, Relaxed).is_ok());
    let Some((index, ring)) = free else {
        map.give_back();
        return false;
    };
    if ring.map.with_kept(|m| *m = map).is_none() {
        // A signal handler that interrupted a look at the ring that was here: the place is lost.
        return false;
    }
    doubt(go_back_all);
    // Not where the number lies beyond our array.
    let noted = super::mark_ring(fd, index as u32);
    if !noted {
        forget(index as u32);
    }
    noted
}

/// `fd` is a further descriptor of it.
pub(crate) fn share(index: u32, fd: i32) {
    if let Some(ring) = of(index) {
        ring.refs.fetch_add(1, Relaxed);
        if !super::mark_ring(fd, index) {
            forget(index);
        }
    }
}

/// A descriptor of it is gone; with the last one what we have mapped goes, which would keep the ring
/// and all that it has under way.
pub(crate) fn forget(index: u32) {
    let Some(ring) = of(index) else { return };
    // The place is not free before its memory is given back.
    let next = |refs: u32| if refs == 1 { ENDING } else { refs.saturating_sub(1) };
    let refs = ring.refs.fetch_update(AcqRel, Acquire, |refs| Some(next(refs)));
    if refs != Ok(1) {
        return;
    }
    // A handler that interrupted a look leaves the place and the memory behind.
    if let Some(map) = ring.map.with_kept(|m| core::mem::replace(m, Map::FRESH)) {
        map.give_back();
        ring.refs.store(0, Release);
    }
    end_doubt();
}

/// In a fork child, which has the same rings.
pub(crate) fn after_fork_child() {
    for ring in RINGS.iter().filter(|ring| ring.refs.load(Relaxed) != 0) {
        // SAFETY: the only thread of the child.
        unsafe { ring.map.after_fork_child() };
    }
}

/// What became of an entry into the kernel.
pub(crate) enum Entered {
    /// What the kernel said, and how many submissions it was told of.
    Took(isize, u32),
    /// Nothing is known of this ring.
    Unknown,
    /// In a signal handler that interrupted an entry.
    Interrupts,
}

/// Shows all submissions of a ring, and then hands the first `most` of them to the kernel by `call`,
/// which must not wait for completions. No other thread does meanwhile: what it has added would be
/// among those that the kernel takes, and was not looked at here.
pub(crate) fn enter(
    index: u32,
    most: u32,
    show: impl FnMut(&Sqe),
    call: impl FnOnce(u32) -> isize,
) -> Entered {
    let Some(ring) = of(index) else { return Entered::Unknown };
    let entered = ring.map.with_kept(|map| {
        if map.words == 0 {
            return Entered::Unknown;
        }
        let n = map.look(show).min(most);
        Entered::Took(call(n), n)
    });
    entered.unwrap_or(Entered::Interrupts)
}

impl Map {
    fn of(fd: i32, params: &Params, flags: u32) -> Option<Self> {
        let at = &params.sq;
        let entries = params.sq_entries;
        let has_array = flags & SETUP_NO_SQARRAY == 0;
        let stride = size_of::<Sqe>() << u32::from(flags & SETUP_SQE128 != 0);
        if !entries.is_power_of_two() || has_array && at.array == 0 {
            return None;
        }
        let of_words = at.head.max(at.tail).max(at.ring_mask) as usize + size_of::<u32>();
        let of_array = at.array as usize + entries as usize * size_of::<u32>();
        let words_len = if has_array { of_words.max(of_array) } else { of_words };
        let sqes_len = entries as usize * stride;
        let words = sys::map_file_at(fd, words_len, 0) as usize;
        let sqes = sys::map_file_at(fd, sqes_len, OFFSET_OF_SQES) as usize;
        let (head, tail) = (at.head, at.tail);
        let array = if has_array { at.array } else { 0 };
        let mask = entries - 1;
        let map = Self { words, words_len, sqes, sqes_len, head, tail, array, mask, stride };
        if words == 0 || sqes == 0 {
            map.give_back();
            return None;
        }
        Some(map)
    }

    fn give_back(self) {
        for (at, len) in [(self.words, self.words_len), (self.sqes, self.sqes_len)] {
            if at != 0 {
                // SAFETY: mapped by `of`, and nobody looks any more.
                unsafe { sys::unmap(at as *mut u8, len) };
            }
        }
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: within the mapping, and the kernel aligns its words.
        unsafe { &*((self.words + offset as usize) as *const AtomicU32) }
    }

    /// How many there are.
    fn look(&self, mut show: impl FnMut(&Sqe)) -> u32 {
        let head = self.word(self.head).load(Acquire);
        let n = self.word(self.tail).load(Acquire).wrapping_sub(head).min(self.mask + 1);
        for at in 0..n {
            let at = head.wrapping_add(at) & self.mask;
            let place = match self.array {
                0 => at,
                array => self.word(array + 4 * at).load(Relaxed),
            };
            // The kernel drops what lies elsewhere.
            if place <= self.mask {
                let sqe = (self.sqes + place as usize * self.stride) as *const Sqe;
                // SAFETY: within the mapping.
                show(unsafe { &*sqe });
            }
        }
        n
    }
}

/// A ring was made by number: until one is entered where we see it, nothing is upgraded.
fn doubt(go_back_all: impl FnOnce()) {
    UNPROVEN.fetch_add(1, SeqCst);
    if PROVEN.load(SeqCst) {
        return;
    }
    CONFIG.pause();
    go_back_all();
    // SYNC: proven. Behind the pause: this look finds the proof, or its `resume` finds the pause.
    if PROVEN.load(SeqCst) {
        CONFIG.resume();
    }
}

/// Rings of this process are entered where we see it.
#[inline]
pub(crate) fn prove() {
    if !PROVEN.load(Relaxed) {
        // SYNC: proven. In front of `resume`; pairs with `doubt` and `end_doubt`.
        PROVEN.store(true, SeqCst);
        CONFIG.resume();
    }
}

/// One of the rings that were made before that is gone.
fn end_doubt() {
    if PROVEN.load(SeqCst) || UNPROVEN.fetch_sub(1, SeqCst) != 1 {
        return;
    }
    CONFIG.resume();
    // SYNC: proven. Another thread may have made a ring in the meantime, and paused what was resumed
    // just now.
    if UNPROVEN.load(SeqCst) != 0 && !PROVEN.load(SeqCst) {
        CONFIG.pause();
        if PROVEN.load(SeqCst) {
            CONFIG.resume();
        }
    }
}
