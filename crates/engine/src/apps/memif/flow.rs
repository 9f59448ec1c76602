//! Which packets must stay in order among each other: those of a flow, which is told by the IP
//! addresses and ports, and by the Ethernet addresses of what is not IP.

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERNET: usize = 14;

/// The same for all packets of a flow. Not kept secret: a sender can choose its ring, and gains
/// nothing by it.
pub fn hash(packet: &[u8]) -> u32 {
    let at = |from: usize, count: usize| packet.get(ETHERNET + from..ETHERNET + from + count);
    let mut sum = 0;
    let mut mix = |bytes: &[u8]| {
        for byte in bytes {
            sum = (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    };
    let (addresses, protocol, ports) = match packet.get(12..ETHERNET) {
        Some(kind) if kind == IPV4 => {
            let words = packet.get(ETHERNET).map_or(0, |first| usize::from(first & 15));
            // Of a datagram in fragments only the first has ports.
            let whole = at(6, 2).is_some_and(|field| field[0] & 0x3f == 0 && field[1] == 0);
            (at(12, 8), at(9, 1), at(words * 4, 4).filter(|_| whole))
        }
        Some(kind) if kind == IPV6 => (at(8, 32), at(6, 1), at(40, 4)),
        _ => (None, None, None),
    };
    match (addresses, protocol) {
        (Some(addresses), Some(protocol)) => {
            mix(addresses);
            // TCP, UDP.
            if let (true, Some(ports)) = (matches!(protocol, [6 | 17]), ports) {
                mix(ports);
            }
        }
        _ => mix(packet.get(..12).unwrap_or(packet)),
    }
    // The low bits of the sum alone know little of the high bits of what went in.
    sum ^ sum >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(source: u8, port: u8, fragment: [u8; 2]) -> Vec<u8> {
        let mut frame = vec![2; 60];
        frame[12..14].copy_from_slice(&IPV4);
        frame[14] = 0x45;
        frame[20..22].copy_from_slice(&fragment);
        frame[23] = 17;
        frame[29] = source;
        frame[35] = port;
        frame
    }

    #[test]
    fn a_flow_has_one_hash_and_flows_spread() {
        let mut other = frame(1, 1, [0, 0]);
        other[44..].fill(9);
        other[18..20].fill(7);
        assert_eq!(hash(&frame(1, 1, [0x40, 0])), hash(&other));
        // First fragments and later ones are of one flow.
        assert_eq!(hash(&frame(1, 1, [0x20, 0])), hash(&frame(1, 5, [0, 3])));
        let mut rings = [0; 4];
        for source in 0..64 {
            for port in 0..16 {
                rings[hash(&frame(source, port, [0, 0])) as usize % 4] += 1;
            }
        }
        assert!(rings.iter().all(|ring| (150..400).contains(ring)), "{rings:?}");
        for length in 0..60 {
            hash(&frame(1, 1, [0, 0])[..length]);
        }
    }
}
