//! What is found in scripts, every time.

use std::path::Path;

use super::*;

const RUNS: usize = 20;

/// Runs the example of the mistake; gives what was said about its traces.
fn traced(case: &Case, words: &[&str]) -> String {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/mistake.lua");
    let mut command = command(&["snsh", "--shared", "--traces", "-"]);
    let mut script = case.start("snsh", command.arg(example).arg("0.1").args(words));
    script.success(secs(30));
    script.stderr()
}

#[test]
fn the_mistake_is_named_in_every_run_and_nothing_in_clean_ones() {
    case("mistake", |case| {
        for run in 1..=RUNS {
            let said = traced(case, &[]);
            let what =
                "instances if1 and if2 of Driver run different traces since `ring` has 2 ctypes";
            assert!(
                said.contains(what) && said.contains("mistake.lua:17 creates a new ctype"),
                "run {run}: {said}"
            );
            let said = traced(case, &["clean"]);
            assert!(said.contains("findings: none"), "clean run {run}: {said}");
        }
        Ok(())
    });
}
