//! Runs every file of the fuzz corpus through the body of the fuzz target.
#![cfg(target_arch = "x86_64")]

#[path = "../../../fuzz/bodies/sites.rs"]
mod bodies;

#[test]
fn corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/sites");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus") {
        bodies::sites(&std::fs::read(entry.expect("a file").path()).expect("a readable file"));
        files += 1;
    }
    assert!(files > 0, "the corpus is empty");
}
