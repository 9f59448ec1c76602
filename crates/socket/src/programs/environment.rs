//! What this program was told when it was started, for those that it starts: one that makes an
//! environment of its own would leave it out, and they would not take part.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};
use core::ptr::null;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use smc::sys;

use super::Strings;
use crate::faulty;

/// More variables than this are left as they are.
const MOST: usize = 512;

/// Our variables, each a string that ends in a NUL; never freed.
static KEPT: AtomicPtr<Vec<Vec<u8>>> = AtomicPtr::new(core::ptr::null_mut());

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const OURS: &[u8] = b"SHORTWIRE_";
/// In the place of a variable of ours that one program is not to see, for itself alone.
pub const PLACEHOLDER: &CStr = c"SHORTWIRE_=";
/// What is left of LD_PRELOAD for a program whose loader is not to load the library; null: the
/// placeholder, or all of it.
static SHORTENED: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
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
            if string != PLACEHOLDER && (bytes.starts_with(PRELOAD) || bytes.starts_with(OURS)) {
                kept.push(string.to_bytes_with_nul().to_vec());
            }
        });
    }
    KEPT.store(Box::into_raw(Box::new(kept)), Release);
}

/// Takes the library out of what this program's loader is to load: it would run beside this front.
/// What this program starts is told of it again. Before the program runs, behind [`keep`].
///
/// # Safety
/// Strings that end in a null pointer, and nobody else reads.
pub unsafe fn hide_library(environment: *mut *const c_char) {
    let mut at = environment;
    loop {
        // SAFETY: the caller's array, which ends here at the latest.
        let string = unsafe { *at };
        if string.is_null() {
            return;
        }
        // SAFETY: the caller's string.
        let bytes = unsafe { CStr::from_ptr(string) }.to_bytes();
        if let Some(list) = bytes.strip_prefix(PRELOAD) {
            let others = entries(list).filter(|entry| !is_library(entry));
            let others = others.collect::<Vec<_>>().join(&b':');
            // What is behind the array must stay there: in the place of a variable there is another.
            let word = match others.is_empty() {
                true => PLACEHOLDER.as_ptr(),
                false => {
                    let word = Vec::leak([PRELOAD, &others, b"\0"].concat()).as_mut_ptr().cast();
                    SHORTENED.store(word, Release);
                    word.cast_const()
                }
            };
            // SAFETY: as above.
            unsafe { *at = word };
        }
        at = at.wrapping_add(1);
    }
}

/// What is in a value of LD_PRELOAD.
fn entries(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty())
}

fn is_library(entry: &[u8]) -> bool {
    entry.rsplit(|byte| *byte == b'/').next() == Some(b"libshortwire.so")
}

/// Whether a loader would find the libraries of this variable: in another root they are not, and each
/// program there would complain.
fn can_be_loaded(variable: &[u8]) -> bool {
    let Some(list) = variable.strip_prefix(PRELOAD) else { return true };
    let list = list.strip_suffix(b"\0").unwrap_or(list);
    entries(list).filter(|entry| entry.contains(&b'/')).all(|entry| {
        let mut path = [0; 4096];
        let Some(place) = path.get_mut(..entry.len()) else { return false };
        place.copy_from_slice(entry);
        CStr::from_bytes_until_nul(&path).is_ok_and(|path| sys::stat_path(path, 0).is_some())
    })
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
        let shortened = SHORTENED.load(Acquire).cast_const();
        // SAFETY: null, or a string that was leaked.
        let shortened = (!shortened.is_null()).then(|| unsafe { CStr::from_ptr(shortened) });
        // What it has of ours, a bit for each.
        let mut has = 0u64;
        let missing = kept.iter().take(64).enumerate();
        // SAFETY: forwarded.
        unsafe {
            each(environment, |string| {
                let bytes = string.to_bytes();
                if string == PLACEHOLDER || shortened == Some(string) {
                    return;
                }
                put(string.as_ptr());
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
        let missing = missing.filter(|(i, own)| has >> i & 1 == 0 && can_be_loaded(own));
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
        let _turn = crate::tests::serial();
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
        let start = strings(&[c"HOME=/", c"LD_PRELOAD=/proc/self/exe", c"SHORTWIRE_RAW=auto"]);
        // SAFETY: strings of this test's.
        unsafe { keep(start.as_ptr()) };
        assert_eq!(
            completed(&[c"A=1"]),
            ["A=1", "LD_PRELOAD=/proc/self/exe", "SHORTWIRE_RAW=auto"]
        );
        assert_eq!(completed(&[]), ["LD_PRELOAD=/proc/self/exe", "SHORTWIRE_RAW=auto"]);
        assert_eq!(completed(&[c"A=1", PLACEHOLDER]).len(), 3, "no placeholder");
        assert!(!can_be_loaded(b"LD_PRELOAD=/proc/self/exe:/none/libshortwire.so\0"));
        let own = [c"LD_PRELOAD=", c"SHORTWIRE_RAW=off"];
        assert_eq!(completed(&own), ["LD_PRELOAD=", "SHORTWIRE_RAW=off"]);
        let off = [c"B=2", c"SHORTWIRE_DISABLE=1"];
        assert_eq!(completed(&off), ["B=2", "SHORTWIRE_DISABLE=1"]);
        assert_eq!(completed(&[c"A=1"; MOST - 1]).len(), MOST - 1, "too many");
        assert_eq!(completed(&[c"A=1"; MOST - 2]).len(), MOST);
    }

    #[test]
    fn the_library_is_hidden_and_nothing_else() {
        let hidden = |variable: &CStr| {
            let mut list = [c"A=1".as_ptr(), variable.as_ptr(), null()];
            // SAFETY: an array of this test's.
            unsafe { hide_library(list.as_mut_ptr()) };
            // SAFETY: a string of this test's, or one that was leaked.
            unsafe { CStr::from_ptr(list[1]) }.to_str().unwrap().to_owned()
        };
        assert_eq!(hidden(c"LD_PRELOAD=/usr/lib/libshortwire.so"), "SHORTWIRE_=");
        assert_eq!(hidden(c"LD_PRELOAD=libshortwire.so"), "SHORTWIRE_=");
        assert_eq!(hidden(c"LD_PRELOAD=/a.so:/x/libshortwire.so b.so"), "LD_PRELOAD=/a.so:b.so");
        assert_eq!(hidden(c"B=libshortwire.so"), "B=libshortwire.so");
        SHORTENED.store(core::ptr::null_mut(), Release);
    }
}
