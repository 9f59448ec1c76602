//! What an app did to a packet, from the bytes before and after.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// How a field is written.
#[derive(Clone, Copy)]
enum Form {
    Number,
    Hex,
    Mac,
    Ip,
}

type Field = (&'static str, Range<usize>, Form);

/// One phrase for each change; none if there is no change.
pub fn changes(before: &[u8], after: &[u8]) -> Vec<String> {
    if before.len() != after.len() {
        return vec![resized(before, after)];
    }
    let differs = |range: Range<usize>| {
        before.get(range.clone()) != after.get(range.clone()) && after.get(range).is_some()
    };
    let mut left: Vec<bool> = before.iter().zip(after).map(|(a, b)| a != b).collect();
    let mut found = Vec::new();
    for (name, range, form) in fields(after) {
        if differs(range.clone()) {
            left[range.clone()].fill(false);
            let text = |bytes: &[u8]| written(&bytes[range.clone()], form);
            found.push(format!("{name} {} -> {}", text(before), text(after)));
        }
    }
    let mut place = 0;
    while let Some(start) = left[place..].iter().position(|&differs| differs).map(|at| at + place) {
        place =
            left[start..].iter().position(|&differs| !differs).map_or(left.len(), |at| at + start);
        let bytes = |bytes: &[u8]| hex(&bytes[start..place]);
        found.push(format!("bytes {start}..{place} {} -> {}", bytes(before), bytes(after)));
    }
    found
}

/// Bytes that were put in or taken out in one piece, as a tag or a tunnel's header is.
fn resized(before: &[u8], after: &[u8]) -> String {
    let front = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let back = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| a == b).count();
    let (short, long) = (before.len().min(after.len()), before.len().max(after.len()));
    let lengths = format!("{} -> {} bytes", before.len(), after.len());
    if front + back < short {
        return format!("{lengths}, changed from byte {front} on");
    }
    let at = front.min(short);
    let piece = at..at + (long - short);
    if after.len() > before.len() {
        format!("{lengths}: {} put in at {at}", hex(&after[piece]))
    } else {
        format!("{lengths}: {} taken out at {at}", hex(&before[piece]))
    }
}

/// The fields that apps change, as far as the frame has them.
fn fields(frame: &[u8]) -> Vec<Field> {
    let mut all: Vec<Field> = vec![("destination", 0..6, Form::Mac), ("source", 6..12, Form::Mac)];
    let kind = |at: usize| frame.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let mut at = 12;
    while kind(at).is_some_and(|kind| matches!(kind, 0x8100 | 0x88a8)) {
        all.push(("tag", at + 2..at + 4, Form::Hex));
        at += 4;
    }
    all.push(("type", at..at + 2, Form::Hex));
    let ip = at + 2;
    let (next, protocol) = match kind(at) {
        Some(0x0800) => {
            all.extend([
                ("DSCP", ip + 1..ip + 2, Form::Hex),
                ("IP length", ip + 2..ip + 4, Form::Number),
                ("IP id", ip + 4..ip + 6, Form::Number),
                ("TTL", ip + 8..ip + 9, Form::Number),
                ("protocol", ip + 9..ip + 10, Form::Number),
                ("IP checksum", ip + 10..ip + 12, Form::Hex),
                ("IP source", ip + 12..ip + 16, Form::Ip),
                ("IP destination", ip + 16..ip + 20, Form::Ip),
            ]);
            let header = frame.get(ip).map_or(20, |first| usize::from(first & 15) * 4);
            (ip + header, frame.get(ip + 9).copied())
        }
        Some(0x86dd) => {
            all.extend([
                ("IP length", ip + 4..ip + 6, Form::Number),
                ("next header", ip + 6..ip + 7, Form::Number),
                ("hop limit", ip + 7..ip + 8, Form::Number),
                ("IP source", ip + 8..ip + 24, Form::Ip),
                ("IP destination", ip + 24..ip + 40, Form::Ip),
            ]);
            (ip + 40, frame.get(ip + 6).copied())
        }
        _ => return all,
    };
    if let Some(protocol @ (6 | 17)) = protocol {
        let checksum = if protocol == 6 { next + 16 } else { next + 6 };
        all.extend([
            ("source port", next..next + 2, Form::Number),
            ("destination port", next + 2..next + 4, Form::Number),
            ("checksum", checksum..checksum + 2, Form::Hex),
        ]);
    }
    all
}

fn written(bytes: &[u8], form: Form) -> String {
    match (form, bytes) {
        (Form::Number, _) => {
            bytes.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)).to_string()
        }
        (Form::Ip, &[a, b, c, d]) => Ipv4Addr::new(a, b, c, d).to_string(),
        (Form::Ip, _) => <[u8; 16]>::try_from(bytes)
            .map_or_else(|_| hex(bytes), |bytes| Ipv6Addr::from(bytes).to_string()),
        (Form::Mac, _) => {
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
        }
        (Form::Hex, _) => format!("0x{}", hex(bytes)),
    }
}

/// Up to 16 bytes.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(16) {
        let _ = write!(text, "{byte:02x}");
    }
    if bytes.len() > 16 {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, IPv4 and UDP.
    fn frame() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([0x45, 0, 0, 40, 0, 1, 0, 0, 64, 17, 0xaa, 0xbb, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 53, 4, 0, 0, 20, 0, 0]);
        frame.extend([7; 12]);
        frame
    }

    #[test]
    fn fields_have_names() {
        let (before, mut after) = (frame(), frame());
        assert!(changes(&before, &after).is_empty());
        after[5] = 9;
        after[22] = 63;
        after[33] = 77;
        after[44] = 8;
        after[45] = 8;
        assert_eq!(
            changes(&before, &after),
            [
                "destination 02:00:00:00:00:01 -> 02:00:00:00:00:09",
                "TTL 64 -> 63",
                "IP destination 10.0.0.2 -> 10.0.0.77",
                "bytes 44..46 0707 -> 0808"
            ]
        );
    }

    #[test]
    fn what_is_put_in_and_taken_out_is_told() {
        let before = frame();
        let mut tagged = before.clone();
        tagged.splice(12..12, [0x81, 0, 0, 100]);
        assert_eq!(changes(&before, &tagged), ["54 -> 58 bytes: 81000064 put in at 12"]);
        assert_eq!(changes(&tagged, &before), ["58 -> 54 bytes: 81000064 taken out at 12"]);
        let other = vec![1; 20];
        assert_eq!(changes(&before, &other), ["54 -> 20 bytes, changed from byte 0 on"]);
    }

    #[test]
    fn short_and_odd_frames_have_changes_too() {
        for length in 0..60 {
            let before = frame()[..length.min(54)].to_vec();
            let after: Vec<u8> = before.iter().map(|byte| !byte).collect();
            assert_eq!(changes(&before, &after).is_empty(), length == 0, "{length}");
        }
    }
}
