//! What a file is to whoever starts it.

use core::ffi::{CStr, c_char};

use libc::{Elf64_Ehdr, Elf64_Phdr};
use smc::sys;

/// What is started by a path.
pub enum File {
    /// A program that no library can be loaded into, and that may be started by whoever reads it, with
    /// no other rights than he has.
    Alone,
    /// A script, whose first line is known.
    Script,
    /// A program that no library can be loaded into, and why it is to be started as ever.
    Refused(&'static str),
    /// Anything else.
    Other,
}

/// As much of a script as the kernel looks at.
const HEAD: usize = 256;

/// The first line of a script.
pub struct Line {
    bytes: [u8; HEAD + 1],
    /// Where in it a word begins; 0: nowhere, as that is where the mark is.
    interpreter: usize,
    argument: usize,
}

impl Line {
    pub const fn new() -> Line {
        Line { bytes: [0; HEAD + 1], interpreter: 0, argument: 0 }
    }

    /// The path of its interpreter, if that does not count from whatever folder this process is in.
    pub fn interpreter(&self) -> Option<*const c_char> {
        let is_one = self.interpreter > 0 && self.bytes[self.interpreter] == b'/';
        is_one.then(|| self.bytes[self.interpreter..].as_ptr().cast())
    }

    /// All that stands behind that: one argument.
    pub fn argument(&self) -> Option<*const c_char> {
        (self.argument > 0).then(|| self.bytes[self.argument..].as_ptr().cast())
    }

    /// Takes the line of a file's first bytes apart, as the kernel does. False if it is none.
    fn read(&mut self, head: &[u8]) -> bool {
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let Some(line) = head.strip_prefix(b"#!") else { return false };
        let end = line.iter().position(|byte| matches!(byte, b'\n' | 0));
        // Cut off: the kernel may take it, with a name that ends early.
        let Some(end) = end.or((head.len() < HEAD).then_some(line.len())) else { return false };
        let line = &line[..end];
        let last = line.iter().rposition(|byte| !is_blank(byte)).map_or(0, |at| at + 1);
        let line = &line[..last];
        let Some(first) = line.iter().position(|byte| !is_blank(byte)) else { return false };
        let behind = line[first..].iter().position(is_blank).map(|at| first + at);
        self.bytes[..2 + last].copy_from_slice(&head[..2 + last]);
        self.bytes[2 + last] = 0;
        self.interpreter = 2 + first;
        if let Some(behind) = behind {
            self.bytes[2 + behind] = 0;
            let words = line[behind..].iter().position(|byte| !is_blank(byte));
            self.argument = words.map_or(0, |at| 2 + behind + at);
        }
        true
    }
}

/// What is at a path; the first line of a script goes to `line`.
pub fn look(path: &CStr, line: Option<&mut Line>) -> File {
    // Such a name may mean something else, or nothing, when the artefact has been executed and
    // opens it.
    if [&b"/proc/"[..], b"/dev/fd/"].iter().any(|folder| path.to_bytes().starts_with(folder)) {
        return File::Other;
    }
    let file = sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK, 0);
    if file < 0 {
        return File::Other;
    }
    let mode = sys::stat(file).map_or(0, |stat| stat.st_mode);
    let is_file = mode & libc::S_IFMT == libc::S_IFREG;
    let found = if is_file && may_execute(path) { content(file, mode, line) } else { File::Other };
    sys::close(file);
    found
}

fn content(file: i32, mode: u32, line: Option<&mut Line>) -> File {
    if is_alone(file) {
        return match () {
            () if mode & (libc::S_ISUID | libc::S_ISGID) != 0 => {
                File::Refused("has the rights of its owner or group (setuid, setgid)")
            }
            () if has_capabilities(file) => File::Refused("has file capabilities"),
            () => File::Alone,
        };
    }
    let Some(line) = line else { return File::Other };
    let mut head = [0; HEAD];
    // SAFETY: the room of a live array.
    let n = unsafe { sys::read_into(file, head.as_mut_ptr(), HEAD, Some(0)) };
    let n = usize::try_from(n).unwrap_or(0);
    if line.read(&head[..n]) { File::Script } else { File::Other }
}

fn has_capabilities(file: i32) -> bool {
    let name = c"security.capability".as_ptr() as usize;
    // SAFETY: a name, and no room for the value: only its length is asked for.
    (unsafe { sys::by_number(libc::SYS_fgetxattr, file as usize, name, 0, 0, 0, 0) }) >= 0
}

fn may_execute(path: &CStr) -> bool {
    let (folder, at) = (libc::AT_FDCWD as usize, path.as_ptr() as usize);
    // SAFETY: a path. By the real user, who is the effective one in nearly all programs: faccessat2
    // is not to be had everywhere.
    (unsafe { sys::by_number(libc::SYS_faccessat, folder, at, libc::X_OK as usize, 0, 0, 0) }) == 0
}

/// Programs for this machine have this number.
pub(super) const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Whether an open file is a program of this machine that has no C library, or musl's.
fn is_alone(file: i32) -> bool {
    // SAFETY: zeros are a valid header.
    let mut head: Elf64_Ehdr = unsafe { core::mem::zeroed() };
    let read = |to: *mut u8, len: usize, at: u64| {
        // SAFETY: the room of a live value.
        unsafe { sys::read_into(file, to, len, Some(at as i64)) == len as isize }
    };
    if !read((&raw mut head).cast(), size_of::<Elf64_Ehdr>(), 0)
        || head.e_ident[..6] != *b"\x7fELF\x02\x01"
        || head.e_machine != MACHINE
        || !matches!(head.e_type, 2 | 3)
    {
        return false;
    }
    let (mut has_loader, mut is_musl) = (false, false);
    let mut libraries = (0, 0);
    for i in 0..u64::from(head.e_phnum) {
        // SAFETY: as above.
        let mut segment: Elf64_Phdr = unsafe { core::mem::zeroed() };
        let len = size_of::<Elf64_Phdr>();
        if !read((&raw mut segment).cast(), len, head.e_phoff + i * len as u64) {
            return false;
        }
        match segment.p_type {
            libc::PT_INTERP => {
                let mut name = [0; 64];
                let len = name.len().min(segment.p_filesz as usize);
                has_loader = true;
                is_musl = read(name.as_mut_ptr(), len, segment.p_offset)
                    && name.windows(8).any(|eight| eight == b"/ld-musl");
            }
            libc::PT_DYNAMIC => libraries = (segment.p_offset, segment.p_filesz),
            _ => {}
        }
    }
    !has_loader || is_musl || !names_libraries(libraries, &read)
}

/// Whether the dynamic section of a program names libraries. One that names a loader and nothing else
/// has no C library: Go makes such programs, and sets their thread pointers itself.
fn names_libraries((from, len): (u64, u64), read: &dyn Fn(*mut u8, usize, u64) -> bool) -> bool {
    const ENTRY: usize = 16;
    const AT_ONCE: usize = 32;
    const NEEDED: u64 = 1;
    /// Longer than that of any program.
    const LONGEST: u64 = 1 << 16;
    let mut at = 0;
    while at < len.min(LONGEST) {
        let mut entries = [[0u64; 2]; AT_ONCE];
        let n = entries.len().min((len - at) as usize / ENTRY);
        if n == 0 || !read(entries.as_mut_ptr().cast(), n * ENTRY, from + at) {
            return true;
        }
        for [tag, _] in &entries[..n] {
            match *tag {
                0 => return false,
                NEEDED => return true,
                _ => {}
            }
        }
        at += (n * ENTRY) as u64;
    }
    true
}
