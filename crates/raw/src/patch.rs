//! Puts a jump in the place of each system call of a mapped image that may concern a connection.
//!
//! All of them or none: a read that is seen beside a write that is not would put wrong bytes on a
//! connection, and a thread whose making is missed would share its creator's stack.

use alloc::vec::Vec;
use core::slice;

use sites::{AREA_HEAD, Found, LONGEST_STUB, LONGEST_WINDOW, OF_PROGRAMS, Window};
use smc::sys;

use crate::entry;

const PAGE: usize = 4096;

/// What is in a segment that has been mapped with code.
pub struct Code {
    pub at: usize,
    pub len: usize,
}

impl Code {
    fn bytes(&self) -> &'static [u8] {
        // SAFETY: mapped by the loader, readable, for good.
        unsafe { slice::from_raw_parts(self.at as *const u8, self.len) }
    }

    /// Where jumps are to be put here; None if a site is undecided. The windows are judged by the
    /// program as it was: a jump would be taken for code of its own.
    pub fn windows(&self) -> Option<Vec<Window>> {
        let window = |found| match found {
            Found::Data | Found::Unwanted(_) => None,
            Found::Site(window) => Some(Some(window)),
            Found::Undecided(_) => Some(None),
        };
        sites::find(self.bytes(), &OF_PROGRAMS).filter_map(|(_, found)| window(found)).collect()
    }

    /// Puts them. None if that cannot be done: the program is then not to be started from this
    /// memory.
    pub fn patch(&self, windows: &[Window]) -> Option<()> {
        if windows.is_empty() {
            return Some(());
        }
        let n = windows.len();
        let len = (AREA_HEAD + n * LONGEST_STUB).next_multiple_of(PAGE);
        let area = sys::map_near(self.at..self.at + self.len, len)?;
        put(area, &sites::area_head(entry::address(), &OF_PROGRAMS));
        let pages = self.at / PAGE * PAGE;
        let pages = (pages, (self.at + self.len).next_multiple_of(PAGE) - pages);
        protect(pages, libc::PROT_READ | libc::PROT_WRITE)?;
        let code = self.bytes();
        for (i, window) in windows.iter().enumerate() {
            let mut bytes = [0; LONGEST_STUB];
            let stub = area + AREA_HEAD + i * LONGEST_STUB;
            let base = self.at as u64;
            let len = sites::stub(code, base, window, area as u64, stub as u64, &mut bytes)?;
            put(stub, &bytes[..len]);
            let mut bytes = [0; LONGEST_WINDOW];
            let bytes = &mut bytes[..window.replaced().len()];
            sites::jump(base, window, stub as u64, bytes)?;
            put(self.at + window.start, bytes);
        }
        protect(pages, libc::PROT_READ | libc::PROT_EXEC)?;
        protect((area, len), libc::PROT_READ | libc::PROT_EXEC)
    }
}

fn put(at: usize, bytes: &[u8]) {
    // SAFETY: in the area, or in code that is writable now and runs later.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

fn protect((at, len): (usize, usize), how: i32) -> Option<()> {
    // SAFETY: pages of the image or of the area, which nobody else uses now.
    (unsafe { sys::by_number(libc::SYS_mprotect, at, len, how as usize, 0, 0, 0) } == 0)
        .then_some(())
}
