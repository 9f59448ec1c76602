//! What a program is told before it runs: files first, and its environment, which goes before them.
#![allow(unsafe_code)]

#[cfg(shortwire_raw)]
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int};

use smc::policy::{self, Places, Start};
use smc::setting;

/// The strings of a NULL-terminated array that the loader passes to every constructor.
#[derive(Clone, Copy)]
struct Strings(*const *const c_char);

impl Iterator for Strings {
    type Item = &'static [u8];

    fn next(&mut self) -> Option<&'static [u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the array is NULL-terminated, and the iteration ends there.
        let string = unsafe { *self.0 };
        if string.is_null() {
            return None;
        }
        self.0 = self.0.wrapping_add(1);
        // SAFETY: a string of the loader's, which stands there as long as the program runs.
        Some(unsafe { CStr::from_ptr(string) }.to_bytes())
    }
}

/// Name and value of a variable.
fn pair(variable: &'static [u8]) -> Option<(&'static [u8], &'static [u8])> {
    let at = variable.iter().position(|&byte| byte == b'=')?;
    Some((&variable[..at], &variable[at + 1..]))
}

/// The variables of ours that are set, without their prefix.
fn ours(environment: Strings) -> impl Iterator<Item = (&'static [u8], &'static [u8])> {
    let own = |(name, value): (&'static [u8], _)| Some((name.strip_prefix(b"SHORTWIRE_")?, value));
    environment.filter_map(pair).filter_map(own).filter(|(_, value)| !value.is_empty())
}

/// Applies what files and variables say. True if one of them is not understood: it may have been
/// there to keep programs apart, so memory is shared with nobody. `link` leads to the program's file.
pub fn refuses(
    link: &CStr,
    argc: c_int,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> bool {
    let environment = Strings(envp);
    let mut refused = false;
    for (name, value) in ours(environment) {
        if let Err(expected) = setting::check(name, value) {
            tell_refused(name, value, expected);
            refused = true;
        }
    }
    let is_off = ours(environment).any(|(name, value)| setting::is_off(name, value));
    if refused || is_off {
        return true;
    }
    let arguments = if argc > 0 { argv.wrapping_add(1) } else { core::ptr::null() };
    // SAFETY: a look into the auxiliary vector.
    let started = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    let started: &[u8] = if started.is_null() {
        &[]
    } else {
        // SAFETY: a string of the kernel's, which stands there as long as the program runs.
        unsafe { CStr::from_ptr(started) }.to_bytes()
    };
    let start = Start {
        places: Places::of(|wanted| {
            environment
                .filter_map(pair)
                .find_map(|(name, value)| (name == wanted.as_bytes()).then_some(value))
        }),
        link,
        started,
        args: &|| Strings(arguments).collect::<Vec<_>>().join(&b' '),
        is_told: ours(environment).any(|(name, _)| name == b"PEER_POLICY"),
    };
    if !policy::start(&start) {
        return true;
    }
    ours(environment).for_each(|(name, value)| setting::set(name, value));
    false
}

#[cold]
fn tell_refused(name: &[u8], value: &[u8], expected: &str) {
    let parts: [&[u8]; 7] = [
        b"shortwire: SHORTWIRE_",
        name,
        b"=",
        value,
        b" is not understood: give ",
        expected.as_bytes(),
        b"; connections of this process stay TCP\n",
    ];
    // A program without stderr is told nothing.
    smc::sys::write(2, &parts.concat());
}
