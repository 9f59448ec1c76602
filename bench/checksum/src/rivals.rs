//! Other people's checksums.
#![allow(unsafe_code)]

use crate::event::Absent;
use crate::sum::Role::Rival;
#[cfg(any(c_rivals, linux_source, dpdk))]
use crate::sum::from_native;
use crate::sum::{Routine, from_complement};

pub fn all() -> (Vec<Routine>, Vec<Absent>) {
    let (mut routines, absent) = in_c();
    routines.extend([
        // Returns the folded sum as a number, not complemented.
        Routine::new("smoltcp", Rival, Some(|sum| sum as u16), |data| {
            u64::from(smoltcp::wire::checksum::data(data))
        }),
        Routine::new("internet-checksum", Rival, Some(from_complement), |data| {
            u64::from(u16::from_be_bytes(internet_checksum::checksum(data)))
        }),
        // Its number has the field's bytes in memory order.
        Routine::new("etherparse", Rival, Some(|field| from_complement(field).to_be()), |data| {
            u64::from(etherparse::checksum::Sum16BitWords::new().add_slice(data).ones_complement())
        }),
        // The word to skip lies behind the end: none is.
        Routine::new("pnet", Rival, Some(from_complement), |data| {
            u64::from(pnet_packet::util::checksum(data, data.len()))
        }),
    ]);
    (routines, absent)
}

/// Copies and sums.
pub type Copy = fn(&[u8], &mut [u8]) -> u64;

#[cfg(not(c_rivals))]
pub fn copies() -> Vec<(&'static str, Copy)> {
    Vec::new()
}

/// Those that copy: the ways of VPP and of Linux.
#[cfg(c_rivals)]
pub fn copies() -> Vec<(&'static str, Copy)> {
    unsafe extern "C" {
        fn rival_vpp_copy(from: *const u8, to: *mut u8, length: usize) -> u32;
        fn rival_linux_copy(from: *const u8, to: *mut u8, length: usize) -> u32;
    }
    let linux: Copy = |source, destination| {
        let length = source.len().min(destination.len());
        // SAFETY: reads and writes `length` bytes.
        u64::from(unsafe { rival_linux_copy(source.as_ptr(), destination.as_mut_ptr(), length) })
    };
    let vpp: Copy = |source, destination| {
        let length = source.len().min(destination.len());
        // SAFETY: as above; listed only where the processor has the instructions.
        u64::from(unsafe { rival_vpp_copy(source.as_ptr(), destination.as_mut_ptr(), length) })
    };
    let mut copies = vec![("linux copy", linux)];
    if is_wide() {
        copies.push(("vpp copy", vpp));
    }
    copies
}

#[cfg(c_rivals)]
fn is_wide() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("bmi2")
}

fn in_c() -> (Vec<Routine>, Vec<Absent>) {
    let (mut routines, mut absent) = of_x86_64();
    for rival in [linux_source(), dpdk()] {
        match rival {
            Ok(routine) => routines.push(routine),
            Err(why) => absent.push(why),
        }
    }
    (routines, absent)
}

#[cfg(not(c_rivals))]
fn of_x86_64() -> (Vec<Routine>, Vec<Absent>) {
    let reason = "written for x86-64; or no C compiler was there when this program was built";
    (Vec::new(), ["linux", "linux 2x5", "vpp"].map(|name| Absent::new(name, reason)).into())
}

#[cfg(c_rivals)]
fn of_x86_64() -> (Vec<Routine>, Vec<Absent>) {
    let (mut routines, mut absent) = (Vec::from(linux()), Vec::new());
    if is_wide() {
        routines.push(vpp());
    } else {
        absent.push(Absent::new("vpp", "this processor lacks AVX-512"));
    }
    (routines, absent)
}

#[cfg(c_rivals)]
fn linux() -> [Routine; 2] {
    unsafe extern "C" {
        fn rival_linux_2x4(at: *const u8, length: usize, sum: u32) -> u32;
        fn rival_linux_2x5(at: *const u8, length: usize, sum: u32) -> u32;
    }
    [
        Routine::new("linux", Rival, Some(from_native), |data| {
            // SAFETY: reads `length` bytes.
            u64::from(unsafe { rival_linux_2x4(data.as_ptr(), data.len(), 0) })
        }),
        Routine::new("linux 2x5", Rival, Some(from_native), |data| {
            // SAFETY: reads `length` bytes.
            u64::from(unsafe { rival_linux_2x5(data.as_ptr(), data.len(), 0) })
        }),
    ]
}

/// The kernel's own file, with its flags.
#[cfg(linux_source)]
fn linux_source() -> Result<Routine, Absent> {
    #[cfg(target_arch = "x86_64")]
    fn sum(data: &[u8]) -> u32 {
        unsafe extern "C" {
            fn csum_partial(at: *const u8, length: i32, sum: u32) -> u32;
        }
        // SAFETY: reads `length` bytes, and up to seven behind them in the same word, which the
        // bench's memory has.
        unsafe { csum_partial(data.as_ptr(), data.len() as i32, 0) }
    }
    #[cfg(target_arch = "aarch64")]
    fn sum(data: &[u8]) -> u32 {
        unsafe extern "C" {
            fn do_csum(at: *const u8, length: i32) -> u32;
        }
        // SAFETY: reads the words of eight bytes in which the data lies.
        unsafe { do_csum(data.as_ptr(), data.len() as i32) }
    }
    Ok(Routine::new("linux source", Rival, Some(from_native), |data| u64::from(sum(data))))
}

#[cfg(not(linux_source))]
fn linux_source() -> Result<Routine, Absent> {
    let reason = "LINUX_SOURCE did not name a tree of the kernel when this program was built";
    Err(Absent::new("linux source", reason))
}

#[cfg(c_rivals)]
fn vpp() -> Routine {
    unsafe extern "C" {
        fn rival_vpp_csum(at: *const u8, length: usize) -> u32;
    }
    Routine::new("vpp", Rival, Some(from_native), |data| {
        // SAFETY: reads `length` bytes; listed only where the processor has the instructions.
        u64::from(unsafe { rival_vpp_csum(data.as_ptr(), data.len()) })
    })
}

#[cfg(dpdk)]
fn dpdk() -> Result<Routine, Absent> {
    #[cfg(target_arch = "x86_64")]
    if !is_x86_feature_detected!("avx2") {
        return Err(Absent::new("dpdk", "this processor lacks AVX2, for which it was compiled"));
    }
    unsafe extern "C" {
        fn rival_dpdk_raw_cksum(at: *const u8, length: usize) -> u16;
    }
    Ok(Routine::new("dpdk", Rival, Some(from_native), |data| {
        // SAFETY: reads `length` bytes.
        u64::from(unsafe { rival_dpdk_raw_cksum(data.as_ptr(), data.len()) })
    }))
}

#[cfg(not(dpdk))]
fn dpdk() -> Result<Routine, Absent> {
    let reason = "its headers (libdpdk-dev) were not there when this program was built";
    Err(Absent::new("dpdk", reason))
}

/// One chain of additions with carry, as the source thread's kernel had, with a prefetch or
/// without.
#[cfg(c_rivals)]
pub mod one_chain {
    unsafe extern "C" {
        fn one_chain(at: *const u8, length: usize) -> u32;
        fn one_chain_dumb(at: *const u8, length: usize, distance: usize) -> u32;
        fn one_chain_smart(at: *const u8, length: usize, distance: usize) -> u32;
    }

    pub fn plain(data: &[u8]) -> u64 {
        // SAFETY: reads `length` bytes.
        u64::from(unsafe { one_chain(data.as_ptr(), data.len()) })
    }

    /// Prefetches also what lies behind the end of the data.
    pub fn dumb(data: &[u8], distance: usize) -> u64 {
        // SAFETY: reads `length` bytes; a prefetch of any address is harmless.
        u64::from(unsafe { one_chain_dumb(data.as_ptr(), data.len(), distance) })
    }

    pub fn smart(data: &[u8], distance: usize) -> u64 {
        // SAFETY: reads `length` bytes.
        u64::from(unsafe { one_chain_smart(data.as_ptr(), data.len(), distance) })
    }
}

#[cfg(test)]
mod tests {
    use crate::random::Random;

    #[test]
    fn all_rivals_sum_packets_right() {
        let mut random = Random::new(1);
        let bytes: Vec<u8> = (0..4096).map(|_| random.next() as u8).collect();
        let packets: Vec<&[u8]> = (0..1600).map(|length| &bytes[length % 5..][..length]).collect();
        for routine in super::all().0 {
            for packet in &packets {
                assert!(routine.is_right(&[packet]), "{} at {} bytes", routine.name, packet.len());
            }
        }
    }

    #[cfg(c_rivals)]
    #[test]
    fn copies_are_exact_and_sum_right() {
        use crate::sum::{from_native, oracle, same};
        let mut random = Random::new(4);
        let bytes: Vec<u8> = (0..2100).map(|_| random.next() as u8).collect();
        for (name, copy) in super::copies() {
            for length in 0..2048 {
                let (source, mut to) = (&bytes[length % 3..][..length], vec![7; length + 1]);
                let sum = copy(source, &mut to[..length]);
                assert!(same(from_native(sum), oracle(source)), "{name} at {length} bytes");
                assert!(to[..length] == *source && to[length] == 7, "{name} at {length} bytes");
            }
        }
    }

    #[cfg(c_rivals)]
    #[test]
    fn chains_sum_right_with_every_prefetch() {
        use super::one_chain;
        use crate::sum::{from_native, oracle, same};
        let mut random = Random::new(2);
        let bytes: Vec<u8> = (0..9000).map(|_| random.next() as u8).collect();
        for length in [0, 1, 7, 63, 64, 129, 1500, 9000] {
            let data = &bytes[..length];
            let sums =
                [one_chain::plain(data), one_chain::dumb(data, 320), one_chain::smart(data, 320)];
            assert!(sums.iter().all(|&sum| same(from_native(sum), oracle(data))), "{length} bytes");
        }
    }
}
