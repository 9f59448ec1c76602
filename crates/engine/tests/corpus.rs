//! Runs every file of the fuzz corpora through the bodies of the fuzz targets.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/bodies/capture.rs"]
mod capture;

#[test]
fn captures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/pcap_read");
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() > 20, "the corpus is missing");
    for file in files {
        println!("{}", file.display());
        capture::read(&fs::read(file).unwrap());
    }
}
