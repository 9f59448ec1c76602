//! Runs every file of the fuzz corpora through the bodies of the fuzz targets.
#![cfg(not(loom))]

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/bodies/rsocket.rs"]
mod bodies;

fn run(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty(), "the corpus is missing");
    for file in files {
        println!("{}", file.display());
        body(&fs::read(&file).unwrap());
    }
}

#[test]
fn wire() {
    run("rsocket_wire", bodies::wire);
}

#[test]
fn stream() {
    run("rsocket_stream", bodies::stream);
}
