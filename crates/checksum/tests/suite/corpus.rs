//! Runs every file of the fuzz corpus through the bodies of the fuzz target.

#[path = "../../../../fuzz/bodies/checksum.rs"]
mod bodies;

#[test]
fn corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/checksum");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus") {
        let bytes = std::fs::read(entry.expect("a file").path()).expect("a readable file");
        bodies::kernels(&bytes);
        bodies::packet(&bytes);
        files += 1;
    }
    assert!(files > 0, "the corpus is empty");
}
