//! `make torture TEST=name N=100 LOAD=8`: one system test, many times, beside processes that do nothing but compute.

use std::process::{Child, Command};

use crate::cargo;
use crate::children;
use crate::isolate::Isolation;
use crate::pool;
use crate::screen::Screen;
use crate::tally::Tally;

/// Processes that keep processors busy for as long as this lives.
struct Load(Vec<Child>);

impl Load {
    fn new(count: usize) -> Load {
        let busy = |_| children::start(Command::new("sh").args(["-c", "while :; do :; done"]));
        Load((0..count).filter_map(|number| busy(number).ok()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.drain(..).for_each(children::end);
    }
}

/// `name`: a part of "BINARY TEST", as the check prints it.
pub fn run(name: &str, times: usize, load: usize) -> Result<bool, String> {
    let screen = Screen::new();
    pool::sweep();
    let (built, binaries) = cargo::build_tests(&["-p", "system-tests"], &[]);
    if !built.success {
        return Err(built.lines.join("\n"));
    }
    let mut tests = Vec::new();
    for binary in binaries.into_iter().filter(|binary| binary.is_system_test()) {
        let names = binary.tests();
        let wanted = names.into_iter().filter(|test| format!("{} {test}", binary.name).contains(name));
        tests.extend(wanted.map(|test| (binary.clone(), test)));
    }
    if tests.is_empty() {
        return Err(format!("no system test is called {name}"));
    }
    let isolation = Isolation::probe();
    let _load = Load::new(load);
    let mut failed = vec![0; tests.len()];
    let mut skipped = 0;
    for time in 1..=times {
        for ((binary, test), failed) in tests.iter().zip(&mut failed) {
            screen.progress(&format!("{time} of {times}: {} {test}", binary.name));
            let ended = pool::perform(isolation, binary, Some(test), None);
            let tally = Tally::of(ended.lines.iter().map(String::as_str));
            skipped += tally.skipped;
            if ended.success && tally.failed == 0 {
                continue;
            }
            *failed += 1;
            let seconds = ended.took.as_secs_f64();
            // The first failure whole: the others are mostly the same.
            let output = if *failed == 1 { format!("\n{}", ended.lines.join("\n")) } else { String::new() };
            screen.block(&format!("failed at {time}, {seconds:.1} s: {} {test}{output}", binary.name));
        }
    }
    screen.clear();
    for ((binary, test), failed) in tests.iter().zip(&failed) {
        println!("{} {test}: {failed} of {times} failed beside {load} busy processes", binary.name);
    }
    let sum: usize = failed.iter().sum();
    println!("{} passed, {sum} failed, {skipped} skipped", (tests.len() * times - sum).saturating_sub(skipped));
    Ok(sum == 0)
}
