//! A hash with a key: who does not have the key cannot say what it would be.

use core::hash::Hasher;

/// SipHash-2-4 of the parts, each with its length, so that they cannot run into each other.
#[allow(deprecated)] // The standard library has no other hash whose function and key are fixed.
pub(crate) fn keyed(key: [u64; 2], parts: &[&[u8]]) -> u64 {
    let mut hash = core::hash::SipHasher::new_with_keys(key[0], key[1]);
    for part in parts {
        hash.write(&(part.len() as u64).to_ne_bytes());
        hash.write(part);
    }
    hash.finish()
}
