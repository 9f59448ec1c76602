//! Capture files: what is read, what is written, and what is said about damage.

use std::fmt::Write as _;
use std::fs;
use std::io::Cursor;
use std::path::Path;

use engine::apps::basic::Match;
use engine::apps::pcap::{PcapReaderArgs, PcapWriterArgs};
use engine::pcap::{Damage, PcapError, Reader, Writer};
use engine::{Config, Engine, Options, Until};

const PACKETS: [(u64, &[u8]); 3] = [
    (1_700_000_000_123_456_000, b"the first packet is a little longer than the rest"),
    (1_700_000_001_000_000_000, b""),
    (1_700_000_002_999_999_000, b"last"),
];

/// A number of 16 or 32 bits in either order.
fn put(out: &mut Vec<u8>, big: bool, value: u32, bytes: usize) {
    let all = if big { value.to_be_bytes() } else { value.to_le_bytes() };
    out.extend(if big { &all[4 - bytes..] } else { &all[..bytes] });
}

fn classic(big: bool, nano: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let magic = if nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    for (value, bytes) in [(magic, 4), (2, 2), (4, 2), (0, 4), (0, 4), (65535, 4), (1, 4)] {
        put(&mut out, big, value, bytes);
    }
    for (time, data) in PACKETS {
        let fraction = time % 1_000_000_000 / if nano { 1 } else { 1000 };
        let length = data.len() as u32;
        for value in [(time / 1_000_000_000) as u32, fraction as u32, length, length + 1] {
            put(&mut out, big, value, 4);
        }
        out.extend(data);
    }
    out
}

fn block(out: &mut Vec<u8>, big: bool, kind: u32, body: &[u8]) {
    let length = (12 + body.len().next_multiple_of(4)) as u32;
    put(out, big, kind, 4);
    put(out, big, length, 4);
    out.extend(body);
    out.resize(out.len().next_multiple_of(4), 0);
    put(out, big, length, 4);
}

/// Two sections' worth of variety: an unknown block, an interface with nanoseconds, enhanced and
/// old packet blocks.
fn ng(big: bool) -> Vec<u8> {
    let numbers = |fields: &[(u32, usize)]| {
        let mut body = Vec::new();
        fields.iter().for_each(|(value, bytes)| put(&mut body, big, *value, *bytes));
        body
    };
    let mut out = Vec::new();
    block(
        &mut out,
        big,
        0x0a0d_0d0a,
        &numbers(&[(0x1a2b_3c4d, 4), (1, 2), (0, 2), (u32::MAX, 4), (u32::MAX, 4)]),
    );
    let mut interface = numbers(&[(1, 2), (0, 2), (0, 4), (9, 2), (1, 2)]);
    interface.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    block(&mut out, big, 1, &interface);
    block(&mut out, big, 0x0bad, b"nobody knows this one");
    for (number, (time, data)) in PACKETS.into_iter().enumerate() {
        let old = number == 2;
        let place = if old { [(0, 2), (7, 2)].to_vec() } else { [(0, 4)].to_vec() };
        let length = data.len() as u32;
        let rest = [((time >> 32) as u32, 4), (time as u32, 4), (length, 4), (length + 1, 4)];
        let mut body = numbers(&[place, rest.to_vec()].concat());
        body.extend(data);
        block(&mut out, big, if old { 2 } else { 6 }, &body);
    }
    out
}

type Packets = Vec<(u64, u32, Vec<u8>)>;

fn read(bytes: &[u8]) -> Result<Packets, PcapError> {
    let mut reader = Reader::new(Cursor::new(bytes))?;
    let mut packets = Vec::new();
    while let Some(record) = reader.next()? {
        packets.push((record.time, record.original, record.data.to_vec()));
    }
    Ok(packets)
}

fn expected() -> Packets {
    PACKETS.iter().map(|(time, data)| (*time, data.len() as u32 + 1, data.to_vec())).collect()
}

#[test]
fn all_variants_read_the_same() {
    for big in [false, true] {
        for nano in [false, true] {
            assert_eq!(read(&classic(big, nano)).unwrap(), expected(), "classic {big} {nano}");
        }
        assert_eq!(read(&ng(big)).unwrap(), expected(), "ng {big}");
    }
    let mut two_sections = ng(true);
    two_sections.extend(ng(false));
    assert_eq!(read(&two_sections).unwrap(), [expected(), expected()].concat());
}

fn damage(bytes: &[u8]) -> (u64, Damage) {
    match read(bytes).expect_err("no damage was found") {
        PcapError::Damaged { offset, damage } => (offset, damage),
        other => panic!("{other}"),
    }
}

fn changed(mut bytes: Vec<u8>, at: usize, to: &[u8]) -> Vec<u8> {
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

#[test]
fn damage_is_told_with_its_offset() {
    let (file, blocks) = (classic(false, true), ng(false));
    let second = 24 + 16 + PACKETS[0].1.len();
    assert_eq!(damage(b""), (0, Damage::Magic));
    assert_eq!(damage(b"GIF89a and so on"), (0, Damage::Magic));
    assert_eq!(damage(&file[..10]), (10, Damage::Cut("the file's header")));
    assert_eq!(damage(&file[..30]), (30, Damage::Cut("a packet's header")));
    assert_eq!(damage(&file[..second - 1]), (second as u64 - 1, Damage::Cut("a packet")));
    assert_eq!(damage(&changed(file.clone(), 4, &[9])), (0, Damage::Version(9, 4)));
    let long = changed(file, second + 8, &[0, 0, 0, 0x10]);
    assert_eq!(damage(&long), (second as u64, Damage::TooLong(0x1000_0000)));
    // The section's block has 28 bytes, the interface's 32.
    assert_eq!(damage(&changed(blocks.clone(), 8, &[1])), (0, Damage::ByteOrder));
    assert_eq!(damage(&changed(blocks.clone(), 12, &[2])), (0, Damage::Version(2, 0)));
    assert_eq!(damage(&changed(blocks.clone(), 32, &[7])), (28, Damage::BlockLength(7)));
    assert_eq!(damage(&changed(blocks.clone(), 56, &[36])), (28, Damage::Trailer(32, 36)));
    assert_eq!(damage(&blocks[..50]), (50, Damage::Cut("a block")));
    let packet = 28 + 32 + 36;
    assert_eq!(
        damage(&changed(blocks.clone(), packet + 8, &[5])),
        (packet as u64, Damage::Interface(5))
    );
    assert_eq!(
        damage(&changed(blocks, packet + 20, &[200])),
        (packet as u64, Damage::PacketInBlock(200))
    );
}

#[test]
fn whatever_is_broken_is_an_error_and_no_crash() {
    for file in [classic(true, false), classic(false, true), ng(false), ng(true)] {
        for end in 0..file.len() {
            let _ = read(&file[..end]);
            for bit in 0..8 {
                let mut broken = file.clone();
                broken[end] ^= 1 << bit;
                let _ = read(&broken);
            }
        }
    }
}

/// A capture of frames that differ in length and content.
fn capture(path: &Path, count: usize) {
    let mut writer = Writer::create(path, 65535).unwrap();
    for number in 0..count {
        let frame: Vec<u8> = (0..60 + number % 1400).map(|i| (i * 7 + number) as u8).collect();
        writer.write(number as u64, &frame).map_err(|(error, _)| error).unwrap();
    }
    writer.flush().map_err(|(error, _)| error).unwrap();
}

#[test]
fn a_capture_goes_through_the_engine_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    capture(&input, 5000);
    let mut engine = Engine::new(Options::default());
    let mut config = Config::new();
    config.app("reader", "PcapReader", PcapReaderArgs { file: input.clone() }).unwrap();
    config.app("tee", "Tee", ()).unwrap().app("match", "Match", ()).unwrap();
    config.app("again", "PcapReader", PcapReaderArgs { file: input.clone() }).unwrap();
    config
        .app("writer", "PcapWriter", PcapWriterArgs { file: output.clone(), snaplen: 2000 })
        .unwrap();
    for link in [
        "reader.output -> tee.input",
        "tee.a -> match.rx",
        "tee.b -> writer.input",
        "again.output -> match.expected",
    ] {
        config.link(link).unwrap();
    }
    engine.configure(&config).unwrap();
    engine.run(Until { finished: true, ..Until::default() });
    assert_eq!(engine.app::<Match>("match").unwrap().result(), (5000, 0));
    assert!(
        engine.report_apps().contains("match\n  5000 equal, 0 different, 0 missing, 0 surplus\n")
    );
    engine.stop().unwrap();
    let data = |path: &Path| -> Vec<Vec<u8>> {
        read(&fs::read(path).unwrap()).unwrap().into_iter().map(|(_, _, data)| data).collect()
    };
    assert!(data(&input) == data(&output), "the files differ");
}

#[test]
fn a_damaged_file_is_told_and_what_was_sound_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.pcap");
    fs::write(&path, &classic(false, false)[..100]).unwrap();
    let mut engine = Engine::new(Options::default());
    let mut config = Config::new();
    config
        .app("reader", "PcapReader", PcapReaderArgs { file: path.clone() })
        .unwrap()
        .app("sink", "Sink", ())
        .unwrap();
    config.link("reader.output -> sink.input").unwrap();
    engine.configure(&config).unwrap();
    engine.run(Until { finished: true, ..Until::default() });
    assert_eq!(engine.links().next().unwrap().1.rxpackets, 1);
    let mut expected = String::new();
    write!(
        expected,
        "{}: damaged at byte 100: the file ends in the middle of a packet's header",
        path.display()
    )
    .unwrap();
    assert!(engine.report_apps().contains(&expected), "{}", engine.report_apps());
    let done = |engine: &Engine| engine.breaths() > 0;
    while engine.take_notices() != [format!("app 'reader': {expected}")] {
        engine.run(Until { done: Some(Box::new(done)), ..Until::default() });
    }
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cooked.pcap");
    fs::write(&path, changed(classic(false, false), 20, &[113])).unwrap();
    let start = |kind: &str, file: &Path| {
        let mut config = Config::new();
        config.app("x", kind, PcapReaderArgs { file: file.to_path_buf() }).unwrap();
        Engine::new(Options::default()).configure(&config).unwrap_err().to_string()
    };
    let shown = path.display();
    assert_eq!(
        start("PcapReader", &path),
        format!(
            "app 'x' (PcapReader): {shown}: link type 113 (Linux cooked) is not supported; Ethernet is"
        )
    );
    let missing = folder.path().join("missing");
    let shown = missing.display();
    assert_eq!(
        start("PcapReader", &missing),
        format!(
            "app 'x' (PcapReader): cannot open {shown}: No such file or directory (os error 2)"
        )
    );
    assert!(start("PcapWriter", &missing.join("below")).contains("cannot write"));
}
