//! Data that lies in several buffers, of any lengths.

use core::ops::Deref;

use crate::{csum_block_add, csum_partial};

/// Adds a chain of buffers to a partial sum, as if they were one. Any of them may have an odd
/// length.
///
/// Takes a slice of anything that is bytes: `&[&[u8]]`, `&[Vec<u8>]`, `&[IoSlice]`. For an iterator
/// use [`Chain`].
///
/// ```
/// let chain: [&[u8]; 3] = [b"a", b"bcd", b"ef"];
/// assert_eq!(shortwire_checksum::csum_fold(shortwire_checksum::csum_chain(&chain, 0)), shortwire_checksum::checksum(b"abcdef"));
/// ```
pub fn csum_chain<B: Deref<Target = [u8]>>(buffers: &[B], sum: u32) -> u32 {
    let mut chain = Chain::new(sum);
    for buffer in buffers {
        chain.push(buffer);
    }
    chain.sum()
}

/// A partial sum that grows buffer by buffer and keeps account of odd lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    sum: u32,
    length: usize,
}

impl Chain {
    /// Begins with a partial sum of data of even length, or 0.
    pub const fn new(sum: u32) -> Chain {
        Chain { sum, length: 0 }
    }

    /// Adds the next bytes.
    #[inline]
    pub fn push(&mut self, buffer: &[u8]) {
        self.sum = csum_block_add(self.sum, csum_partial(buffer, 0), self.length);
        // Only whether it is odd matters, so it may wrap.
        self.length = self.length.wrapping_add(buffer.len());
    }

    /// The partial sum of everything so far.
    pub const fn sum(&self) -> u32 {
        self.sum
    }
}
