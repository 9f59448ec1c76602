//! The bytes that are sent, so that the receiver can tell each one.
//!
//! Position `n` of a stream holds `table[n % PERIOD]` of a pseudo-random table whose length is
//! prime: no power of two, no page and no ring size is a multiple of it, so bytes that were lost,
//! repeated, swapped or taken from another place of the ring do not match. Checking is one memcmp
//! against a table of 8 KB that stays in the first-level cache, which costs a few percent of a
//! copy: the transport is measured, not the check.

/// Prime, just under a page.
pub const PERIOD: usize = 4093;

pub struct Pattern {
    /// The table twice, then as much more as the longest slice asked for in one piece needs.
    table: Vec<u8>,
}

impl Pattern {
    /// What clients send.
    pub fn request(longest: usize) -> Pattern {
        Pattern::new(0x9E37_79B9_7F4A_7C15, longest)
    }

    /// What servers answer: different from any request, so that an echo of the wrong direction is
    /// seen.
    pub fn response(longest: usize) -> Pattern {
        Pattern::new(0xC2B2_AE3D_27D4_EB4F, longest)
    }

    fn new(seed: u64, longest: usize) -> Pattern {
        let mut state = seed;
        let period: Vec<u8> = (0..PERIOD).map(|_| next_random(&mut state)).collect();
        let length = PERIOD + longest.max(PERIOD);
        Pattern { table: period.into_iter().cycle().take(length).collect() }
    }

    /// `length` bytes of the stream from position `at`; at most the `longest` given at
    /// construction.
    pub fn slice(&self, at: u64, length: usize) -> &[u8] {
        let start = (at % PERIOD as u64) as usize;
        &self.table[start..start + length]
    }

    /// Compares what came from position `at` on; the error is the position of the first wrong byte.
    pub fn check(&self, at: u64, received: &[u8]) -> Result<(), u64> {
        let mut position = at;
        for piece in received.chunks(PERIOD) {
            let expected = self.slice(position, piece.len());
            if piece != expected {
                let bad =
                    piece.iter().zip(expected).position(|(got, want)| got != want).unwrap_or(0);
                return Err(position + bad as u64);
            }
            position += piece.len() as u64;
        }
        Ok(())
    }
}

/// Where message `counter` of connection `id` begins in its pattern: neighbours in time and in
/// number differ.
pub fn message_start(id: u32, counter: u64, size: usize) -> u64 {
    (u64::from(id) * 977 + counter % PERIOD as u64 * (size as u64 % PERIOD as u64 + 1))
        % PERIOD as u64
}

fn next_random(state: &mut u64) -> u8 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 32) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_bytes_pass_at_any_offset() {
        let pattern = Pattern::request(64_000);
        for at in [0, 1, 4092, 4093, 4094, 63_999, 1 << 40] {
            assert_eq!(pattern.check(at, pattern.slice(at, 64_000)), Ok(()));
        }
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        let pattern = Pattern::request(64_000);
        let mut bytes = pattern.slice(500, 20_000).to_vec();
        bytes[12_345] ^= 1;
        assert_eq!(pattern.check(500, &bytes), Err(500 + 12_345));
    }

    #[test]
    fn a_skipped_page_or_ring_is_seen() {
        let pattern = Pattern::request(64_000);
        for skip in [1u64, 14, 4096, 65_536, 1 << 20] {
            assert!(
                pattern.check(skip, pattern.slice(0, 1000)).is_err(),
                "a skip of {skip} went unseen"
            );
        }
    }

    #[test]
    fn requests_responses_connections_and_counters_differ() {
        let (request, response) = (Pattern::request(128), Pattern::response(128));
        let at = message_start(3, 9, 128);
        assert_ne!(request.slice(at, 128), response.slice(at, 128));
        assert_ne!(request.slice(at, 128), request.slice(message_start(4, 9, 128), 128));
        assert_ne!(request.slice(at, 128), request.slice(message_start(3, 10, 128), 128));
    }
}
