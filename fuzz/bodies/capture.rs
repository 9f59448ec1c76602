//! What the capture target does with its input.

use engine::pcap::{Damage, PcapError, Reader, Writer};

/// Every file is read to its end or to an error whose offset lies in it, and what was read can be
/// written and read again.
pub fn read(bytes: &[u8]) {
    let mut packets = Vec::new();
    match all(bytes, &mut packets) {
        Ok(()) => {}
        Err(PcapError::Damaged { offset, damage }) => {
            assert!(offset <= bytes.len() as u64, "{damage} beyond the end");
            assert!(
                !matches!(damage, Damage::Cut(_)) || offset == bytes.len() as u64,
                "{damage} before the end"
            );
        }
        Err(other) => panic!("reading memory failed: {other}"),
    }
    assert!(packets.iter().map(|(_, data)| data.len()).sum::<usize>() <= bytes.len());
    write(&packets);
}

fn all(bytes: &[u8], packets: &mut Vec<(u64, Vec<u8>)>) -> Result<(), PcapError> {
    let mut reader = Reader::new(bytes)?;
    while let Some(record) = reader.next()? {
        packets.push((record.time, record.data.to_vec()));
    }
    Ok(())
}

fn write(packets: &[(u64, Vec<u8>)]) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut writer = Writer::create(file.path(), usize::MAX).expect("an empty file");
    for (time, data) in packets {
        writer.write(*time, data).map_err(|(error, _)| error).expect("room");
    }
    drop(writer);
    let mut again = Vec::new();
    all(&std::fs::read(file.path()).expect("the file"), &mut again).expect("a sound file");
    // Seconds have 32 bits there.
    let cut = |time: u64| (time / 1_000_000_000) as u32;
    assert!(packets.iter().map(|(t, d)| (cut(*t), d)).eq(again.iter().map(|(t, d)| (cut(*t), d))));
}
