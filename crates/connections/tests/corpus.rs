//! Runs every file of the fuzz corpus through the body of the fuzz target.

#[path = "../../../fuzz/bodies/smc_diag.rs"]
mod bodies;

#[test]
fn smc_diag() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/smc_diag");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus") {
        bodies::smc_diag(&std::fs::read(entry.expect("a file").path()).expect("a readable file"));
        files += 1;
    }
    assert!(files > 0, "the corpus is empty");
}
