//! What this program was told when it was started, for those that it starts: one that makes an
//! environment of its own would leave it out, and they would not take part.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};
use core::ptr::null;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use super::Strings;
use crate::faulty;

/// More variables than this are left as they are.
const MOST: usize = 512;

/// Our variables, each a string that ends in a NUL; never freed.
static KEPT: AtomicPtr<Vec<Vec<u8>>> = AtomicPtr::new(core::ptr::null_mut());

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const OURS: &[u8] = b"SHORTWIRE_";
/// What is said to one program alone.
const OFF: &[u8] = b"SHORTWIRE_DISABLE=";

/// Keeps what the environment at the start says of us: once, before the program runs.
///
/// # Safety
/// Strings, up to a null pointer.
pub unsafe fn keep(environment: Strings) {
    let mut kept = Vec::new();
    // SAFETY: forwarded.
    unsafe {
        each(environment, |string| {
            let bytes = string.to_bytes();
            if bytes.starts_with(PRELOAD) || bytes.starts_with(OURS) {
                kept.push(string.to_bytes_with_nul().to_vec());
            }
        });
    }
    KEPT.store(Box::into_raw(Box::new(kept)), Release);
}

/// # Safety
/// Strings, up to a null pointer; or a faulty address, which has none.
unsafe fn each<'a>(strings: Strings, mut what: impl FnMut(&'a CStr)) {
    let mut at = strings;
    while !faulty(at) {
        // SAFETY: the caller's array, which ends here at the latest.
        let string = unsafe { *at };
        if string.is_null() {
            return;
        }
        // SAFETY: the caller's string.
        what(unsafe { CStr::from_ptr(string) });
        at = at.wrapping_add(1);
    }
}

/// Name and `=` of a variable.
fn name(variable: &[u8]) -> &[u8] {
    let end = variable.iter().position(|byte| *byte == b'=').map_or(variable.len(), |at| at + 1);
    &variable[..end]
}

/// Room for an environment.
pub struct Variables([*const c_char; MOST + 1]);

impl Variables {
    pub fn new() -> Variables {
        Variables([null(); MOST + 1])
    }

    /// An environment, and what it lacks of ours. What it says itself of ours is left as it says.
    ///
    /// # Safety
    /// Strings, up to a null pointer.
    pub unsafe fn with_ours(&mut self, environment: Strings) -> Strings {
        // SAFETY: null, or what was kept, for good.
        let Some(kept) = (unsafe { KEPT.load(Acquire).as_ref() }) else { return environment };
        let mut n = 0;
        let (mut is_off, mut fits) = (false, true);
        let mut put = |string: *const c_char| match self.0[..MOST].get_mut(n) {
            Some(place) => (*place, n) = (string, n + 1),
            None => fits = false,
        };
        // What it has of ours, a bit for each.
        let mut has = 0u64;
        let missing = kept.iter().take(64).enumerate();
        // SAFETY: forwarded.
        unsafe {
            each(environment, |string| {
                put(string.as_ptr());
                let bytes = string.to_bytes();
                is_off |= bytes.starts_with(OFF);
                if bytes.starts_with(PRELOAD) || bytes.starts_with(OURS) {
                    for (i, own) in missing.clone() {
                        has |= u64::from(name(own) == name(bytes)) << i;
                    }
                }
            });
        }
        if is_off {
            return environment;
        }
        let missing = missing.filter(|(i, _)| has >> i & 1 == 0);
        missing.for_each(|(_, own)| put(own.as_ptr().cast()));
        if !fits {
            return environment;
        }
        self.0[n] = null();
        self.0.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_added_and_nothing_else() {
        let strings = |list: &[&CStr]| -> Vec<*const c_char> {
            list.iter().map(|string| string.as_ptr()).chain([null()]).collect()
        };
        let completed = |list: &[&CStr]| {
            let list = strings(list);
            let mut variables = Variables::new();
            let mut words = Vec::new();
            // SAFETY: strings of this test's.
            let environment = unsafe { variables.with_ours(list.as_ptr()) };
            // SAFETY: those, and some that were kept.
            unsafe { each(environment, |string| words.push(string.to_str().unwrap().to_owned())) };
            words
        };
        assert_eq!(completed(&[c"A=1"]), ["A=1"], "nothing is known");
        let start = strings(&[c"HOME=/", c"LD_PRELOAD=/l.so", c"SHORTWIRE_RAW=auto"]);
        // SAFETY: strings of this test's.
        unsafe { keep(start.as_ptr()) };
        assert_eq!(completed(&[c"A=1"]), ["A=1", "LD_PRELOAD=/l.so", "SHORTWIRE_RAW=auto"]);
        assert_eq!(completed(&[]), ["LD_PRELOAD=/l.so", "SHORTWIRE_RAW=auto"]);
        let own = [c"LD_PRELOAD=", c"SHORTWIRE_RAW=off"];
        assert_eq!(completed(&own), ["LD_PRELOAD=", "SHORTWIRE_RAW=off"]);
        let off = [c"B=2", c"SHORTWIRE_DISABLE=1"];
        assert_eq!(completed(&off), ["B=2", "SHORTWIRE_DISABLE=1"]);
        assert_eq!(completed(&[c"A=1"; MOST - 1]).len(), MOST - 1, "too many");
        assert_eq!(completed(&[c"A=1"; MOST - 2]).len(), MOST);
    }
}
