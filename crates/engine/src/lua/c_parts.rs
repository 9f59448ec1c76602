//! Functions that libraries for scripts look for in `ffi.C`: in Snabb they are parts of its
//! executable, written in C. Here `modules/shortwire/prelude.lua` puts them there.
//!
//! Libraries declare them themselves, so that names, arguments and results are as in those
//! declarations (`core/lib.h`, `lib/checksum.h` and so on). Their pointers are as good as the
//! script.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use checksum::{csum_fold, csum_partial};
use mlua::{LightUserData, Lua, Table};

use crate::clock::monotonic;
use crate::lua::shared;

/// Adds them to `shortwire.host`, each with its type; and DynASM's encoder.
pub fn install(lua: &Lua, module: &Table) -> mlua::Result<()> {
    let parts = lua.create_table()?;
    for (name, prototype, address) in functions() {
        let part = lua.create_table()?;
        part.set("type", prototype)?;
        part.set("address", LightUserData(address))?;
        parts.set(name, part)?;
    }
    module.set("c_parts", parts)?;
    let encoder = lua.create_table()?;
    for (name, address) in dynasm() {
        encoder.set(name, LightUserData(address))?;
    }
    module.set("dynasm", encoder)
}

/// Name, type for LuaJIT's FFI, address.
fn functions() -> Vec<(&'static str, &'static str, *mut c_void)> {
    vec![
        ("get_time_ns", "uint64_t (*)(void)", get_time_ns as *mut c_void),
        ("get_monotonic_time", "double (*)(void)", get_monotonic_time as *mut c_void),
        ("get_unix_time", "double (*)(void)", get_unix_time as *mut c_void),
        ("sleep_ns", "void (*)(int)", sleep_ns as *mut c_void),
        ("full_memory_barrier", "void (*)(void)", full_memory_barrier as *mut c_void),
        ("nop", "void (*)(void)", nop as *mut c_void),
        ("prefetch_for_read", "void (*)(const void *)", prefetch as *mut c_void),
        ("prefetch_for_write", "void (*)(const void *)", prefetch as *mut c_void),
        ("stat_mtime", "unsigned int (*)(const char *)", stat_mtime as *mut c_void),
        ("cksum_generic", CKSUM, cksum as *mut c_void),
        ("cksum_sse2", CKSUM, cksum as *mut c_void),
        ("cksum_avx2", CKSUM, cksum as *mut c_void),
        (
            "checksum_update_incremental_16",
            "void (*)(uint16_t *, uint16_t *, uint16_t)",
            update_16 as *mut c_void,
        ),
        (
            "checksum_update_incremental_32",
            "void (*)(uint16_t *, uint32_t *, uint32_t)",
            update_32 as *mut c_void,
        ),
        (
            "pseudo_header_initial",
            "uint32_t (*)(const void *, size_t)",
            pseudo_header as *mut c_void,
        ),
        (
            "lpm4_248_search",
            "uint16_t (*)(uint32_t, uint16_t *, uint16_t *)",
            lpm4_248 as *mut c_void,
        ),
        (
            "lpm4_248_search32",
            "uint32_t (*)(uint32_t, uint32_t *, uint32_t *)",
            lpm4_248_32 as *mut c_void,
        ),
        (
            "lpm4_dxr_search",
            "uint16_t (*)(uint32_t, uint16_t *, uint16_t *, uint32_t *, uint32_t *)",
            lpm4_dxr as *mut c_void,
        ),
        (
            "check_seq_no",
            "int64_t (*)(uint32_t, uint64_t, uint8_t *, uint32_t)",
            check_seq_no as *mut c_void,
        ),
        (
            "track_seq_no",
            "uint64_t (*)(uint32_t, uint32_t, uint64_t, uint8_t *, uint32_t)",
            track_seq_no as *mut c_void,
        ),
        ("shmem_attach", "char *(*)(void *, size_t)", shared::attach as *mut c_void),
        ("shmem_grow", "char *(*)(void *, void *, size_t, size_t)", shared::grow as *mut c_void),
        ("shmem_unmap", "bool (*)(void *, size_t)", shared::unmap as *mut c_void),
    ]
}

const CKSUM: &str = "uint16_t (*)(const void *, size_t, uint16_t)";

/// DynASM's encoder, by the names under which `modules/dasm.lua` knows it. Empty for processors
/// whose code it does not make.
fn dynasm() -> Vec<(&'static str, *mut c_void)> {
    #[cfg(target_arch = "x86_64")]
    {
        unsafe extern "C" {
            fn dasm_init();
            fn dasm_free();
            fn dasm_setupglobal();
            fn dasm_growpc();
            fn dasm_setup();
            fn dasm_put();
            fn dasm_link();
            fn dasm_encode();
            fn dasm_getpclabel();
            fn dasm_checkstep();
        }
        vec![
            ("init", dasm_init as *mut c_void),
            ("free", dasm_free as *mut c_void),
            ("setupglobal", dasm_setupglobal as *mut c_void),
            ("growpc", dasm_growpc as *mut c_void),
            ("setup", dasm_setup as *mut c_void),
            ("put", dasm_put as *mut c_void),
            ("link", dasm_link as *mut c_void),
            ("encode", dasm_encode as *mut c_void),
            ("getpclabel", dasm_getpclabel as *mut c_void),
            ("checkstep", dasm_checkstep as *mut c_void),
        ]
    }
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

extern "C" fn get_time_ns() -> u64 {
    monotonic()
}

extern "C" fn get_monotonic_time() -> f64 {
    monotonic() as f64 / 1e9
}

extern "C" fn get_unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

extern "C" fn sleep_ns(nanoseconds: c_int) {
    std::thread::sleep(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0)));
}

extern "C" fn full_memory_barrier() {
    // SYNC: script. The script's own pairs, with whoever shares memory with it.
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// A call that the compiler of scripts knows nothing of: it moves no load or store across.
extern "C" fn nop() {}

extern "C" fn prefetch(_address: *const c_void) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing, whatever the address is.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(_address.cast());
    }
}

/// # Safety
/// `path` is a string in C.
unsafe extern "C" fn stat_mtime(path: *const c_char) -> c_uint {
    // SAFETY: the caller's.
    let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
    std::fs::metadata(path).map_or(0, |meta| c_uint::try_from(meta.mtime()).unwrap_or(0))
}

/// The Internet checksum of bytes behind a sum of 16 bits, both in the byte order of the machine.
///
/// # Safety
/// There are `length` bytes at `data`, which nobody changes meanwhile.
unsafe extern "C" fn cksum(data: *const u8, length: usize, initial: u16) -> u16 {
    let data = match length {
        0 => &[],
        // SAFETY: the caller's.
        _ => unsafe { std::slice::from_raw_parts(data, length) },
    };
    u16::from_be(csum_fold(csum_partial(data, u32::from(initial.to_be()))))
}

/// What a checksum in network byte order becomes when a sum goes out of the data and another one
/// comes in (RFC 1624, equation 3).
fn updated(check: u16, out: u32, new: u32) -> u16 {
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let sum = fold(fold(u32::from(!u16::from_be(check)) + out + new));
    (!(fold(sum) as u16)).to_be()
}

/// # Safety
/// Both are a field that may be written.
unsafe extern "C" fn update_16(check: *mut u16, field: *mut u16, new: u16) {
    // SAFETY: the caller's; fields of packets are not aligned.
    let (old_check, old) = unsafe { (check.read_unaligned(), field.read_unaligned()) };
    let sum = updated(old_check, u32::from(!u16::from_be(old)), u32::from(new));
    // SAFETY: as above.
    unsafe { (check.write_unaligned(sum), field.write_unaligned(new.to_be())) };
}

/// # Safety
/// Both are a field that may be written.
unsafe extern "C" fn update_32(check: *mut u16, field: *mut u32, new: u32) {
    // SAFETY: the caller's; fields of packets are not aligned.
    let (old_check, old) = unsafe { (check.read_unaligned(), field.read_unaligned()) };
    let halves = |word: u32| (word >> 16) + (word & 0xffff);
    let sum = updated(old_check, halves(!u32::from_be(old)), halves(new));
    // SAFETY: as above.
    unsafe { (check.write_unaligned(sum), field.write_unaligned(new.to_be())) };
}

/// Neither IP, nor TCP or UDP over it.
const UNKNOWN: u32 = 0xffff_0001;
/// A header that is too short, or whose checksum is wrong.
const BAD: u32 = 0xffff_0002;

/// The sum of the pseudo header of a packet of TCP or UDP, in the byte order of the machine.
///
/// # Safety
/// There are `length` bytes at `data`, which nobody changes meanwhile.
unsafe extern "C" fn pseudo_header(data: *const u8, length: usize) -> u32 {
    if length == 0 {
        return UNKNOWN;
    }
    // SAFETY: the caller's.
    let packet = unsafe { std::slice::from_raw_parts(data, length) };
    let (protocol, payload, addresses) = match packet[0] >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            if header < 20 || length < header {
                return BAD;
            }
            if matches!(packet[9], 6 | 17) && csum_fold(csum_partial(&packet[..header], 0)) != 0 {
                return BAD;
            }
            (packet[9], (length - header) as u16, &packet[12..20])
        }
        6 if length < 40 => return BAD,
        // It says how long its payload is, and data may be longer.
        6 => (packet[6], u16::from_be_bytes([packet[4], packet[5]]), &packet[8..40]),
        _ => return UNKNOWN,
    };
    if protocol != 6 && protocol != 17 {
        return UNKNOWN;
    }
    let rest = u32::from(payload.to_be()) + u32::from(u16::from(protocol).to_be());
    u32::from(u16::from_be(!csum_fold(csum_partial(addresses, rest))))
}

/// Where an address leads by two tables: by its first 24 bits, and by the last 8 where these differ.
///
/// # Safety
/// `big` has 2^24 places, and `little` 256 for each of what `big` refers to.
unsafe extern "C" fn lpm4_248(ip: u32, big: *const u16, little: *const u16) -> u16 {
    // SAFETY: the caller's.
    let value = unsafe { *big.add(ip as usize >> 8) };
    match value.checked_sub(0x8000) {
        // SAFETY: the caller's.
        Some(block @ 1..) => unsafe { *little.add(usize::from(block) << 8 | (ip & 255) as usize) },
        _ => value,
    }
}

/// # Safety
/// As [`lpm4_248`].
unsafe extern "C" fn lpm4_248_32(ip: u32, big: *const u32, little: *const u32) -> u32 {
    // SAFETY: the caller's.
    let value = unsafe { *big.add(ip as usize >> 8) };
    match value.checked_sub(0x8000_0000) {
        // SAFETY: the caller's.
        Some(block @ 1..) => unsafe { *little.add((block as usize) << 8 | (ip & 255) as usize) },
        _ => value,
    }
}

/// The key of the first range whose end is not below the lower half of the address, among those
/// ranges that its upper half has.
///
/// # Safety
/// `bottoms` and `tops` have 2^16 places, which refer to places of `ends` and `keys`.
unsafe extern "C" fn lpm4_dxr(
    ip: u32,
    ends: *const u16,
    keys: *const u16,
    bottoms: *const u32,
    tops: *const u32,
) -> u16 {
    let (upper, lower) = ((ip >> 16) as usize, ip as u16);
    // SAFETY: the caller's.
    let bottom = unsafe { *bottoms.add(upper) } as usize;
    // SAFETY: the caller's.
    let top = unsafe { *tops.add(upper) } as usize;
    if top <= bottom {
        // SAFETY: the caller's.
        return unsafe { *keys.add(top) };
    }
    // SAFETY: the caller's: these places are there.
    let ranges = unsafe { std::slice::from_raw_parts(ends.add(bottom), top - bottom) };
    let found = bottom + ranges.partition_point(|&end| end < lower);
    // SAFETY: the caller's.
    unsafe { *keys.add(found) }
}

/// The window of sequence numbers that have come, a bit each, in a ring of `width` bits.
struct Window {
    bits: *mut u8,
    width: u32,
}

impl Window {
    fn place(&self, number: u64) -> (usize, u8) {
        let bit = (number % u64::from(self.width)) as usize;
        (bit / 8, 1 << (bit % 8))
    }

    /// # Safety
    /// There are `width` bits.
    unsafe fn has(&self, number: u64) -> bool {
        let (byte, bit) = self.place(number);
        // SAFETY: the caller's.
        unsafe { *self.bits.add(byte) & bit != 0 }
    }

    /// # Safety
    /// There are `width` bits.
    unsafe fn set(&self, number: u64, on: bool) {
        let (byte, bit) = self.place(number);
        // SAFETY: the caller's.
        let place = unsafe { &mut *self.bits.add(byte) };
        *place = if on { *place | bit } else { *place & !bit };
    }
}

/// The upper half of a sequence number of which the lower one came in a packet (RFC 4303, appendix
/// A), or -1 if that number has come before. `highest` is the highest one so far.
///
/// # Safety
/// There are `width` bits at `window`; `width` is not zero.
unsafe extern "C" fn check_seq_no(low: u32, highest: u64, window: *mut u8, width: u32) -> i64 {
    let (top_low, top_high) = (highest as u32, (highest >> 32) as u32);
    let bottom = top_low.wrapping_sub(width - 1);
    let high = match (top_low >= width - 1, low >= bottom) {
        (true, true) | (false, false) => top_high,
        (true, false) => top_high.wrapping_add(1),
        (false, true) => top_high.wrapping_sub(1),
    };
    let number = u64::from(high) << 32 | u64::from(low);
    let window = Window { bits: window, width };
    // SAFETY: the caller's.
    if number <= highest && unsafe { window.has(number) } { -1 } else { i64::from(high) }
}

/// Marks a number as seen; gives the highest one so far.
///
/// # Safety
/// As [`check_seq_no`].
unsafe extern "C" fn track_seq_no(
    high: u32,
    low: u32,
    highest: u64,
    window: *mut u8,
    width: u32,
) -> u64 {
    let number = u64::from(high) << 32 | u64::from(low);
    let window = Window { bits: window, width };
    let first_new = highest.saturating_add(1).max(number.saturating_sub(u64::from(width)));
    for skipped in first_new..number {
        // SAFETY: the caller's.
        unsafe { window.set(skipped, false) };
    }
    // SAFETY: the caller's.
    unsafe { window.set(number, true) };
    highest.max(number)
}
