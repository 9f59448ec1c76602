//! `make torture TEST=name N=100 LOAD=8`: one system test, many times, beside processes that do
//! nothing but compute. Without a name: each of them, and a table of those that fail now and then.

use std::process::{Child, Command};
use std::time::Duration;

use crate::cargo::{self, Binary};
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

/// What has come of one test.
struct Row {
    binary: Binary,
    test: String,
    failed: usize,
    skipped: usize,
    longest: Duration,
}

impl Row {
    fn line(&self, times: usize) -> String {
        let (title, seconds) =
            (format!("{} {}", self.binary.name, self.test), self.longest.as_secs_f64());
        format!(
            "{:>6} of {times} failed, {} skipped, at most {seconds:.1} s: {title}",
            self.failed, self.skipped
        )
    }
}

/// `name`: a part of "BINARY TEST", as the check prints it; an empty one is a part of all.
pub fn run(name: &str, times: usize, load: usize) -> Result<bool, String> {
    let screen = Screen::new();
    pool::sweep();
    let (built, binaries) = cargo::build_tests(&["-p", "system-tests"], &[]);
    if !built.success {
        return Err(built.lines.join("\n"));
    }
    let mut rows = Vec::new();
    for binary in binaries.into_iter().filter(Binary::is_system_test) {
        let names = binary.tests();
        let wanted =
            names.into_iter().filter(|test| format!("{} {test}", binary.name).contains(name));
        let row = |test| Row {
            binary: binary.clone(),
            test,
            failed: 0,
            skipped: 0,
            longest: Duration::ZERO,
        };
        rows.extend(wanted.map(row));
    }
    if rows.is_empty() {
        return Err(format!("no system test is called {name}"));
    }
    let isolation = Isolation::probe();
    let _load = Load::new(load);
    let (count, mut all_failed) = (rows.len(), 0);
    for time in 1..=times {
        for (number, row) in rows.iter_mut().enumerate() {
            let title = format!("{} {}", row.binary.name, row.test);
            let failed =
                if all_failed > 0 { format!(", {all_failed} failed") } else { String::new() };
            screen.progress(&format!(
                "{time} of {times}, test {} of {count}{failed}: {title}",
                number + 1
            ));
            let ended = pool::perform(isolation, &row.binary, Some(&row.test), None);
            let tally = Tally::of(ended.lines.iter().map(String::as_str));
            row.skipped += usize::from(tally.skipped > 0);
            row.longest = row.longest.max(ended.took);
            if ended.success && tally.failed == 0 {
                continue;
            }
            row.failed += 1;
            all_failed += 1;
            let seconds = ended.took.as_secs_f64();
            // The first failure whole: the others are mostly the same.
            let output = if row.failed == 1 {
                format!("\n{}", ended.lines.join("\n"))
            } else {
                String::new()
            };
            screen.block(&format!("failed at {time}, {seconds:.1} s: {title}{output}"));
        }
    }
    screen.clear();
    rows.sort_by_key(|row| std::cmp::Reverse((row.failed, row.longest)));
    for row in &rows {
        println!("{}", row.line(times));
    }
    let skipped: usize = rows.iter().map(|row| row.skipped).sum();
    let unsteady = rows.iter().filter(|row| row.failed > 0).count();
    println!("{unsteady} of {count} tests have failed beside {load} busy processes");
    println!(
        "{} passed, {all_failed} failed, {skipped} skipped",
        (count * times - all_failed).saturating_sub(skipped)
    );
    Ok(all_failed == 0)
}
