//! Add-with-carry: one chain, four chains, and two that interleave (ADCX and ADOX).
//!
//! Assembly, because compilers do not keep a carry in its flag over a loop.
#![allow(unsafe_code)]

use core::arch::asm;

use crate::arch::{aligned, last_word};
use crate::sum::{add64, fold64};

/// One chain: each addition waits for the one before.
pub(crate) fn one_chain(data: &[u8], sum: u32) -> u32 {
    let (blocks, rest) = data.as_chunks::<64>();
    let mut total = u64::from(sum);
    for block in blocks {
        total = add_block(total, block);
    }
    fold64(add64(total, rest_sum(rest)))
}

/// Four short chains, closed after 32 bytes each, so that they overlap.
pub(crate) fn four_chains(data: &[u8], sum: u32) -> u32 {
    let (blocks, rest) = data.as_chunks::<128>();
    let mut sums = [u64::from(sum), 0, 0, 0];
    for block in blocks {
        for (sum, quarter) in sums.iter_mut().zip(block.as_chunks::<32>().0) {
            *sum = add_quarter(*sum, quarter);
        }
    }
    let [a, b, c, d] = sums;
    fold64(add64(add64(add64(a, b), add64(c, d)), rest_sum(rest)))
}

/// Two chains with a carry flag each.
#[target_feature(enable = "adx")]
pub(crate) fn two_flags(data: &[u8], sum: u32) -> u32 {
    let (blocks, rest) = data.as_chunks::<128>();
    let (mut a, mut b) = (u64::from(sum), 0);
    for block in blocks {
        // SAFETY: reads the block only.
        unsafe {
            asm!(
                "xor {zero:e}, {zero:e}", // clears both flags
                "adcx {a}, [{at}]",
                "adox {b}, [{at} + 8]",
                "adcx {a}, [{at} + 16]",
                "adox {b}, [{at} + 24]",
                "adcx {a}, [{at} + 32]",
                "adox {b}, [{at} + 40]",
                "adcx {a}, [{at} + 48]",
                "adox {b}, [{at} + 56]",
                "adcx {a}, [{at} + 64]",
                "adox {b}, [{at} + 72]",
                "adcx {a}, [{at} + 80]",
                "adox {b}, [{at} + 88]",
                "adcx {a}, [{at} + 96]",
                "adox {b}, [{at} + 104]",
                "adcx {a}, [{at} + 112]",
                "adox {b}, [{at} + 120]",
                "adcx {a}, {zero}",
                "adox {b}, {zero}",
                a = inout(reg) a, b = inout(reg) b, at = in(reg) block, zero = out(reg) _,
                options(pure, readonly, nostack)
            );
        }
    }
    fold64(add64(add64(a, b), rest_sum(rest)))
}

/// Fewer than 128 bytes.
#[inline(always)]
fn rest_sum(rest: &[u8]) -> u64 {
    let mut total = last_word(rest);
    let (quarters, words) = rest.as_chunks::<32>();
    for quarter in quarters {
        total = add_quarter(total, quarter);
    }
    for word in words.as_chunks::<8>().0 {
        total = add64(total, u64::from_le_bytes(*word));
    }
    total
}

#[inline(always)]
fn add_block(mut sum: u64, block: &[u8; 64]) -> u64 {
    // SAFETY: reads the block only.
    unsafe {
        asm!(
            "add {sum}, [{at}]",
            "adc {sum}, [{at} + 8]",
            "adc {sum}, [{at} + 16]",
            "adc {sum}, [{at} + 24]",
            "adc {sum}, [{at} + 32]",
            "adc {sum}, [{at} + 40]",
            "adc {sum}, [{at} + 48]",
            "adc {sum}, [{at} + 56]",
            "adc {sum}, 0",
            sum = inout(reg) sum, at = in(reg) block,
            options(pure, readonly, nostack)
        );
    }
    sum
}

#[inline(always)]
fn add_quarter(mut sum: u64, quarter: &[u8; 32]) -> u64 {
    // SAFETY: reads the quarter only.
    unsafe {
        asm!(
            "add {sum}, [{at}]",
            "adc {sum}, [{at} + 8]",
            "adc {sum}, [{at} + 16]",
            "adc {sum}, [{at} + 24]",
            "adc {sum}, 0",
            sum = inout(reg) sum, at = in(reg) quarter,
            options(pure, readonly, nostack)
        );
    }
    sum
}

/// Copies and sums, for all kernels of this file: the stores leave nothing to gain from a second
/// chain.
pub(crate) fn copy(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let (blocks, rest) = source.as_chunks::<32>();
    let (targets, target) = destination.as_chunks_mut::<32>();
    let (mut even, mut odd) = (u64::from(sum), 0);
    for (number, (block, target)) in blocks.iter().zip(targets).enumerate() {
        // Two chains in turn.
        let sum = if number % 2 == 0 { &mut even } else { &mut odd };
        *sum = copy_block(*sum, block, target);
    }
    target.copy_from_slice(rest);
    fold64(add64(add64(even, odd), rest_sum(rest)))
}

#[inline(always)]
fn copy_block(mut sum: u64, source: &[u8; 32], destination: &mut [u8; 32]) -> u64 {
    // SAFETY: reads one block and writes the other.
    unsafe {
        asm!(
            "mov {a}, [{from}]",
            "mov {b}, [{from} + 8]",
            "mov {c}, [{from} + 16]",
            "mov {d}, [{from} + 24]",
            "add {sum}, {a}",
            "adc {sum}, {b}",
            "adc {sum}, {c}",
            "adc {sum}, {d}",
            "adc {sum}, 0",
            "mov [{to}], {a}",
            "mov [{to} + 8], {b}",
            "mov [{to} + 16], {c}",
            "mov [{to} + 24], {d}",
            sum = inout(reg) sum, from = in(reg) source, to = in(reg) destination,
            a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
            options(nostack)
        );
    }
    sum
}

pub(crate) fn copy_nt(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    // SAFETY: neither needs a feature.
    unsafe { aligned::<64>(source, destination, sum, copy, stream) }
}

fn stream(source: &[[u8; 64]], destination: &mut [[u8; 64]]) -> u32 {
    let mut total = 0;
    for (from, to) in source.iter().zip(destination) {
        for (word, place) in from.as_chunks::<8>().0.iter().zip(to.as_chunks_mut::<8>().0) {
            // SAFETY: writes the word only.
            unsafe {
                asm!("movnti [{}], {}", in(reg) place, in(reg) u64::from_le_bytes(*word), options(nostack, preserves_flags));
            }
        }
        total = add_block(total, from);
    }
    // Stores that go past the caches are not ordered with others; whoever is told of the copy must
    // see it. SAFETY: SSE belongs to every x86-64 processor.
    unsafe { core::arch::x86_64::_mm_sfence() };
    fold64(total)
}
