//! A recording: frames in a classic pcap file, as any capture tool writes it.

use std::fs;
use std::path::Path;

use crate::stream::mix;

const MAGIC: u32 = 0xa1b2_c3d4;
/// The same, with nanoseconds.
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;

/// Frames of all lengths, tagged and not, told apart by their content.
pub fn frames(count: usize) -> Vec<Vec<u8>> {
    (0..count as u64).map(frame).collect()
}

fn frame(number: u64) -> Vec<u8> {
    let tagged = number % 7 == 3;
    let payload = match number % 5 {
        0 => 18,
        1 => 1472,
        _ => mix(number) as usize % 1455 + 18,
    };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if tagged {
        frame.extend([0x81, 0x00, 0x60 | (number % 16) as u8, number as u8]);
    }
    frame.extend([0x08, 0x00]);
    let ip = frame.len();
    let length = (20 + 8 + payload) as u16;
    frame.extend([
        0x45,
        0,
        (length >> 8) as u8,
        length as u8,
        0,
        number as u8,
        0x40,
        0,
        64,
        17,
        0,
        0,
    ]);
    frame.extend([10, 1, 0, 1, 10, 1, 0, 2]);
    let sum = checksum(&frame[ip..]);
    frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    let udp = length - 20;
    frame.extend([0x30, 0x39, 0, 9, (udp >> 8) as u8, udp as u8, 0, 0]);
    let content = (0..).flat_map(|word| mix(number << 16 | word).to_ne_bytes());
    frame.extend(number.to_be_bytes().into_iter().chain(content).take(payload));
    frame
}

/// RFC 1071.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 =
        header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

pub fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    for word in [MAGIC, 2 | 4 << 16, 0, 0, 65535, ETHERNET] {
        bytes.extend(word.to_ne_bytes());
    }
    for (number, frame) in frames.iter().enumerate() {
        for word in [0, number as u32, frame.len() as u32, frame.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(frame);
    }
    fs::write(path, bytes).expect("a pcap file");
}

pub fn read(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).expect("a pcap file");
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert!(matches!((word(0), word(20)), (MAGIC | NANOSECONDS, ETHERNET)));
    let (mut at, mut frames) = (24, Vec::new());
    while at < bytes.len() {
        let length = word(at + 8) as usize;
        frames.push(bytes[at + 16..at + 16 + length].to_vec());
        at += 16 + length;
    }
    frames
}
