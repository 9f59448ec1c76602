//! Runs every file of the fuzz corpora through the bodies of the fuzz targets.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/bodies/attach.rs"]
mod attach;
#[path = "../../../fuzz/bodies/bar.rs"]
mod bar;
#[path = "../../../fuzz/bodies/clc.rs"]
mod clc;
#[path = "../../../fuzz/bodies/peer.rs"]
#[allow(dead_code)]
mod peer;
#[path = "../../../fuzz/bodies/policy.rs"]
mod policy;

fn run(target: &str, body: fn(&[u8])) {
    // What is counted, such as descriptors, is the process's.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
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

#[test]
fn attach() {
    run("attach", attach::attach);
}

#[test]
fn bar() {
    run("bar", bar::bar);
}

#[test]
fn control_page() {
    run("control_page", peer::control_page);
}

#[test]
fn rendezvous() {
    run("rendezvous", peer::rendezvous);
}

#[test]
fn policy() {
    run("policy", policy::policy);
}
