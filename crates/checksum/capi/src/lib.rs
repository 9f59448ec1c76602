//! The C border of the crate `checksum`; `include/shortwire_csum.h` says what each function does. A
//! library for C programs needs a panic handler, which a `no_std` crate must leave to its user:
//! hence a package of its own.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Deref;

use checksum::Kernel;
use checksum::kernel::{KernelError, select};
use checksum::packet::{Outcome, PacketError, fill, verify};
use checksum::prefetch::{Profile, ProfileError, set_profile};

/// `struct iovec`.
#[repr(C)]
pub struct IoVec {
    base: *const c_void,
    length: usize,
}

impl Deref for IoVec {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: whoever passed the iovec promised as much.
        unsafe { bytes(self.base, self.length) }
    }
}

/// # Safety
/// `length` bytes must be readable at `data`, which may be null if there are none.
unsafe fn bytes<'a, T>(data: *const c_void, length: usize) -> &'a [T] {
    // SAFETY: the caller's obligation.
    if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data.cast(), length) } }
}

/// # Safety
/// As for `bytes`, and writable, and nothing else may refer to them.
unsafe fn bytes_mut<'a, T>(data: *mut c_void, length: usize) -> &'a mut [T] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: the caller's obligation.
    unsafe { std::slice::from_raw_parts_mut(data.cast(), length) }
}

/// # Safety
/// `length` readable bytes at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_partial(
    data: *const c_void,
    length: usize,
    sum: u32,
) -> u32 {
    // SAFETY: the caller's obligation.
    checksum::csum_partial(unsafe { bytes(data, length) }, sum)
}

/// # Safety
/// `length` readable bytes at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_partial_latency(
    data: *const c_void,
    length: usize,
    sum: u32,
) -> u32 {
    // SAFETY: the caller's obligation.
    checksum::csum_partial_latency(unsafe { bytes(data, length) }, sum)
}

/// # Safety
/// `length` readable bytes at `source`, as many writable ones at `destination`, which do not
/// overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_and_copy(
    source: *const c_void,
    destination: *mut c_void,
    length: usize,
    sum: u32,
) -> u32 {
    // SAFETY: the caller's obligation.
    let (source, destination) = unsafe { (bytes(source, length), bytes_mut(destination, length)) };
    checksum::csum_and_copy(source, destination, sum)
}

/// # Safety
/// As for `shortwire_csum_and_copy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_and_copy_nt(
    source: *const c_void,
    destination: *mut c_void,
    length: usize,
    sum: u32,
) -> u32 {
    // SAFETY: the caller's obligation.
    let (source, destination) = unsafe { (bytes(source, length), bytes_mut(destination, length)) };
    checksum::csum_and_copy_nt(source, destination, sum)
}

/// # Safety
/// `count` iovecs whose bytes are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_chain(
    buffers: *const IoVec,
    count: usize,
    sum: u32,
) -> u32 {
    // SAFETY: the caller's obligation.
    checksum::csum_chain::<IoVec>(unsafe { bytes(buffers.cast(), count) }, sum)
}

/// # Safety
/// `count` iovecs whose bytes are readable, and as many sums.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_batch(packets: *const IoVec, sums: *mut u32, count: usize) {
    // SAFETY: the caller's obligation.
    let (packets, sums) =
        unsafe { (bytes::<IoVec>(packets.cast(), count), bytes_mut(sums.cast(), count)) };
    checksum::csum_batch(packets, sums);
}

/// # Safety
/// Two addresses of 4 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_tcpudp_nofold(
    source: *const [u8; 4],
    destination: *const [u8; 4],
    length: u16,
    protocol: u8,
    sum: u32,
) -> u32 {
    // SAFETY: the caller's obligation.
    let (source, destination) = unsafe { (*source, *destination) };
    checksum::csum_tcpudp_nofold(source, destination, length, protocol, sum)
}

/// # Safety
/// Two addresses of 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_ipv6_nofold(
    source: *const [u8; 16],
    destination: *const [u8; 16],
    length: u32,
    protocol: u8,
    sum: u32,
) -> u32 {
    // SAFETY: the caller's obligation.
    let (source, destination) = unsafe { (*source, *destination) };
    checksum::csum_ipv6_nofold(source, destination, length, protocol, sum)
}

macro_rules! replaces {
    ($($name:ident => $function:ident, $size:literal;)*) => {$(
        /// # Safety
        /// Readable bytes at both, as many as the name says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(check: u16, before: *const [u8; $size], after: *const [u8; $size]) -> u16 {
            // SAFETY: the caller's obligation.
            let (before, after) = unsafe { (*before, *after) };
            checksum::$function(check, before, after)
        }
    )*};
}

replaces! {
    shortwire_csum_replace2 => csum_replace2, 2;
    shortwire_csum_replace4 => csum_replace4, 4;
    shortwire_csum_replace6 => csum_replace6, 6;
    shortwire_csum_replace16 => csum_replace16, 16;
}

fn number(result: Result<Outcome, PacketError>) -> c_int {
    match result {
        Ok(Outcome::Complete) => 0,
        Ok(Outcome::NoChecksum) => 1,
        Ok(Outcome::Fragment) => 2,
        Ok(Outcome::OtherProtocol(_)) => 3,
        Err(PacketError::Truncated { .. }) => -1,
        Err(PacketError::Version(_)) => -2,
        Err(PacketError::Length) => -3,
        Err(PacketError::RoutingHeader(_)) => -4,
        Err(PacketError::HeaderChecksum) => -5,
        Err(PacketError::TransportChecksum) => -6,
        Err(PacketError::MissingChecksum) => -7,
    }
}

/// # Safety
/// `length` readable bytes at `packet`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_verify(packet: *const c_void, length: usize) -> c_int {
    // SAFETY: the caller's obligation.
    number(verify(unsafe { bytes(packet, length) }))
}

/// # Safety
/// `length` readable and writable bytes at `packet`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_fill(packet: *mut c_void, length: usize) -> c_int {
    // SAFETY: the caller's obligation.
    number(fill(unsafe { bytes_mut(packet, length) }))
}

/// The names of all kernels, as C has them.
const NAMES: [&CStr; 9] =
    [c"portable", c"adc1", c"adx", c"adc4", c"avx2", c"avxvnni", c"avx512", c"avx512vnni", c"neon"];

#[unsafe(no_mangle)]
pub extern "C" fn shortwire_csum_kernel() -> *const c_char {
    let active = Kernel::active().name();
    let name = NAMES.into_iter().find(|name| name.to_bytes() == active.as_bytes());
    name.unwrap_or(c"unknown").as_ptr()
}

/// # Safety
/// A string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_select(name: *const c_char) -> c_int {
    // SAFETY: the caller's obligation.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("");
    match Kernel::by_name(name).and_then(select) {
        Ok(()) => 0,
        Err(KernelError::Unknown) => -1,
        Err(KernelError::NotSupported(_)) => -2,
    }
}

/// # Safety
/// A string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shortwire_csum_set_profile(text: *const c_char) -> c_int {
    // SAFETY: the caller's obligation.
    match Profile::parse(unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")) {
        Ok(profile) => {
            set_profile(profile);
            0
        }
        Err(ProfileError::Damaged { .. }) => -1,
        Err(ProfileError::OtherProcessor { .. }) => -2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also of those that this processor lacks: on another one they are "unknown" otherwise.
    #[test]
    fn each_kernel_has_its_name_in_c() {
        for kernel in Kernel::all() {
            let name = NAMES.into_iter().find(|name| name.to_bytes() == kernel.name().as_bytes());
            let name = name.unwrap_or_else(|| panic!("{} is missing", kernel.name()));
            // SAFETY: a string.
            let selected = unsafe { shortwire_csum_select(name.as_ptr()) };
            assert_eq!(selected, if kernel.is_available() { 0 } else { -2 }, "{name:?}");
            if kernel.is_available() {
                // SAFETY: a string.
                assert_eq!(unsafe { CStr::from_ptr(shortwire_csum_kernel()) }, name);
            }
        }
    }
}
