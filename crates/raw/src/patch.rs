//! Puts a jump in the place of each system call of a mapped image that may concern a connection.
//!
//! All of them or none: a read that is seen beside a write that is not would put wrong bytes on a
//! connection, and a thread whose making is missed would share its creator's stack.

use alloc::vec::Vec;
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shm::segment::kernel_page;
use sites::{AREA_HEAD, Found, LONGEST_STUB, LONGEST_WINDOW, OF_PROGRAMS, Plain, Stub, Window};
use smc::sys;

use crate::arch;
use crate::candidates::{self, Candidate};

/// Where stubs jump to.
static ENTRY: AtomicU64 = AtomicU64::new(0);

/// Names the entry, before there is any jump.
pub fn lead_to(entry: u64) {
    ENTRY.store(entry, Relaxed);
}

/// Where calls arrive.
pub fn entry() -> u64 {
    ENTRY.load(Relaxed)
}

/// What is in a segment that has been mapped with code.
pub struct Code {
    pub at: usize,
    pub len: usize,
}

impl Code {
    pub fn bytes(&self) -> &'static [u8] {
        // SAFETY: mapped and readable, as long as whoever mapped it wants.
        unsafe { slice::from_raw_parts(self.at as *const u8, self.len) }
    }

    /// Its system calls, judged by the code as it was mapped: a jump would be taken for code of its own.
    pub fn judge(&self) -> Judged {
        Judged::of(sites::find(self.bytes(), &OF_PROGRAMS))
    }

    /// The same of those of which it is known where they may be.
    pub fn judge_only(&self, all: &[Candidate]) -> Judged {
        Judged::of(candidates::judge(self.bytes(), all, &OF_PROGRAMS))
    }

    /// Puts jumps there; the code may then be used by `access`. The area that they lead to, an empty one
    /// if there are none; None if that cannot be done: the code is not to be run from this memory then.
    pub fn patch(&self, windows: &[Window], access: i32) -> Option<Area> {
        if windows.is_empty() {
            return Some(Area { at: 0, len: 0 });
        }
        let area = Area::near(self, AREA_HEAD + windows.len() * LONGEST_STUB)?;
        let is_done = self.put_all(windows, &area, access);
        if is_done.is_none() {
            area.unmap();
        }
        is_done.map(|()| area)
    }

    fn put_all(&self, windows: &[Window], area: &Area, access: i32) -> Option<()> {
        put(area.at, &sites::area_head(entry(), &OF_PROGRAMS));
        self.protect(libc::PROT_READ | libc::PROT_WRITE)?;
        for (i, window) in windows.iter().enumerate() {
            let stub = area.at + AREA_HEAD + i * LONGEST_STUB;
            put_jump(self, window, area.at, stub, Plain::InPlace)?;
        }
        arch::is_code(area.at, area.len);
        let jumps = windows.iter().map(Window::replaced);
        jumps.for_each(|jump| arch::is_code(self.at + jump.start, jump.len()));
        protect((area.at, area.len), CODE)?;
        self.protect(access)
    }

    /// Its pages may be used so from now on.
    pub fn protect(&self, how: i32) -> Option<()> {
        let page = kernel_page();
        let from = self.at / page * page;
        protect((from, (self.at + self.len).next_multiple_of(page) - from), how)
    }
}

/// Puts one jump in code that is writable now, and what it leads to at `stub` in the area. Where a call
/// is made that is left to the program.
pub fn put_jump(
    code: &Code,
    window: &Window,
    area: usize,
    stub: usize,
    made: Plain,
) -> Option<usize> {
    let base = code.at as u64;
    let mut bytes = [0; LONGEST_STUB];
    let (text, area, at) = (code.bytes(), area as u64, stub as u64);
    let Stub { len, plain } = sites::stub(text, base, window, area, at, made, &mut bytes)?;
    put(stub, &bytes[..len]);
    let mut bytes = [0; LONGEST_WINDOW];
    let bytes = &mut bytes[..window.replaced().len()];
    sites::jump(base, window, stub as u64, bytes)?;
    put(code.at + window.start, bytes);
    Some(plain as usize)
}

/// How code is used.
pub const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// What was found in code.
#[derive(Default)]
pub struct Judged {
    /// Where jumps are to be put.
    pub windows: Vec<Window>,
    /// How many calls cannot be told, or cannot be made to jump.
    pub undecided: usize,
}

impl Judged {
    fn of(all: impl Iterator<Item = (usize, Found)>) -> Judged {
        let mut judged = Judged::default();
        let mut end = 0;
        for (_, found) in all {
            match found {
                Found::Data | Found::Unwanted(_) => {}
                Found::Site(window) if window.start >= end => {
                    end = window.end;
                    judged.windows.push(window);
                }
                // What is moved for one call is not there to be moved for the next one.
                Found::Site(_) | Found::Undecided(_) => judged.undecided += 1,
            }
        }
        judged
    }
}

/// Memory that jumps lead to.
pub struct Area {
    pub at: usize,
    pub len: usize,
}

impl Area {
    /// New and writable, where jumps from that code reach it.
    pub fn near(code: &Code, len: usize) -> Option<Area> {
        let len = len.next_multiple_of(kernel_page());
        Some(Area { at: sys::map_near(code.at..code.at + code.len, len)?, len })
    }

    pub fn unmap(&self) {
        // SAFETY: the code that jumps there is gone, or has not run.
        unsafe { sys::unmap(self.at as *mut u8, self.len) };
    }
}

/// Puts bytes in an area, or in code that is writable now.
pub fn put(at: usize, bytes: &[u8]) {
    // SAFETY: in the area, or in code that is writable now and runs later.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

/// Pages may be used so from now on.
pub fn protect((at, len): (usize, usize), how: i32) -> Option<()> {
    // SAFETY: pages of code or of an area, which nobody else uses now.
    (unsafe { sys::by_number(libc::SYS_mprotect, at, len, how as usize, 0, 0, 0) } == 0)
        .then_some(())
}
