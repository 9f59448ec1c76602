//! The folder in which the processes of a user find what they have in common: `$SHORTWIRE_RUN_DIR`,
//! otherwise /dev/shm.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;

struct Folder(UnsafeCell<([u8; 128], usize)>);
// SAFETY: written once, while the library is loaded and before any other thread of ours reads.
unsafe impl Sync for Folder {}
static FOLDER: Folder = Folder(UnsafeCell::new(([0; 128], 0)));

/// It is this one; a name that is too long to be noted is no folder to be in.
pub fn set(name: &[u8]) {
    // SAFETY: see `Folder`.
    let (bytes, len) = unsafe { &mut *FOLDER.0.get() };
    if let Some(place) = bytes.get_mut(..name.len()) {
        place.copy_from_slice(name);
        *len = name.len();
    }
}

/// A file of this user's there: its path, and NULs behind it.
pub fn path(name: &[u8], uid: u32) -> [u8; 192] {
    // SAFETY: see `Folder`.
    let (bytes, len) = unsafe { &*FOLDER.0.get() };
    let folder = if *len == 0 { &b"/dev/shm"[..] } else { &bytes[..*len] };
    let mut digits = [0u8; 10];
    let (mut n, mut at) = (uid, digits.len());
    while n > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
    }
    let mut path = [0u8; 192];
    let parts = folder.iter().chain(b"/").chain(name).chain(&digits[at..]);
    // A NUL is left at the end.
    path[..191].iter_mut().zip(parts).for_each(|(to, from)| *to = *from);
    path
}
