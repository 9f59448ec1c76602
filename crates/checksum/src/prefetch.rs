//! Prefetch: which lines are asked for before they are read.
//!
//! Always smart: never past the end of the data. What is best depends on the processor, hence the
//! [`Profile`]: built in by processor family, or read from a file that a measuring command wrote
//! and passed to [`set_profile`]. Nothing is measured at start-up, so that results stay
//! reproducible.
//!
//! The crate has no file access. `shortwire tune checksum` measures and writes the file, and the
//! `shortwire` command reads it; a program of your own reads the text from wherever it likes:
//!
//! ```
//! use shortwire_checksum::prefetch::{Profile, set_profile};
//!
//! let text = Profile::built_in().to_string(); // or std::fs::read_to_string(...)
//! match Profile::parse(&text) {
//!     Ok(profile) => set_profile(profile),
//!     Err(error) => eprintln!("checksum profile ignored, the built-in one stays: {error}"),
//! }
//! ```
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use crate::cpu::Processor;
use crate::kernel::{self, PartialFn};
use crate::sum::csum_block_add;

mod profile;

pub use profile::{Profile, ProfileError};

/// Every processor that this crate has kernels for has lines of 64 bytes, or twice that and fetches
/// halves.
const LINE: usize = 64;
/// The in-packet prefetch runs ahead in steps of this many bytes; even, so that the parts' sums add
/// up. Each step is a call of the kernel, which ends by joining its lanes: with short steps that
/// costs more than the prefetch gains.
const STEP: usize = 32 * LINE;

/// [`Profile::packed`] of the profile in use; 0 until one is needed. It publishes nothing else,
/// hence Relaxed.
static PROFILE: AtomicU64 = AtomicU64::new(0);

/// The profile in use: the built-in one, or the last one set.
#[inline]
pub fn profile() -> Profile {
    match PROFILE.load(Relaxed) {
        0 => first(),
        packed => Profile::unpacked(packed),
    }
}

#[cold]
fn first() -> Profile {
    let profile = Profile::built_in();
    PROFILE.store(profile.packed(), Relaxed);
    profile
}

/// Uses this profile from now on, in the whole process.
pub fn set_profile(profile: Profile) {
    PROFILE.store(profile.packed(), Relaxed);
    kernel::renew();
}

/// Asks for the first `lines` lines of the data, or fewer if it is shorter.
#[inline(always)]
pub(crate) fn head(data: &[u8], lines: usize) {
    fetch(data, 0, lines * LINE);
}

/// Asks for the lines that hold the bytes `from..to` of the data, as far as these exist.
#[inline(always)]
fn fetch(data: &[u8], from: usize, to: usize) {
    let to = to.min(data.len());
    let mut at = from;
    while at < to {
        line(&data[at]);
        // Up to the next line's beginning: data may begin anywhere in a line.
        at += LINE - (data.as_ptr().addr() + at) % LINE;
    }
}

/// # Safety
/// The processor must have the features that `partial` needs.
pub(crate) unsafe fn partial_ahead(
    partial: PartialFn,
    data: &[u8],
    mut sum: u32,
    distance: usize,
) -> u32 {
    if distance == 0 || data.len() <= distance {
        // SAFETY: the caller's obligation.
        return unsafe { partial(data, sum) };
    }
    for (number, step) in data.chunks(STEP).enumerate() {
        let from = number * STEP + distance;
        fetch(data, from, from.saturating_add(STEP));
        // SAFETY: the caller's obligation.
        sum = csum_block_add(sum, unsafe { partial(step, 0) }, 0);
    }
    sum
}

#[inline(always)]
fn line(byte: &u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and cannot fault; SSE belongs to every x86-64 processor.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(byte).cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch reads nothing and cannot fault.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) byte, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = byte;
}
