//! Runs every file of the fuzz corpora through the bodies of the fuzz targets.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../../fuzz/bodies/capture.rs"]
mod capture;
#[path = "../../../fuzz/bodies/memif.rs"]
mod memif;
#[path = "../../../fuzz/bodies/network_apps.rs"]
mod network_apps;
#[path = "../../../fuzz/bodies/table.rs"]
mod table;
#[cfg(feature = "vhost-user")]
#[path = "../../../fuzz/bodies/vhost_user.rs"]
mod vhost_user;

fn corpus(name: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn captures() {
    let files = corpus("pcap_read");
    assert!(files.len() > 20, "the corpus is missing");
    for file in files {
        println!("{}", file.display());
        capture::read(&fs::read(file).unwrap());
    }
}

/// Files whose guest is sound say so in their name: packets must come out of them.
#[cfg(feature = "vhost-user")]
#[test]
fn front_ends() {
    let files = corpus("vhost_user");
    assert!(files.len() > 10, "the corpus is missing");
    for file in files {
        println!("{}", file.display());
        let packets = vhost_user::front_end(&fs::read(&file).unwrap());
        let sound = file.file_name().unwrap().to_string_lossy().starts_with("sound");
        assert_eq!(packets > 0, sound, "{packets} packets");
    }
}

/// As for front ends: peers of both roles.
#[test]
fn peers_of_memif() {
    let files = corpus("memif");
    assert!(files.len() > 10, "the corpus is missing");
    for file in files {
        println!("{}", file.display());
        let packets = memif::peer(&fs::read(&file).unwrap());
        let sound = file.file_name().unwrap().to_string_lossy().starts_with("sound");
        assert_eq!(packets > 0, sound, "{packets} packets");
    }
}

/// Files of frames that an app must let through say so in their name.
#[test]
fn apps_that_look_into_packets() {
    let files = corpus("network_apps");
    assert!(files.len() > 12, "the corpus is missing");
    for file in files {
        println!("{}", file.display());
        let packets = network_apps::frames(&fs::read(&file).unwrap());
        let sound = file.file_name().unwrap().to_string_lossy().starts_with("sound");
        assert_eq!(packets > 0, sound, "{packets} packets");
    }
}
