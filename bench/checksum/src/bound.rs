//! The limits: reading all bytes, and copying them.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;

use crate::sum::{Role, Routine};

/// A load and an OR for every vector, as wide as the processor has them.
pub fn read() -> Routine {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the features were just detected.
            return Routine::new("read", Role::Read, None, |data| unsafe { x86::read_512(data) });
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was just detected.
            return Routine::new("read", Role::Read, None, |data| unsafe { x86::read_256(data) });
        }
    }
    Routine::new("read", Role::Read, None, portable)
}

fn portable(data: &[u8]) -> u64 {
    let (blocks, rest) = data.as_chunks::<64>();
    let mut bits = [0u8; 64];
    for block in blocks {
        bits.iter_mut().zip(block).for_each(|(bits, byte)| *bits |= byte);
    }
    let last = rest.iter().fold(0, |bits, byte| bits | byte);
    bits.iter().fold(u64::from(last), |all, &byte| all << 1 ^ u64::from(byte))
}

/// libc's memcpy into the same buffer again and again.
pub fn memcpy(longest: usize) -> Routine {
    let buffer = UnsafeCell::new(vec![0u8; longest + 64]);
    Routine::new("memcpy", Role::Memcpy, None, move |data| {
        // SAFETY: this routine alone uses the buffer, on one thread, one call at a time.
        let buffer = unsafe { &mut *buffer.get() };
        buffer[..data.len()].copy_from_slice(data);
        u64::from(buffer[0])
    })
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512bw,bmi2")]
    pub fn read_512(data: &[u8]) -> u64 {
        if data.len() <= 64 {
            let mask = _bzhi_u64(!0, data.len() as u32);
            // SAFETY: the mask has a bit for each byte.
            let bits = unsafe { _mm512_maskz_loadu_epi8(mask, data.as_ptr().cast()) };
            // SAFETY: no instruction; the load is needed because its value is.
            unsafe { asm!("/* {} */", in(zmm_reg) bits, options(nomem, nostack, preserves_flags)) };
            return 0;
        }
        let (blocks, rest) = data.as_chunks::<256>();
        let mut bits = [_mm512_setzero_si512(); 4];
        for block in blocks {
            for (index, bits) in bits.iter_mut().enumerate() {
                // SAFETY: a block has 256 bytes.
                *bits = _mm512_or_si512(*bits, unsafe {
                    _mm512_loadu_si512(block.as_ptr().add(64 * index).cast())
                });
            }
        }
        let (lines, rest) = rest.as_chunks::<64>();
        for line in lines {
            // SAFETY: a line has 64 bytes.
            bits[0] = _mm512_or_si512(bits[0], unsafe { _mm512_loadu_si512(line.as_ptr().cast()) });
        }
        if !rest.is_empty() {
            let mask = _bzhi_u64(!0, rest.len() as u32);
            // SAFETY: the mask has a bit for each byte of the rest.
            bits[1] = _mm512_or_si512(bits[1], unsafe {
                _mm512_maskz_loadu_epi8(mask, rest.as_ptr().cast())
            });
        }
        let all =
            _mm512_or_si512(_mm512_or_si512(bits[0], bits[1]), _mm512_or_si512(bits[2], bits[3]));
        // SAFETY: no instruction; the loads are needed because their values are.
        unsafe { asm!("/* {} */", in(zmm_reg) all, options(nomem, nostack, preserves_flags)) };
        0
    }

    #[target_feature(enable = "avx2")]
    pub fn read_256(data: &[u8]) -> u64 {
        let (blocks, rest) = data.as_chunks::<64>();
        let mut bits = [_mm256_setzero_si256(); 2];
        for block in blocks {
            // SAFETY: a block has 64 bytes.
            bits[0] =
                _mm256_or_si256(bits[0], unsafe { _mm256_loadu_si256(block.as_ptr().cast()) });
            // SAFETY: as above.
            bits[1] = _mm256_or_si256(bits[1], unsafe {
                _mm256_loadu_si256(block.as_ptr().add(32).cast())
            });
        }
        let last = rest.iter().fold(0, |bits, byte| bits | byte);
        let all = _mm256_or_si256(bits[0], bits[1]);
        // SAFETY: no instruction; the loads are needed because their values are.
        unsafe { asm!("/* {} */", in(ymm_reg) all, options(nomem, nostack, preserves_flags)) };
        u64::from(last)
    }
}
