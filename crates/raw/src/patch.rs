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
    /// if there are none; None if that cannot be done: the code is as it was then, as far as the kernel
    /// lets it be code.
    pub fn patch(&self, windows: &[Window], access: i32) -> Option<Area> {
        if windows.is_empty() {
            return Some(Area { at: 0, len: 0 });
        }
        let area = Area::near(self, AREA_HEAD + windows.len() * LONGEST_STUB)?;
        let put = match self.write_stubs(windows, &area) {
            Some(mut jumps) => self.exchange(&mut jumps, access),
            None => Put::No,
        };
        if put == Put::No {
            area.unmap();
        }
        (put == Put::Yes).then_some(area)
    }

    /// Writes what jumps lead to, and makes it code: who forbids that has forbidden it before the
    /// program's is touched.
    fn write_stubs(&self, windows: &[Window], area: &Area) -> Option<Vec<Jump>> {
        put(area.at, &sites::area_head(entry(), &OF_PROGRAMS));
        let jumps = windows.iter().enumerate().map(|(i, window)| {
            let stub = area.at + AREA_HEAD + i * LONGEST_STUB;
            put_stub(self, window, area.at, stub, Plain::InPlace)?;
            Jump::to(self, window, stub)
        });
        let jumps = jumps.collect::<Option<Vec<_>>>()?;
        arch::is_code(area.at, area.len);
        protect((area.at, area.len), CODE)?;
        Some(jumps)
    }

    /// Puts the jumps in their places. Where the kernel lets it be changed, and then be code no more, what
    /// was there is put back: part of a jump would end the program, and so would one that leads nowhere.
    fn exchange(&self, jumps: &mut [Jump], access: i32) -> Put {
        const CHANGING: i32 = libc::PROT_READ | libc::PROT_WRITE;
        let put = match self.protect(CHANGING) {
            None => Put::No,
            Some(()) => {
                jumps.iter_mut().for_each(Jump::exchange);
                match self.protect(access) {
                    Some(()) => return Put::Yes,
                    None if self.protect(CHANGING).is_none() => Put::ForEver,
                    None => {
                        jumps.iter_mut().for_each(Jump::exchange);
                        Put::No
                    }
                }
            }
        };
        // A range may have been changed in part before it was refused.
        self.protect(access);
        put
    }

    /// Its pages may be used so from now on.
    pub fn protect(&self, how: i32) -> Option<()> {
        let page = kernel_page();
        let from = self.at / page * page;
        protect((from, (self.at + self.len).next_multiple_of(page) - from), how)
    }
}

/// Whether jumps are in code.
#[derive(PartialEq, Eq)]
enum Put {
    Yes,
    No,
    /// They could not be taken out again.
    ForEver,
}

/// A jump or, once it is in its place, the bytes that were there.
struct Jump {
    at: usize,
    bytes: [u8; LONGEST_WINDOW],
    len: usize,
}

impl Jump {
    fn to(code: &Code, window: &Window, stub: usize) -> Option<Jump> {
        let (at, len) = (code.at + window.start, window.replaced().len());
        let mut bytes = [0; LONGEST_WINDOW];
        sites::jump(code.at as u64, window, stub as u64, &mut bytes[..len])?;
        Some(Jump { at, bytes, len })
    }

    /// With what is there, in code that is writable now.
    fn exchange(&mut self) {
        let ours = &mut self.bytes[..self.len];
        // SAFETY: in code that is readable now and runs later.
        let theirs = unsafe { slice::from_raw_parts(self.at as *const u8, ours.len()) };
        let mut before = [0; LONGEST_WINDOW];
        before[..ours.len()].copy_from_slice(theirs);
        put(self.at, ours);
        arch::is_code(self.at, ours.len());
        self.bytes = before;
    }
}

/// Puts one jump in code that is writable now, and what it leads to at `stub` in the area. Where a call
/// is made that is left to the program.
#[cfg(target_arch = "x86_64")]
pub fn put_jump(
    code: &Code,
    window: &Window,
    area: usize,
    stub: usize,
    made: Plain,
) -> Option<usize> {
    let plain = put_stub(code, window, area, stub, made)?;
    Jump::to(code, window, stub)?.exchange();
    Some(plain)
}

/// The first half of it.
fn put_stub(code: &Code, window: &Window, area: usize, stub: usize, made: Plain) -> Option<usize> {
    let mut bytes = [0; LONGEST_STUB];
    let (text, base) = (code.bytes(), code.at as u64);
    let (area, at) = (area as u64, stub as u64);
    let Stub { len, plain } = sites::stub(text, base, window, area, at, made, &mut bytes)?;
    put(stub, &bytes[..len]);
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
