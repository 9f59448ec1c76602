//! Receive side scaling: from the headers of a packet to its queue (data sheet 7.1.2.8).

use super::Registers;
use crate::nic::i82599::registers::*;

/// What the registers say.
pub(super) struct Spread {
    /// All packets go there.
    only: Option<u32>,
    key: [u8; 40],
    table: [u8; 128],
}

impl Spread {
    pub fn new(registers: &Registers) -> Self {
        let mut spread = Self { only: Some(0), key: [0; 40], table: [0; 128] };
        // Nothing of it matters while the whole table leads to the first queue.
        if registers.get(MRQC) & 0xf != MRQC_RSS || (0..32).all(|n| registers.get(reta(n)) == 0) {
            return spread;
        }
        spread.only = None;
        for (n, entries) in spread.table.chunks_exact_mut(4).enumerate() {
            entries.copy_from_slice(&registers.get(reta(n as u32)).to_le_bytes());
        }
        for (n, part) in spread.key.chunks_exact_mut(4).enumerate() {
            part.copy_from_slice(&registers.get(rssrk(n as u32)).to_le_bytes());
        }
        spread
    }

    /// The queue, and the hash. What has no hash goes to queue 0.
    #[inline]
    pub fn queue(&self, frame: &[u8]) -> (u32, u32) {
        if let Some(only) = self.only {
            return (only, 0);
        }
        match input(frame) {
            Some((bytes, length)) => {
                let hash = toeplitz(&self.key, &bytes[..length]);
                (u32::from(self.table[hash as usize % 128] & 0xf), hash)
            }
            None => (0, 0),
        }
    }
}

/// What is hashed: addresses, then ports of TCP and UDP.
fn input(frame: &[u8]) -> Option<([u8; 36], usize)> {
    let start = if frame.get(12..14)? == [0x81, 0x00] { 18 } else { 14 };
    let packet = frame.get(start..)?;
    let (addresses, protocol, header, whole) = match frame.get(start - 2..start)? {
        [0x08, 0x00] => {
            let header = usize::from(packet.first()? & 0xf) * 4;
            let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff;
            (packet.get(12..20)?, *packet.get(9)?, header, fragment == 0)
        }
        [0x86, 0xdd] => (packet.get(8..40)?, *packet.get(6)?, 40, true),
        _ => return None,
    };
    let mut bytes = [0; 36];
    bytes[..addresses.len()].copy_from_slice(addresses);
    let mut length = addresses.len();
    if let (6 | 17, true, Some(ports)) = (protocol, whole, packet.get(header..header + 4)) {
        bytes[length..length + 4].copy_from_slice(ports);
        length += 4;
    }
    Some((bytes, length))
}

/// The hash of Toeplitz: for each bit that is set, the 32 bits of the key that begin there.
fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
    let mut window =
        u64::from_be_bytes([key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]]);
    let mut hash = 0;
    for (i, byte) in input.iter().enumerate() {
        for bit in (0..8).rev() {
            if byte & 1 << bit != 0 {
                hash ^= (window >> 32) as u32;
            }
            window <<= 1;
        }
        // The low half was used up by eight bits; the next byte of the key takes their place.
        window |= u64::from(key.get(i + 8).copied().unwrap_or(0));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::i82599::RSS_KEY;

    /// Microsoft, "Verifying the RSS Hash Calculation": source and destination, ports, hash without
    /// and with ports.
    #[test]
    fn known_hashes() {
        for (source, from, destination, to, plain, ports) in [
            (
                [66_u8, 9, 149, 187],
                2794_u16,
                [161_u8, 142, 100, 80],
                1766_u16,
                0x323e_8fc2,
                0x51cc_c178,
            ),
            ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xd718_262a, 0xc626_b0ea),
            ([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ] {
            let mut input = [source, destination].concat();
            assert_eq!(toeplitz(&RSS_KEY, &input), plain);
            input.extend([from, to].map(u16::to_be_bytes).concat());
            assert_eq!(toeplitz(&RSS_KEY, &input), ports);
        }
    }
}
