//! A disk without room under a capture file. A process of its own, since it limits the size of all
//! files.
#![allow(unsafe_code)]

use std::fs;

use engine::apps::pcap::PcapWriterArgs;
use engine::pcap::{Reader, Writer};
use engine::{Config, Engine, Options};

/// `/dev/full` fails every write as a full disk does.
#[test]
fn a_full_disk_loses_packets_and_nothing_else() {
    let mut engine = Engine::new(Options::default());
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("disk");
    std::os::unix::fs::symlink("/dev/full", &link).unwrap();
    let mut config = Config::new();
    config
        .app("writer", "PcapWriter", PcapWriterArgs { file: link.clone(), snaplen: 100 })
        .unwrap();
    let error = engine.configure(&config).unwrap_err().to_string();
    assert!(error.contains("No space left on device"), "{error}");

    // It fills up later: a writer that runs loses packets, says so once, and writes on when there
    // is room again.
    let path = folder.path().join("out.pcap");
    let mut writer = Writer::create(&path, 100).unwrap();
    writer.write(1, b"before").unwrap();
    writer.flush().unwrap();
    let limit = |bytes| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: sets limits of this process; SIGXFSZ is ignored so that writes fail with an error
        // instead.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        }
    };
    let whole = fs::metadata(&path).unwrap().len();
    limit(whole + 50);
    writer.write(2, &[7; 40]).unwrap();
    writer.write(3, &[8; 40]).unwrap();
    let (_, lost) = writer.flush().unwrap_err();
    assert_eq!(lost, 2);
    assert_eq!(fs::metadata(&path).unwrap().len(), whole, "it ends behind a whole packet");
    limit(libc::RLIM_INFINITY);
    writer.write(4, b"after").unwrap();
    drop(writer);
    let mut reader = Reader::new(fs::File::open(&path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        packets.push(record.data.to_vec());
    }
    assert_eq!(packets, [&b"before"[..], b"after"]);
}
