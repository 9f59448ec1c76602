//! Go programs that have libc in them (cgo): Go's own system calls are led here.
//!
//! Go makes its system calls by instructions of its own, past libc and every hook. In a process that
//! has libc nevertheless these are looked for in the program's code before it runs, and each whose
//! number may be one of ours gets a jump to `entry.rs` in its place. All of them or none: a read that
//! is seen beside a write that is not would put wrong bytes on a connection. Code is changed by
//! this one thread, before main and before Go has any.
#![allow(unsafe_code)]

mod entry;

use core::ops::Range;
use core::slice;

use libc::{Elf64_Phdr, PROT_EXEC, PROT_READ, PROT_WRITE};
use sites::{AREA_HEAD, Found, LONGEST_STUB, LONGEST_WINDOW, OF_CONNECTIONS, Plain, Window};
use smc::config::CONFIG;
use smc::sys;

/// Takes a Go program's own calls over, where all of them can be had. A program that is none, or of
/// which not all can be told, stays as it is.
pub fn follow() {
    if CONFIG.go.load(core::sync::atomic::Ordering::Relaxed)
        && let Some(program) = Program::this()
        && program.is_go()
        && program.has_threads_of_libc()
        && let Some(plan) = Plan::of(&program)
        && entry::prepare()
    {
        plan.carry_out();
    }
}

/// The program of this process, as the loader has mapped it.
struct Program {
    headers: &'static [Elf64_Phdr],
    /// What is added to the addresses in its file.
    moved: usize,
}

impl Program {
    fn this() -> Option<Program> {
        // SAFETY: a look into the auxiliary vector.
        let at = unsafe { libc::getauxval(libc::AT_PHDR) };
        // SAFETY: as above.
        let n = unsafe { libc::getauxval(libc::AT_PHNUM) };
        if at == 0 {
            return None;
        }
        // SAFETY: the kernel tells where the program's headers are, and how many.
        let headers = unsafe { slice::from_raw_parts(at as *const Elf64_Phdr, n as usize) };
        let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR)?;
        Some(Program { headers, moved: (at as usize).checked_sub(own.p_vaddr as usize)? })
    }

    fn segments(&self, kind: u32) -> impl Iterator<Item = &'static Elf64_Phdr> {
        self.headers.iter().filter(move |header| header.p_type == kind)
    }

    /// What is mapped of a segment's file.
    fn content(&self, segment: &Elf64_Phdr) -> &'static [u8] {
        let at = self.moved + segment.p_vaddr as usize;
        // SAFETY: the loader has mapped it, and it stays; changed by `carry_out` alone.
        unsafe { slice::from_raw_parts(at as *const u8, segment.p_filesz as usize) }
    }

    /// Whether Go's linker has left its note.
    fn is_go(&self) -> bool {
        self.segments(libc::PT_NOTE).any(|segment| {
            self.content(segment).windows(8).any(|eight| eight == b"\x04\0\0\0Go\0\0")
        })
    }

    /// Whether Go's threads are libc's here: else they have thread pointers of Go's own, behind which
    /// there is nothing of ours. Where libc is linked in for more than its name, Go has it make them.
    fn has_threads_of_libc(&self) -> bool {
        let Some(dynamic) = self.segments(libc::PT_DYNAMIC).next() else { return false };
        let content = self.content(dynamic);
        let value = |tag: u64| {
            let words = |entry: &[u8], at: usize| {
                entry[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
            };
            content.chunks_exact(16).find(|e| words(e, 0) == tag).map(|e| words(e, 8) as usize)
        };
        const STRTAB: u64 = 5;
        const STRSZ: u64 = 10;
        let (Some(at), Some(len)) = (value(STRTAB), value(STRSZ)) else { return false };
        // The loader may have made an address of it.
        let at = if at < self.moved { at + self.moved } else { at };
        // SAFETY: the loader reads names there, too.
        let names = unsafe { slice::from_raw_parts(at as *const u8, len) };
        // A name that another one ends in lies there, and not by itself: programs that export Go's
        // own names have `_cgo_try_pthread_create`.
        const THREADS: &[u8] = b"pthread_create\0";
        names.windows(THREADS.len()).any(|name| name == THREADS)
    }

    /// The one segment with code.
    fn code(&self) -> Option<&'static Elf64_Phdr> {
        let mut code = self.segments(libc::PT_LOAD).filter(|s| s.p_flags & libc::PF_X != 0);
        let first = code.next()?;
        let is_plain = first.p_flags & libc::PF_W == 0 && code.next().is_none();
        is_plain.then_some(first)
    }
}

/// What is to be changed in a program.
struct Plan {
    code: &'static [u8],
    /// Where `code` is in the program's file.
    offset: i64,
    windows: Vec<Window>,
}

impl Plan {
    /// None if a site is undecided, or the one is missing by which Go makes most of its calls: it has
    /// been told its number.
    fn of(program: &Program) -> Option<Plan> {
        let segment = program.code()?;
        let code = program.content(segment);
        let mut windows = Vec::new();
        for (at, found) in sites::find(code, &OF_CONNECTIONS) {
            match found {
                Found::Data | Found::Unwanted(_) => {}
                // The upper halves of vector registers are not kept.
                Found::Site(_) if sites::is_among_wide(code, at) => return None,
                Found::Site(window) if !window.has_number() && !is_gos(code, at) => {
                    return None;
                }
                Found::Site(window) => windows.push(window),
                Found::Undecided(_) => return None,
            }
        }
        let has_any = !windows.iter().all(Window::has_number);
        has_any.then_some(Plan { code, offset: segment.p_offset as i64, windows })
    }

    fn base(&self) -> usize {
        self.code.as_ptr() as usize
    }

    /// Writes the stubs, then the jumps to them. Where the kernel refuses either, everything is as it
    /// was.
    fn carry_out(&self) -> Option<()> {
        // Should it be needed, it is too late to look for it.
        let file = self.file()?;
        let done = self.put_jumps(file);
        sys::close(file);
        done
    }

    /// The program's file, if that is where its code comes from: a loader that was told the program's
    /// name is the kernel's program itself.
    fn file(&self) -> Option<i32> {
        let file = sys::open(c"/proc/self/exe", libc::O_RDONLY | libc::O_CLOEXEC, 0);
        let first = self.windows.first()?;
        let wanted = &self.code[first.start..first.end];
        let mut found = [0; 2 * LONGEST_WINDOW];
        let found = found.get_mut(..wanted.len())?;
        let at = self.offset + first.start as i64;
        // SAFETY: a buffer of that length.
        let n = unsafe { sys::read_into(file, found.as_mut_ptr(), found.len(), Some(at)) };
        if n == wanted.len() as isize && found == wanted {
            return Some(file);
        }
        sys::close(file);
        None
    }

    fn put_jumps(&self, file: i32) -> Option<()> {
        let len = (AREA_HEAD + self.windows.len() * LONGEST_STUB).next_multiple_of(PAGE);
        let area = sys::map_near(self.base()..self.base() + self.code.len(), len)?;
        let mut stubs = Vec::new();
        let written = self.write(area, &mut stubs);
        // Nobody can change the stubs later, and who forbids that memory becomes code has forbidden
        // it before the program's was touched.
        if written.is_none() || !protect(area, len, PROT_READ | PROT_EXEC) {
            // SAFETY: mapped just now, and unknown to all others.
            unsafe { sys::unmap(area as *mut u8, len) };
            return None;
        }
        // The whole segment: the kernel does not join the parts of it again, and profilers that read the map would
        // take functions of the later ones for others.
        let pages =
            self.base() / PAGE * PAGE..(self.base() + self.code.len()).next_multiple_of(PAGE);
        if !protect(pages.start, pages.len(), PROT_READ | PROT_WRITE) {
            return None;
        }
        let all = self.windows.iter().zip(stubs).all(|(window, stub)| self.put(window, stub));
        if !all || !protect(pages.start, pages.len(), PROT_READ | PROT_EXEC) {
            self.take_back(file, pages);
        }
        Some(())
    }

    /// Puts the jump to a stub into a window.
    fn put(&self, window: &Window, stub: u64) -> bool {
        let mut bytes = [0; LONGEST_WINDOW];
        let bytes = &mut bytes[..window.replaced().len()];
        let written = sites::jump(self.base() as u64, window, stub, bytes).is_some();
        if written {
            let at = (self.base() + window.start) as *mut u8;
            // SAFETY: the program's code, writable now; nobody else looks at it before main.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        }
        written
    }

    /// Puts head and stubs into an area, and the stubs' addresses into a list.
    fn write(&self, area: usize, stubs: &mut Vec<u64>) -> Option<()> {
        let put = |at: usize, bytes: &[u8]| {
            // SAFETY: in the area, which has room for that many stubs.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        };
        put(area, &sites::area_head(entry::address(), &OF_CONNECTIONS));
        for (i, window) in self.windows.iter().enumerate() {
            let mut bytes = [0; LONGEST_STUB];
            let at = area + AREA_HEAD + i * LONGEST_STUB;
            let base = self.base() as u64;
            let (area, made) = (area as u64, Plain::InPlace);
            let stub = sites::stub(self.code, base, window, area, at as u64, made, &mut bytes)?;
            put(at, &bytes[..stub.len]);
            stubs.push(at as u64);
        }
        Some(())
    }

    /// Changed code may not become code again: the file's is mapped in its place.
    #[cold]
    fn take_back(&self, file: i32, pages: Range<usize>) {
        let offset = self.offset + pages.start as i64 - self.base() as i64;
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        // SAFETY: the program's own pages, with what they held before.
        unsafe {
            libc::mmap(
                pages.start as *mut _,
                pages.len(),
                PROT_READ | PROT_EXEC,
                flags,
                file,
                offset,
            )
        };
    }
}

/// Whether Go's own functions have a system call of this shape. A table among code, as programs with
/// cryptography have them, may hold the two bytes of one in the middle of what looks like instructions,
/// and must stay as it is; that it goes on in one of these ways, too, is out of the question.
fn is_gos(code: &[u8], at: usize) -> bool {
    // cmp rax, -4095; push r12; mov [rsp + x], rax and what follows that.
    const BEHIND: [&[u8]; 3] = [
        &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff],
        &[0x41, 0x54, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff],
        &[0x48, 0x89, 0x44, 0x24],
    ];
    code.get(at + 2..).is_some_and(|rest| BEHIND.iter().any(|shape| rest.starts_with(shape)))
}

const PAGE: usize = 4096;

fn protect(at: usize, len: usize, how: i32) -> bool {
    // SAFETY: pages of the program or of the area, which nobody else uses now.
    unsafe { libc::mprotect(at as *mut _, len, how) == 0 }
}
