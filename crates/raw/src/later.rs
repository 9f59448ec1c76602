//! Code that is mapped while the program runs: libraries that it opens, and those that the loader of musl
//! maps before it begins. Jumps are put in it before whoever maps it learns where it lies.
//!
//! Code that the program writes itself is left alone, and what a program maps is never refused: of calls
//! that cannot be told there the log tells.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int};
use core::ops::Range;

use alloc::vec::Vec;
use shm::lock::FastLock;
use shm::segment::kernel_page;
use sites::Call;
use smc::{log, sys};
use socket::fds;

use crate::call::plain;
use crate::load::Headers;
use crate::patch::{Area, CODE, Code, Judged, protect};

/// So many are remembered, the last ones.
const MOST: usize = 64;

/// Code with jumps in it, and the area that they lead to.
struct Changed {
    code: Range<usize>,
    area: Area,
}

struct Known {
    changed: [Option<Changed>; MOST],
    /// What was mapped of programs and libraries without being executable so far.
    files: [Range<usize>; MOST],
    next: usize,
}

struct All(UnsafeCell<Known>);
// SAFETY: used under `LOCK`.
unsafe impl Sync for All {}
static KNOWN: All = All(UnsafeCell::new(Known {
    changed: [const { None }; MOST],
    files: [const { 0..0 }; MOST],
    next: 0,
}));
static LOCK: FastLock<false> = FastLock::new();

/// What is known, unless this is a signal handler that has interrupted its change.
fn with<R>(f: impl FnOnce(&mut Known) -> R) -> Option<R> {
    let _guard = LOCK.lock().ok()?;
    // SAFETY: under the lock.
    Some(f(unsafe { &mut *KNOWN.0.get() }))
}

/// In the child of a fork, where the thread that holds the lock may not be.
///
/// # Safety
/// By its only thread.
pub unsafe fn after_fork_child() {
    // SAFETY: forwarded.
    unsafe { LOCK.reset() };
}

fn touches(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The pages from a call's first argument on, as many as its second says. Of a length that is refused:
/// to the end of all memory.
fn pages(call: &Call) -> Range<usize> {
    let [at, len, ..] = call.given;
    let end = at.saturating_add(len).checked_next_multiple_of(kernel_page());
    at..end.unwrap_or(usize::MAX)
}

/// What is known of a range. It is taken out while the range is still what it was: behind a munmap
/// another thread may have mapped code there, and what is known of that would go with it.
#[derive(Default)]
struct Taken {
    changed: Vec<Changed>,
    files: Vec<Range<usize>>,
}

fn take(range: &Range<usize>) -> Taken {
    let all = with(|known| Taken {
        changed: known
            .changed
            .iter_mut()
            .filter_map(|place| place.take_if(|it| it.is_in(range)))
            .collect(),
        files: known
            .files
            .iter_mut()
            .filter(|file| touches(file, range))
            .map(core::mem::take)
            .collect(),
    });
    all.unwrap_or_default()
}

impl Taken {
    /// The range is as it was.
    fn put_back(self) {
        with(|known| self.files.into_iter().for_each(|file| known.note_file(file)));
        self.changed.into_iter().for_each(|changed| remember(changed.code, changed.area));
    }

    /// Something else is there now, or nothing.
    fn forget(self) {
        self.changed.iter().for_each(|changed| changed.area.unmap());
    }
}

impl Changed {
    fn is_in(&self, range: &Range<usize>) -> bool {
        range.start <= self.code.start && self.code.end <= range.end
    }
}

impl Known {
    fn note_file(&mut self, file: Range<usize>) {
        let free = self.files.iter().position(Range::is_empty);
        let place = free.unwrap_or(self.next);
        self.files[place] = file;
        self.next = (place + 1) % MOST;
    }
}

fn remember(code: Range<usize>, area: Area) {
    with(|known| {
        if let Some(place) = known.changed.iter_mut().find(|place| place.is_none()) {
            *place = Some(Changed { code, area });
        }
    });
}

/// A call of munmap, and its result.
pub fn unmap(call: &Call) -> isize {
    let taken = take(&pages(call));
    let result = plain(call);
    if result == 0 {
        taken.forget()
    } else {
        taken.put_back()
    }
    result
}

/// A call of mmap, and its result.
pub fn map(call: &Call) -> isize {
    let result = plain(call);
    let Ok(at) = usize::try_from(result) else { return result };
    let range = at..(at + call.given[1]).next_multiple_of(kernel_page());
    // What lay there before, if anything did, ended with this very call.
    take(&range).forget();
    let [_, _, access, flags, file, offset] = call.arguments();
    let (access, flags, file) = (access as c_int, flags as c_int, file as c_int);
    // What others may write to as well is no file of code.
    let is_private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    if !is_private || flags & libc::MAP_ANONYMOUS != 0 || fds::has_stopped() {
        return result;
    }
    // Behind the file's end there is no memory.
    let size = sys::stat(file).map_or(0, |stat| stat.st_size as usize);
    let range = at..at + range.len().min(size.saturating_sub(offset));
    if access & libc::PROT_EXEC == 0 {
        if Headers::read(file).is_some() {
            with(|known| known.note_file(range));
        }
        return result;
    }
    let parts = parts(file, &range, offset);
    let changed = change(&parts, range.start / kernel_page() * kernel_page()..range.end, access);
    if changed == Some(false) {
        return result;
    }
    let link = sys::link_of_descriptor(file);
    let mut path = [0; 512];
    let link = CStr::from_bytes_until_nul(&link).unwrap_or_default();
    let _ = sys::readlink(link, &mut path[..511]);
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    if changed.is_none() {
        // As it was: the program runs it as ever.
        let flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
        let arguments =
            [at, call.given[1], call.given[2], flags as usize, call.given[4], call.given[5]];
        // SAFETY: the program's own call, to which the kernel has given this place.
        unsafe { sys::by_list(libc::SYS_mmap, arguments) };
        // A part of it may have got jumps.
        take(&range).forget();
        log::say_code(path, REFUSED);
    } else {
        log::say_code(path, UNDECIDED);
    }
    result
}

const REFUSED: &str = "the kernel does not let it be changed";
const UNDECIDED: &str = "it has system calls that cannot be told, or cannot be made to jump";

/// Where in a file that was mapped from `offset` on there is code: all of it if it is no program or
/// library.
fn parts(file: c_int, range: &Range<usize>, offset: usize) -> Vec<Code> {
    let Some(headers) = Headers::read(file) else {
        return Vec::from([Code { at: range.start, len: range.len() }]);
    };
    let place = |at: u64| (at as usize).clamp(offset, offset + range.len()) - offset + range.start;
    let code = headers.code().map(|code| (place(code.start), place(code.end)));
    code.filter(|(from, to)| from < to).map(|(at, to)| Code { at, len: to - at }).collect()
}

/// Puts jumps where they are to be in code that may be used by `access`. Whether there are calls that
/// cannot be told; None if it cannot be changed.
fn change(parts: &[Code], pages: Range<usize>, access: c_int) -> Option<bool> {
    let is_readable = access & libc::PROT_READ != 0;
    let pages = (pages.start, pages.len().next_multiple_of(kernel_page()));
    if parts.is_empty() || !is_readable && protect(pages, CODE).is_none() {
        return Some(false);
    }
    let changed = patch(parts, access | libc::PROT_READ);
    if !is_readable {
        // Not before: what jumps lead to is made of what is there, and a read of code that may only be run
        // ends the program.
        protect(pages, access);
    }
    changed
}

/// The same, in code that is readable.
fn patch(parts: &[Code], access: c_int) -> Option<bool> {
    let all: Vec<Judged> = parts.iter().map(Code::judge).collect();
    let mut is_undecided = all.iter().any(|judged| judged.undecided > 0);
    for (code, judged) in parts.iter().zip(&all).filter(|(_, judged)| !judged.windows.is_empty()) {
        if access & libc::PROT_WRITE != 0 {
            // Whoever writes to it may write over a jump.
            is_undecided = true;
            continue;
        }
        remember(code.at..code.at + code.len, code.patch(&judged.windows, access)?);
    }
    Some(is_undecided)
}

/// A call of mprotect, and its result.
pub fn protect_as_asked(call: &Call) -> isize {
    let result = plain(call);
    let access = call.given[2] as c_int;
    let is_code = access & (libc::PROT_EXEC | libc::PROT_WRITE) == libc::PROT_EXEC;
    if result != 0 || !is_code || fds::has_stopped() {
        return result;
    }
    let range = pages(call);
    let part = |file: &mut Range<usize>| {
        let (at, end) = (file.start.max(range.start), file.end.min(range.end));
        // Code with jumps in it is not to be judged again.
        *file = if file.start < at { file.start..at } else { end..file.end };
        Code { at, len: end - at }
    };
    let parts = with(|known| {
        known.files.iter_mut().filter(|file| touches(file, &range)).map(part).collect::<Vec<_>>()
    });
    let mut is_refused = false;
    for code in parts.unwrap_or_default() {
        let pages = code.at..code.at + code.len;
        const NAME: &CStr = c"a file that was made code";
        match change(&[code], pages, access) {
            Some(false) => {}
            Some(true) => log::say_code(NAME, UNDECIDED),
            None => {
                log::say_code(NAME, REFUSED);
                is_refused = true;
            }
        }
    }
    // Pages that were changed and put back the kernel may not let be code any more: that is for the
    // program to know.
    if is_refused { plain(call) } else { result }
}
