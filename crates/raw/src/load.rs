//! Maps a program, and the loader that it names, as the kernel would.

use core::ffi::CStr;
use core::ops::Range;

use libc::{Elf64_Ehdr, Elf64_Phdr};
use shm::segment::kernel_page;
use smc::sys;

use crate::arch;
use crate::patch::Code;

/// More segments than any program has.
const MOST: usize = 64;

/// A file that was mapped.
pub struct Image {
    /// What is added to the addresses in the file.
    moved: usize,
    pub entry: usize,
    /// Its program headers, as they are mapped.
    pub headers: usize,
    pub n_headers: usize,
    /// Where it begins and ends.
    pub from: usize,
    pub to: usize,
    code: [(usize, usize); 4],
    n_code: usize,
    /// The name of its loader, NUL-terminated; empty: it has none.
    loader: [u8; 256],
}

/// The headers of a program that can be mapped here.
pub struct Headers {
    file: Elf64_Ehdr,
    segments: [Elf64_Phdr; MOST],
}

impl Headers {
    /// None if it is no program of this machine, or cannot be read.
    pub fn read(fd: i32) -> Option<Headers> {
        // SAFETY: zeros are valid headers.
        let mut headers: Headers = unsafe { core::mem::zeroed() };
        read_at(fd, &raw mut headers.file, size_of::<Elf64_Ehdr>(), 0)?;
        let file = &headers.file;
        let is_one = file.e_ident[..7] == *b"\x7fELF\x02\x01\x01"
            && file.e_machine == arch::MACHINE
            && matches!(file.e_type, 2 | 3)
            && usize::from(file.e_phentsize) == size_of::<Elf64_Phdr>()
            && (1..=MOST).contains(&usize::from(file.e_phnum));
        let len = usize::from(file.e_phnum) * size_of::<Elf64_Phdr>();
        let at = file.e_phoff;
        is_one.then(|| read_at(fd, headers.segments.as_mut_ptr(), len, at)).flatten()?;
        // Its instructions lie where they are looked for.
        let is_aligned = headers.code().all(|part| part.start.is_multiple_of(sites::ALIGN));
        is_aligned.then_some(headers)
    }

    fn of_kind(&self, kind: u32) -> impl Iterator<Item = &Elf64_Phdr> {
        let all = &self.segments[..usize::from(self.file.e_phnum)];
        all.iter().filter(move |segment| segment.p_type == kind)
    }

    /// Whether its main thread's stack is to be executed: the kernel has made it as this program's own
    /// headers say.
    pub fn wants_stack_with_code(&self) -> bool {
        self.of_kind(libc::PT_GNU_STACK).any(|stack| stack.p_flags & libc::PF_X != 0)
    }

    /// Where in the file its code is.
    pub fn code(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let code = self.of_kind(libc::PT_LOAD).filter(|part| part.p_flags & libc::PF_X != 0);
        code.map(|part| part.p_offset..part.p_offset.saturating_add(part.p_filesz))
    }

    /// The name of its loader; empty: it names none.
    pub fn loader(&self, fd: i32) -> Option<[u8; 256]> {
        let mut name = [0; 256];
        if let Some(segment) = self.of_kind(libc::PT_INTERP).next() {
            let len = segment.p_filesz as usize;
            (len < name.len()).then_some(())?;
            read_at(fd, name.as_mut_ptr(), len, segment.p_offset)?;
        }
        Some(name)
    }
}

fn read_at<T>(fd: i32, to: *mut T, len: usize, at: u64) -> Option<()> {
    // SAFETY: the callers have that much room.
    let n = unsafe { sys::read_into(fd, to.cast(), len, Some(at as i64)) };
    (n == len as isize).then_some(())
}

fn map(at: usize, len: usize, access: i32, flags: i32, fd: i32, offset: u64) -> Option<usize> {
    let (access, flags, fd) = (access as usize, flags as usize, fd as usize);
    // SAFETY: where this asks for a place it is in memory reserved before.
    let at = unsafe { sys::by_number(libc::SYS_mmap, at, len, access, flags, fd, offset as usize) };
    usize::try_from(at).ok()
}

impl Image {
    /// Maps what is in a file, at `place` if that is not 0 and the file says nothing else. None where that
    /// cannot be done; what was mapped until then stays.
    pub fn map(fd: i32, headers: &Headers, place: usize) -> Option<Image> {
        let (loads, page) = (|| headers.of_kind(libc::PT_LOAD), kernel_page());
        let low = loads().map(|s| s.p_vaddr as usize / page * page).min()?;
        let high = loads().map(|s| (s.p_vaddr + s.p_memsz) as usize).max()?.next_multiple_of(page);
        let align = loads().map(|s| s.p_align as usize).max()?.max(page);
        let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let is_fixed = headers.file.e_type == 2;
        let (place, slack) = if is_fixed { (low, 0) } else { (place, align) };
        let flags = if is_fixed { nothing | libc::MAP_FIXED_NOREPLACE } else { nothing };
        let at = map(place, high - low + slack, libc::PROT_NONE, flags, -1, 0)?;
        let at = if is_fixed { at } else { at.next_multiple_of(align) };
        if is_fixed && at != low {
            return None;
        }
        let moved = at.wrapping_sub(low);
        let mut image = Image {
            moved,
            entry: moved.wrapping_add(headers.file.e_entry as usize),
            headers: 0,
            n_headers: usize::from(headers.file.e_phnum),
            from: at,
            to: at + (high - low),
            code: [(0, 0); 4],
            n_code: 0,
            loader: headers.loader(fd)?,
        };
        let at_file = headers.file.e_phoff;
        for segment in loads() {
            image.segment(fd, segment)?;
            if (segment.p_offset..segment.p_offset + segment.p_filesz).contains(&at_file) {
                let in_file = (at_file - segment.p_offset) as usize;
                image.headers = moved.wrapping_add(segment.p_vaddr as usize) + in_file;
            }
        }
        Some(image)
    }

    fn segment(&mut self, fd: i32, segment: &Elf64_Phdr) -> Option<()> {
        let bit = |from: u32, to: i32| if segment.p_flags & from != 0 { to } else { 0 };
        // Code is to be read here, also what is only to be executed.
        let access = bit(libc::PF_R | libc::PF_X, libc::PROT_READ)
            | bit(libc::PF_W, libc::PROT_WRITE)
            | bit(libc::PF_X, libc::PROT_EXEC);
        let at = self.moved.wrapping_add(segment.p_vaddr as usize);
        let (file_end, end) = (at + segment.p_filesz as usize, at + segment.p_memsz as usize);
        let page = kernel_page();
        let before = at % page;
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        if segment.p_filesz > 0 {
            let offset = segment.p_offset.checked_sub(before as u64)?;
            map(at - before, file_end - at + before, access, flags, fd, offset)?;
        }
        let mut filled = if segment.p_filesz > 0 { file_end } else { at - before };
        if end > file_end && !filled.is_multiple_of(page) {
            if segment.p_flags & libc::PF_W == 0 {
                return None;
            }
            let next = filled.next_multiple_of(page);
            // To the page's end: the first memory that ld.so gives away lies behind its data.
            // SAFETY: the rest of the last page of a writable segment.
            unsafe { core::ptr::write_bytes(filled as *mut u8, 0, next - filled) };
            filled = next;
        }
        if end > filled {
            let flags = flags | libc::MAP_ANONYMOUS;
            map(filled, (end - filled).next_multiple_of(page), access, flags, -1, 0)?;
        }
        if segment.p_flags & libc::PF_X != 0 {
            // What may be written is not to be found as it was judged.
            if segment.p_flags & libc::PF_W != 0 {
                return None;
            }
            *self.code.get_mut(self.n_code)? = (at, segment.p_filesz as usize);
            self.n_code += 1;
        }
        Some(())
    }

    /// Gives its memory back.
    pub fn unmap(&self) {
        // SAFETY: mapped by this, and not run.
        unsafe { sys::unmap(self.from as *mut u8, self.to - self.from) };
    }

    /// Its segments with code.
    pub fn code(&self) -> impl Iterator<Item = Code> + '_ {
        self.code[..self.n_code].iter().map(|&(at, len)| Code { at, len })
    }

    /// The name of the loader that it asks for.
    pub fn loader(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.loader).ok().filter(|name| !name.is_empty())
    }
}
