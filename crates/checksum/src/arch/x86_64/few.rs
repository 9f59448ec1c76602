//! Up to some hundred bytes with general registers: where the sum is waited for, vectors come too
//! late. Their way from memory to a sum in a general register takes some 25 cycles, and this one
//! takes ten and a few more for each 64 bytes.
#![allow(unsafe_code)]

use core::arch::asm;

use crate::arch::last_word;
use crate::sum::{add64, fold64};

/// Any length, but made for short data.
#[inline(always)]
pub(crate) fn partial(data: &[u8], sum: u32) -> u32 {
    let length = data.len();
    // From the short parts at the end to the long ones at the beginning. Each part adds its own words
    // up first and then what the parts before gave: the parts do not wait for each other.
    //
    // 7 bytes and 32 bits: no carry.
    let mut total = last_word(data) + u64::from(sum);
    // SAFETY: each part begins behind the longer ones, and lies in the data if its bit is set.
    unsafe {
        if length & 8 != 0 {
            let word = data.as_ptr().add(length & !15).cast::<u64>();
            total = add64(word.read_unaligned(), total);
        }
        if length & 16 != 0 {
            total = add_16(data.as_ptr(), length & !31, total);
        }
        if length & 32 != 0 {
            total = add_32(data.as_ptr(), length & !63, total);
        }
        if length & 64 != 0 {
            total = add_64(data.as_ptr(), length & !127, total);
        }
    }
    let (blocks, _) = data.as_chunks::<128>();
    if !blocks.is_empty() {
        let sums = blocks.iter().fold([0; 4], add_128);
        total = join(sums, total);
    }
    fold64(total)
}

/// As the next two with the offset apart, which an instruction adds to an address for nothing.
///
/// # Safety
/// 16 bytes must be readable there.
#[inline(always)]
unsafe fn add_16(data: *const u8, from: usize, total: u64) -> u64 {
    let sum: u64;
    // SAFETY: reads these bytes only.
    unsafe {
        asm!(
            "mov {sum}, [{at} + {from}]",
            "add {sum}, [{at} + {from} + 8]",
            "adc {sum}, {total}",
            "adc {sum}, 0",
            sum = out(reg) sum, total = in(reg) total, at = in(reg) data, from = in(reg) from, options(pure, readonly, nostack)
        );
    }
    sum
}

/// # Safety
/// 32 bytes must be readable there.
#[inline(always)]
unsafe fn add_32(data: *const u8, from: usize, total: u64) -> u64 {
    let sum: u64;
    // SAFETY: reads these bytes only.
    unsafe {
        asm!(
            "mov {sum}, [{at} + {from}]",
            "add {sum}, [{at} + {from} + 8]",
            "adc {sum}, [{at} + {from} + 16]",
            "adc {sum}, [{at} + {from} + 24]",
            "adc {sum}, {total}",
            "adc {sum}, 0",
            sum = out(reg) sum, total = in(reg) total, at = in(reg) data, from = in(reg) from, options(pure, readonly, nostack)
        );
    }
    sum
}

/// Two chains of four words each, which do not wait for each other.
///
/// # Safety
/// 64 bytes must be readable there.
#[inline(always)]
unsafe fn add_64(data: *const u8, from: usize, total: u64) -> u64 {
    let sum: u64;
    // SAFETY: reads these bytes only.
    unsafe {
        asm!(
            "mov {other}, [{at} + {from} + 32]",
            "add {other}, [{at} + {from} + 40]",
            "adc {other}, [{at} + {from} + 48]",
            "adc {other}, [{at} + {from} + 56]",
            "adc {other}, {total}",
            "adc {other}, 0",
            "mov {sum}, [{at} + {from}]",
            "add {sum}, [{at} + {from} + 8]",
            "adc {sum}, [{at} + {from} + 16]",
            "adc {sum}, [{at} + {from} + 24]",
            "adc {sum}, {other}",
            "adc {sum}, 0",
            sum = out(reg) sum, other = out(reg) _, total = in(reg) total, at = in(reg) data, from = in(reg) from,
            options(pure, readonly, nostack)
        );
    }
    sum
}

/// Four chains of four words each.
#[inline(always)]
fn add_128([mut a, mut b, mut c, mut d]: [u64; 4], block: &[u8; 128]) -> [u64; 4] {
    // SAFETY: reads the block only.
    unsafe {
        asm!(
            "add {a}, [{at}]",
            "adc {a}, [{at} + 8]",
            "adc {a}, [{at} + 16]",
            "adc {a}, [{at} + 24]",
            "adc {a}, 0",
            "add {b}, [{at} + 32]",
            "adc {b}, [{at} + 40]",
            "adc {b}, [{at} + 48]",
            "adc {b}, [{at} + 56]",
            "adc {b}, 0",
            "add {c}, [{at} + 64]",
            "adc {c}, [{at} + 72]",
            "adc {c}, [{at} + 80]",
            "adc {c}, [{at} + 88]",
            "adc {c}, 0",
            "add {d}, [{at} + 96]",
            "adc {d}, [{at} + 104]",
            "adc {d}, [{at} + 112]",
            "adc {d}, [{at} + 120]",
            "adc {d}, 0",
            a = inout(reg) a, b = inout(reg) b, c = inout(reg) c, d = inout(reg) d, at = in(reg) block,
            options(pure, readonly, nostack)
        );
    }
    [a, b, c, d]
}

#[inline(always)]
fn join([mut a, b, c, d]: [u64; 4], total: u64) -> u64 {
    // SAFETY: registers only.
    unsafe {
        asm!(
            "add {a}, {b}",
            "adc {a}, {c}",
            "adc {a}, {d}",
            "adc {a}, {total}",
            "adc {a}, 0",
            a = inout(reg) a, b = in(reg) b, c = in(reg) c, d = in(reg) d, total = in(reg) total,
            options(pure, nomem, nostack)
        );
    }
    a
}
