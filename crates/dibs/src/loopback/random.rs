//! Randomness for names, that nobody can guess and that never fails.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use rustix::rand::{GetRandomFlags, getrandom};

pub fn words() -> [u64; 2] {
    let mut bytes = [0u8; 16];
    // Not waiting for the pool: a name that is merely unlikely to recur serves its purpose too.
    if getrandom(&mut bytes, GetRandomFlags::NONBLOCK) != Ok(16) {
        bytes = fallback().to_ne_bytes();
    }
    let all = u128::from_ne_bytes(bytes);
    [(all >> 64) as u64, all as u64]
}

/// Where a sandbox forbids getrandom: thread, address space layout and a count, stirred. No clock,
/// as rustix reads files and allocates before it has the first time from the vDSO.
fn fallback() -> u128 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let here = 0u8;
    let mut x = u64::from(shm::thread_id()) << 32 ^ COUNT.fetch_add(1, Relaxed);
    x ^= ((&raw const here).addr() as u64).rotate_left(20) ^ (&raw const COUNT).addr() as u64;
    let mut out = 0u128;
    for _ in 0..2 {
        // The finaliser of splitmix64.
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out = out << 64 | u128::from(z ^ (z >> 31));
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_differ() {
        assert_ne!(super::words(), super::words());
        assert_ne!(super::fallback(), super::fallback());
    }
}
