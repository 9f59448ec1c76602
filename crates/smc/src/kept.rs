//! Counters of a user's programs that have ended, where that user wants them kept.
//!
//! They are in a file in `$SHORTWIRE_RUN_DIR` or /dev/shm, which `shortwire stats --keep` makes: no
//! process of ours leaves a file behind that nobody asked for. It has a row for each program name.
//! A process adds to it when it exits, or becomes another program, what its family has counted and
//! not yet given; one that a signal kills adds nothing. Any process of the user may write anything
//! there. These are numbers that are shown, and nothing here goes by them.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering::*};

use crate::stats::{Direction, Stats};
use crate::table::Header;
use crate::{run_dir, sys};

/// First eight bytes of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SHORTKEP");
/// Layout version.
pub const VERSION: u64 = 1;
/// Names that the file has room for; what further ones count is in the last row.
pub const ROWS: usize = 64;
/// What stands before the user's number in the file's name.
pub const NAME: &str = "shortwire-counters-";

/// The file.
#[repr(C)]
pub struct File {
    /// `MAGIC`.
    pub magic: AtomicU64,
    /// `VERSION`.
    pub version: AtomicU64,
    /// `size_of::<Row>()` of who made it.
    pub row_size: AtomicU64,
    /// By program.
    pub rows: [Row; ROWS],
}

/// Programs of one name. Zero is a free row.
#[repr(C)]
pub struct Row {
    /// As in /proc/PID/comm, filled up with zeros.
    pub name: [AtomicU64; 2],
    /// What they have counted.
    pub stats: Stats,
}

/// Gives what this process's family has counted and not given yet, if the user wants it kept.
#[cold]
pub fn give(table: &Header) {
    let path = run_dir::path(NAME.as_bytes(), rustix::process::geteuid().as_raw());
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return };
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let fd = sys::open(path, flags, 0);
    if fd < 0 {
        return;
    }
    if let Some(file) = map(fd) {
        let row = file.row(own_name());
        row.stats.take(&table.stats, &table.given);
    }
    sys::close(fd);
}

/// A file of our layout that is the user's alone. The directory is everybody's: another user may
/// have put something there.
fn map(fd: i32) -> Option<&'static File> {
    let uid = rustix::process::geteuid().as_raw();
    let st = sys::stat(fd)?;
    let ours = (st.st_uid, st.st_mode) == (uid, libc::S_IFREG | 0o600)
        && st.st_size == size_of::<File>() as i64;
    let at = if ours { sys::map_file(fd, size_of::<File>()) } else { core::ptr::null_mut() };
    // SAFETY: null, or as many bytes as a File has, aligned to a page, and any bytes are one. Never
    // unmapped: the process is about to end.
    let file = unsafe { at.cast::<File>().as_ref() }?;
    let words = [&file.magic, &file.version, &file.row_size].map(|word| word.load(Relaxed));
    (words == [MAGIC, VERSION, size_of::<Row>() as u64]).then_some(file)
}

/// The name of the process, not of the thread that happens to end it.
fn own_name() -> [u64; 2] {
    let mut text = [0u8; 16];
    let fd = sys::open(c"/proc/self/comm", libc::O_RDONLY, 0);
    let got = if fd >= 0 { sys::read(fd, &mut text) } else { 0 };
    if fd >= 0 {
        sys::close(fd);
    }
    text.iter_mut().skip(got.max(0) as usize).for_each(|byte| *byte = 0);
    text.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = 0);
    if text[0] == 0 {
        text[0] = b'?';
    }
    let half = |at: usize| text[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
    [half(0), half(8)]
}

impl File {
    /// The row of a name. Two processes that need a new one at the same moment may take one each:
    /// readers add rows of one name.
    fn row(&self, name: [u64; 2]) -> &Row {
        let known = |row: &Row| row.name.each_ref().map(|word| word.load(Relaxed)) == name;
        let fresh = |row: &Row| {
            let taken = row.name[0].compare_exchange(0, name[0], Relaxed, Relaxed).is_ok();
            if taken {
                row.name[1].store(name[1], Relaxed);
            }
            taken
        };
        let (last, others) = self.rows.split_last().unwrap_or_else(|| unreachable!("64 rows"));
        others.iter().find(|row| known(row) || fresh(row)).unwrap_or(last)
    }
}

impl Direction {
    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        let single =
            [&self.bytes, &self.calls, &self.full, &self.doorbells, &self.reuse, &self.alloc];
        self.sizes.iter().chain(&self.buffers).chain(single)
    }
}

impl Stats {
    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        let single = [
            &self.client,
            &self.server,
            &self.handshake_errors,
            &self.fallback,
            &self.violations,
            &self.damaged,
            &self.link_groups,
            &self.cork,
            &self.nodelay,
            &self.splice,
            &self.urgent,
            &self.wakeups.all,
            &self.wakeups.late,
        ];
        self.rx.words().chain(self.tx.words()).chain(single)
    }

    /// Adds what `now` has beyond `given`, and notes that it was given. Two processes of a family
    /// may do so at once: each count is given by one of them, also where one looks first and notes
    /// last.
    fn take(&self, now: &Stats, given: &Stats) {
        let more = |now: &AtomicU64, given: &AtomicU64| {
            let now = now.load(Relaxed);
            now.saturating_sub(given.fetch_max(now, Relaxed))
        };
        // Reasons before connections, see `Stats::count_fallback`.
        for (now, given) in now.reasons.iter().zip(&given.reasons) {
            let now = now.load(Relaxed);
            let (reason, count) = ((now >> 32) as u32, now & u64::from(u32::MAX));
            let before = given.fetch_max(now, Relaxed) & u64::from(u32::MAX);
            self.add_reason(reason, count.saturating_sub(before));
        }
        for ((sum, now), given) in self.words().zip(now.words()).zip(given.words()) {
            sum.fetch_add(more(now, given), Release);
        }
        self.wakeups.longest_us.fetch_max(now.wakeups.longest_us.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason;

    fn zeroed<T>() -> Box<T> {
        // SAFETY: zero is a valid value of all that is made so here.
        unsafe { Box::<T>::new_zeroed().assume_init() }
    }

    #[test]
    fn what_was_counted_is_given_once() {
        let (file, now, given) = (zeroed::<File>(), zeroed::<Stats>(), zeroed::<Stats>());
        let row = file.row([7, 8]);
        let told = |row: &Row| {
            let counted = row.stats.by_reason();
            (row.stats.tx.bytes.load(Relaxed), row.stats.fallback.load(Relaxed), counted)
        };
        let [usual, other] = [reason::NOT_YET, reason::MEMORY].map(|reason| reason.code());
        now.tx.bytes.store(100, Relaxed);
        now.count_fallback(usual);
        now.count_fallback(other);
        row.stats.take(&now, &given);
        row.stats.take(&now, &given);
        assert_eq!(told(row), (100, 2, vec![(other, 1), (usual, 1)]));
        now.tx.bytes.store(150, Relaxed);
        now.count_fallback(usual);
        now.count_fallback(other);
        row.stats.take(&now, &given);
        assert_eq!(told(row), (150, 4, vec![(other, 2), (usual, 2)]));
    }

    #[test]
    fn each_reason_has_its_connections_and_the_usual_one_the_rest() {
        let stats = zeroed::<Stats>();
        assert_eq!(stats.by_reason(), []);
        for reason in [
            reason::NOT_YET,
            reason::MEMORY,
            reason::NOT_YET,
            reason::NOBODY,
            reason::MEMORY,
            reason::NOT_YET,
        ] {
            stats.count_fallback(reason.code());
        }
        let counted = [(reason::MEMORY, 2), (reason::NOBODY, 1), (reason::NOT_YET, 3)];
        assert_eq!(stats.by_reason(), counted.map(|(reason, n)| (reason.code(), n)));
        assert_eq!(stats.fallback.load(Relaxed), 6);
        // An earlier build's count of it stands in both places.
        stats.add_reason(reason::NOT_YET.code(), 3);
        assert_eq!(stats.by_reason(), counted.map(|(reason, n)| (reason.code(), n)));
        // More in the cells than in all: of a process that ends at this moment.
        stats.add_reason(reason::MEMORY.code(), 9);
        assert_eq!(
            stats.by_reason()[..2],
            [(reason::MEMORY.code(), 11), (reason::NOBODY.code(), 1)]
        );
        assert_eq!(stats.by_reason().len(), 2);
    }

    #[test]
    fn each_name_has_a_row_and_the_last_is_for_all_others() {
        let file = zeroed::<File>();
        assert!(core::ptr::eq(file.row([1, 2]), &file.rows[0]));
        assert!(core::ptr::eq(file.row([1, 3]), &file.rows[1]));
        assert!(core::ptr::eq(file.row([1, 2]), &file.rows[0]));
        (10..100).for_each(|name| _ = file.row([name, 0]));
        assert!(core::ptr::eq(file.row([1000, 0]), &file.rows[ROWS - 1]));
        assert_eq!(file.rows[ROWS - 1].name[0].load(Relaxed), 0);
    }

    #[test]
    fn the_name_is_the_processs() {
        let text = std::fs::read_to_string("/proc/self/comm").expect("a name");
        let bytes = own_name().map(u64::to_ne_bytes).concat();
        let name = core::str::from_utf8(&bytes).expect("ASCII").trim_end_matches('\0');
        assert_eq!(name, text.trim_end());
    }
}
