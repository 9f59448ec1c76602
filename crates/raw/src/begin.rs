//! The artefact's own start: it makes itself ready, maps the program and becomes it.
//!
//! `shortwire-raw PROGRAM ARGUMENT0 ARGUMENT...`

use alloc::vec::Vec;
use core::ffi::{CStr, c_char};
use core::ptr::null;
use core::sync::atomic::{AtomicUsize, Ordering::*};

use smc::config::{CONFIG, PeerPolicy};
use smc::{log, sys};
use socket::fds;
use socket::programs::{self, Strings};

use crate::candidates::{self, Candidate};
use crate::load::{Headers, Image};
use crate::patch::{self, CODE};
use crate::{arch, dispatch, entry, exec, itself, start};

/// What this artefact is built from, for whoever reads its file: behind a mark.
static BUILD: &str = concat!("shortwire build: ", env!("SHORTWIRE_BUILD"));
const MARK: &str = "shortwire build: ";

/// Words of the stack that the kernel has left: number of arguments, they, a null, the environment, a
/// null, the auxiliary vector.
static AUXILIARY: AtomicUsize = AtomicUsize::new(0);
/// Where this artefact lies.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// Adds to each address in this image where it lies.
///
/// # Safety
/// Once, first of all, with what the linker names so.
unsafe fn relocate(base: usize, dynamic: *const [usize; 2]) {
    let (mut at, mut len) = (0, 0);
    let mut entry = dynamic;
    loop {
        // SAFETY: it ends in a zero.
        let [tag, value] = unsafe { *entry };
        match tag {
            0 => break,
            7 => at = value,
            8 => len = value,
            _ => {}
        }
        entry = entry.wrapping_add(1);
    }
    let table = (base + at) as *const [usize; 3];
    for i in 0..len / size_of::<[usize; 3]>() {
        // SAFETY: in the table. The linker makes no others than relative ones of an image without
        // names from outside.
        let [place, _, value] = unsafe { *table.add(i) };
        // SAFETY: a word of this image.
        unsafe { *((base + place) as *mut usize) = base + value };
    }
}

/// A word of the auxiliary vector; 0 if there is none.
pub fn auxiliary(kind: u64) -> u64 {
    find(kind).map_or(0, |at| {
        // SAFETY: a word of the vector.
        unsafe { *at }
    })
}

fn find(kind: u64) -> Option<*mut u64> {
    let mut at = AUXILIARY.load(Relaxed) as *mut u64;
    loop {
        // SAFETY: pairs, the last of which is zero.
        match unsafe { *at } {
            0 => return None,
            this if this == kind => return Some(at.wrapping_add(1)),
            _ => at = at.wrapping_add(2),
        }
    }
}

fn change(kind: u64, value: usize) {
    if let Some(at) = find(kind) {
        // SAFETY: a word of the vector, on our stack.
        unsafe { *at = value as u64 };
    }
}

/// Where the machine's first instructions lead.
pub unsafe extern "C" fn begin(stack: *mut usize, base: usize, dynamic: *const [usize; 2]) -> ! {
    // SAFETY: first of all.
    unsafe { relocate(base, dynamic) };
    BASE.store(base, Relaxed);
    // SAFETY: as the kernel has left it.
    let n = unsafe { *stack };
    let arguments = stack.wrapping_add(1) as *const *const c_char;
    let environment = arguments.wrapping_add(n + 1);
    let mut end = environment;
    // SAFETY: the environment ends in a null pointer.
    while !unsafe { *end }.is_null() {
        end = end.wrapping_add(1);
    }
    AUXILIARY.store(end.wrapping_add(1).addr(), Relaxed);
    arch::begin();
    if n < 3 {
        sys::write(2, b"shortwire-raw: is started by `shortwire run`\n");
        sys::exit(2);
    }
    // SAFETY: there are that many.
    let path = unsafe { CStr::from_ptr(*arguments.add(1)) };
    let rest = arguments.wrapping_add(2);
    // A program with more rights than who started it is never started from here.
    let is_own = auxiliary(libc::AT_SECURE) == 0 && entry::begin();
    change(libc::AT_EXECFN, path.as_ptr().addr());
    let is_asked = is_own
        && !is_refused(path, (n - 2) as i32, rest, environment)
        && CONFIG.raw.load(Relaxed)
        && CONFIG.policy() != PeerPolicy::Off;
    let prepared = if is_asked { prepare(path) } else { Err(None) };
    if let Err(Some(why)) = prepared {
        log::say_program(path, why);
    }
    if let Ok((program, first)) = prepared {
        if dispatch::is_on() {
            log::say_dispatched(path);
        }
        smc::release::built_from(&BUILD[MARK.len()..]);
        // SAFETY: the environment as the kernel has left it.
        unsafe { programs::keep(environment) };
        if program.loader().is_some() {
            // SAFETY: as above, on this stack.
            unsafe { programs::hide_library(environment.cast_mut()) };
        }
        fds::init();
        fds::inherit();
        // SAFETY: two words up there is room for a stack that begins with a program's own arguments,
        // and what is above it stays as it is.
        unsafe { become_it(stack, n, path, &program, first) };
    }
    // It may be a script, which `shortwire run` leaves to us.
    let begin = |other: *const c_char, arguments: Strings, environment: Strings| {
        let path = if other.is_null() { path.as_ptr() } else { other } as usize;
        let (arguments, environment) = (arguments as usize, environment as usize);
        // SAFETY: a path, and arrays of strings.
        unsafe { sys::by_number(libc::SYS_execve, path, arguments, environment, 0, 0, 0) }
    };
    let artefact = if is_asked && is_script(path) { exec::OWN.as_ptr() } else { null() };
    // SAFETY: as the kernel has left them.
    let r = unsafe { programs::start(artefact, path.as_ptr(), rest, environment, &begin) };
    sys::write(2, b"shortwire-raw: the program cannot be started\n");
    sys::exit(if r == -(libc::ENOENT as isize) { 127 } else { 126 });
}

fn is_script(path: &CStr) -> bool {
    let file = sys::open(path, libc::O_RDONLY | libc::O_NONBLOCK, 0);
    let mut mark = [0; 2];
    let is_one = file >= 0 && sys::read(file, &mut mark) == 2 && mark == *b"#!";
    if file >= 0 {
        sys::close(file);
    }
    is_one
}

/// Whether what it is told keeps the program on TCP.
fn is_refused(
    path: &CStr,
    n: i32,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> bool {
    let file = sys::open(path, libc::O_PATH, 0);
    let link = sys::link_of_descriptor(file);
    let link = CStr::from_bytes_until_nul(&link).unwrap_or_default();
    let is_refused = start::refuses(link, n, arguments, environment);
    if file >= 0 {
        sys::close(file);
    }
    is_refused
}

fn open(path: &CStr) -> Option<(i32, Headers)> {
    let file = sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let headers = (file >= 0).then(|| Headers::read(file)).flatten();
    if headers.is_none() && file >= 0 {
        sys::close(file);
    }
    Some((file, headers?))
}

/// An image, with what of each of its segments with code may be a system call.
type Mapped = (Image, Vec<Vec<Candidate>>);

/// None if that cannot be done.
fn map(path: &CStr, is_program: bool) -> Result<Mapped, Option<&'static str>> {
    let (file, headers) = open(path).ok_or(None)?;
    if is_program && headers.wants_stack_with_code() {
        sys::close(file);
        return Err(Some("has its stack executed"));
    }
    if is_program {
        itself::keep(file);
    }
    let image = Image::map(file, &headers, 0);
    let candidates: Option<_> = headers.code().map(|part| candidates::read(file, part)).collect();
    sys::close(file);
    image.zip(candidates).ok_or(None)
}

/// The program, ready to run, and where it begins: in its loader if it names one; or why it cannot be
/// followed, if there is something to say.
fn prepare(path: &CStr) -> Result<(Image, (usize, usize)), Option<&'static str>> {
    if is_script(path) {
        return Err(None);
    }
    const MAP: &str = "cannot be mapped as the kernel would, or is none for this machine";
    patch::lead_to(arch::entry_address());
    let (program, candidates) = map(path, true).map_err(|why| why.unwrap_or(MAP))?;
    let loader = match program.loader() {
        Some(name) => Some(map(name, false).map_err(|_| "has a loader that cannot be mapped")?),
        None => None,
    };
    // A loader of musl is its libc, too; that of glibc makes no calls that matter.
    let of_loader = loader.iter().flat_map(|(image, all)| image.code().zip(all));
    // All of them are known before the first is changed.
    let all: Vec<_> = program
        .code()
        .zip(&candidates)
        .chain(of_loader)
        .map(|(code, all)| (code.judge_only(all), code))
        .collect();
    if all.iter().any(|(judged, _)| judged.undecided > 0) {
        // With a loader it is not known what lies where.
        const UNTOLD: &str = "makes a system call that cannot be told, or cannot be made to jump";
        if loader.is_some() {
            return Err(Some(UNTOLD));
        }
        program.unmap();
        let program = with_net(path, &candidates).ok_or(UNTOLD)?;
        let first = program.entry;
        return Ok((program, (0, first)));
    }
    for (judged, code) in all {
        let changed = code.patch(&judged.windows, CODE);
        changed.ok_or("has code that the kernel does not let be changed")?;
    }
    let first = loader.map_or((0, program.entry), |(loader, _)| (loader.from, loader.entry));
    Ok((program, first))
}

/// The program where there can be a net under it.
fn with_net(path: &CStr, candidates: &[Vec<Candidate>]) -> Option<Image> {
    dispatch::IS_THERE.then_some(())?;
    let (file, headers) = open(path)?;
    let program = Image::map(file, &headers, dispatch::low_place());
    sys::close(file);
    let program = program?;
    let ours = [BASE.load(Relaxed), auxiliary(libc::AT_SYSINFO_EHDR) as usize];
    let is_below = ours.iter().all(|at| *at == 0 || *at >= program.to);
    (is_below && dispatch::put_under(program.code().zip(candidates), program.to)).then_some(program)
}

/// Makes stack, names and auxiliary vector the program's, and jumps there.
unsafe fn become_it(
    stack: *mut usize,
    n: usize,
    path: &CStr,
    program: &Image,
    (base, first): (usize, usize),
) -> ! {
    change(libc::AT_PHDR, program.headers);
    change(libc::AT_PHNUM, program.n_headers);
    change(libc::AT_ENTRY, program.entry);
    change(libc::AT_BASE, base);
    let name = path.to_bytes_with_nul();
    let from = name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let name = name[from..].as_ptr() as usize;
    // SAFETY: a string.
    unsafe { sys::by_number(libc::SYS_prctl, libc::PR_SET_NAME as usize, name, 0, 0, 0, 0) };
    let stack = stack.wrapping_add(2);
    // SAFETY: what was the pointer to the first argument.
    unsafe { *stack = n - 2 };
    tell_arguments(stack, program);
    // SAFETY: the program's first instruction.
    unsafe { arch::leave_to(stack, first) }
}

/// `struct prctl_mm_map`.
#[repr(C)]
struct Memory {
    code: [u64; 2],
    data: [u64; 2],
    heap: [u64; 2],
    stack: u64,
    arguments: [u64; 2],
    environment: [u64; 2],
    auxiliary: u64,
    auxiliary_len: u32,
    file: u32,
}

/// Others see the program's own arguments. A kernel that does not allow that shows ours in front.
fn tell_arguments(stack: *const usize, program: &Image) {
    // SAFETY: arguments and environment as they now are.
    let n = unsafe { *stack };
    let arguments = stack.wrapping_add(1);
    let environment = arguments.wrapping_add(n + 1);
    // SAFETY: as above: there is at least one argument, and a null behind the last variable.
    let (first, variable) = unsafe { (*arguments, *environment) };
    let auxiliary = AUXILIARY.load(Relaxed);
    let (first, variable) = (first as u64, variable as u64);
    // Behind the variables there is only the path of what the kernel started.
    let top = if variable == 0 { first } else { last_end(environment) };
    let middle = if variable == 0 { top } else { variable };
    let mut len = 2;
    // SAFETY: pairs, the last of which is zero.
    while unsafe { *((auxiliary as *const u64).wrapping_add(len - 2)) } != 0 {
        len += 2;
    }
    // SAFETY: asks where the heap ends; it has not begun.
    let heap = unsafe { sys::by_number(libc::SYS_brk, 0, 0, 0, 0, 0, 0) } as u64;
    let memory = Memory {
        code: [program.from as u64, program.to as u64],
        data: [program.from as u64, program.to as u64],
        heap: [heap, heap],
        stack: stack.addr() as u64,
        arguments: [first, middle],
        environment: [middle, top],
        auxiliary: auxiliary as u64,
        auxiliary_len: (len * 8) as u32,
        file: u32::MAX,
    };
    const SET_MM: usize = 35;
    const MAP: usize = 14;
    let (at, len) = (core::ptr::from_ref(&memory).addr(), size_of::<Memory>());
    // SAFETY: a live structure of that length.
    unsafe { sys::by_number(libc::SYS_prctl, SET_MM, MAP, at, len, 0, 0) };
}

/// Where the last string of an array ends.
fn last_end(strings: *const usize) -> u64 {
    let mut at = strings;
    // SAFETY: it ends in a null pointer, and has at least one string.
    while unsafe { *at.wrapping_add(1) } != 0 {
        at = at.wrapping_add(1);
    }
    // SAFETY: its last string.
    let last = unsafe { CStr::from_ptr(*at as *const c_char) };
    (last.as_ptr().addr() + last.to_bytes_with_nul().len()) as u64
}
