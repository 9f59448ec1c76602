//! Runs every file of the fuzz corpora through the bodies of the fuzz targets.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/bodies/clc.rs"]
mod clc;

fn run(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry of the folder").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        let bytes = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        println!("{}", file.display());
        body(&bytes);
    }
}

#[test]
fn clc_decode() {
    run("clc_decode", clc::decode);
}

#[test]
fn clc_negotiate() {
    run("clc_negotiate", clc::negotiate);
}
