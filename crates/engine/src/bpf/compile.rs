//! Filter expressions (pcap-filter(7)) to programs: by our own [compiler](super::language), and what that
//! leaves out by libpcap.
//!
//! The library is opened when the first such expression is compiled, so that it is needed only then;
//! neither rights nor an interface are.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::bpf::language::{self, LeftOut};
use crate::bpf::{Instruction, Program, Refused};
use crate::pcap::ETHERNET;

/// Why an expression gives no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error("'{0}': {1}")]
    Syntax(String, String),
    #[error(
        "'{0}': {1} is compiled by libpcap, which is not installed (Debian: apt install libpcap0.8)"
    )]
    NoLibrary(String, String),
    #[error("libpcap made a program that is not understood: {0}")]
    Program(Refused),
}

/// `struct bpf_program`
#[repr(C)]
struct Compiled {
    length: c_uint,
    instructions: *mut Instruction,
}

/// What is used of the library.
#[derive(Clone, Copy)]
struct Library {
    open_dead: unsafe extern "C" fn(c_int, c_int) -> *mut c_void,
    compile: unsafe extern "C" fn(*mut c_void, *mut Compiled, *const c_char, c_int, u32) -> c_int,
    geterr: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    freecode: unsafe extern "C" fn(*mut Compiled),
    close: unsafe extern "C" fn(*mut c_void),
}

const NAMES: [&CStr; 3] = [c"libpcap.so.1", c"libpcap.so.0.8", c"libpcap.so"];

/// Older libraries compile in static variables.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Compiles an expression for Ethernet frames.
pub fn compile(expression: &str) -> Result<Program, CompileError> {
    let LeftOut(why) = match language::compile(expression).map(Program::new) {
        Ok(Ok(program)) => return Ok(program),
        Ok(Err(_)) => LeftOut("so long a filter".to_string()),
        Err(left_out) => left_out,
    };
    let missing = || CompileError::NoLibrary(expression.to_string(), why);
    // The optimizer knows of more mistakes, and makes some: what runs is not its program, where that is short enough.
    let optimized = by_libpcap(expression, true)?.ok_or_else(missing)?;
    Ok(by_libpcap(expression, false).ok().flatten().unwrap_or(optimized))
}

/// As libpcap compiles it, with its optimizer or without; None if it is not installed.
pub(super) fn by_libpcap(
    expression: &str,
    optimized: bool,
) -> Result<Option<Program>, CompileError> {
    let syntax = |problem: &str| CompileError::Syntax(expression.to_string(), problem.to_string());
    let text = CString::new(expression).map_err(|_| syntax("contains a zero byte"))?;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(library) = open() else { return Ok(None) };
    // SAFETY: takes two numbers.
    let handle = unsafe { (library.open_dead)(ETHERNET as c_int, 65535) };
    if handle.is_null() {
        return Err(syntax("libpcap has no memory"));
    }
    let mut compiled = Compiled { length: 0, instructions: null_mut() };
    // SAFETY: an open handle, a place for the result and a terminated string; PCAP_NETMASK_UNKNOWN
    // at the end.
    let result = unsafe {
        (library.compile)(handle, &mut compiled, text.as_ptr(), optimized.into(), u32::MAX)
    };
    let instructions = if result == 0 {
        // SAFETY: the library says that so many instructions are there; their layout is
        // `struct bpf_insn`.
        let slice =
            unsafe { std::slice::from_raw_parts(compiled.instructions, compiled.length as usize) };
        let instructions = slice.to_vec();
        // SAFETY: made by a successful compilation, and copied.
        unsafe { (library.freecode)(&mut compiled) };
        Ok(instructions)
    } else {
        // SAFETY: a terminated string in the open handle, copied before it is closed.
        let message = unsafe { CStr::from_ptr((library.geterr)(handle)) };
        Err(syntax(&message.to_string_lossy()))
    };
    // SAFETY: opened above, used no more.
    unsafe { (library.close)(handle) };
    Program::new(instructions?).map(Some).map_err(CompileError::Program)
}

fn open() -> Option<Library> {
    let handle = NAMES.iter().find_map(|name| {
        // SAFETY: a terminated name; the library's constructors do nothing unusual.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!handle.is_null()).then_some(handle)
    })?;
    let symbol = |name: &CStr| {
        // SAFETY: an open library and a terminated name.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let addresses =
        [c"pcap_open_dead", c"pcap_compile", c"pcap_geterr", c"pcap_freecode", c"pcap_close"]
            .map(symbol);
    let [Some(open_dead), Some(compile), Some(geterr), Some(freecode), Some(close)] = addresses
    else {
        return None;
    };
    // SAFETY: the functions of these names have these types in every libpcap (pcap(3PCAP)).
    unsafe {
        Some(Library {
            open_dead: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(c_int, c_int) -> *mut c_void,
            >(open_dead),
            compile: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(
                    *mut c_void,
                    *mut Compiled,
                    *const c_char,
                    c_int,
                    u32,
                ) -> c_int,
            >(compile),
            geterr: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut c_void) -> *const c_char,
            >(geterr),
            freecode: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Compiled)>(
                freecode,
            ),
            close: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(close),
        })
    }
}
