//! Counts results while output passes by.

/// Begins the line by which a test that passed for its runner says that it could not run at all.
pub const SKIP_MARK: &str = "skipped: ";

#[derive(Default, Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// What failed or was skipped, and why.
    pub remarks: Vec<String>,
}

impl Tally {
    pub fn one_passed() -> Tally {
        Tally { passed: 1, ..Tally::default() }
    }

    pub fn one_failed(what: &str) -> Tally {
        Tally { failed: 1, remarks: vec![format!("failed: {what}")], ..Tally::default() }
    }

    /// All that a test runner printed, on standard output and error.
    pub fn of<'a>(lines: impl Iterator<Item = &'a str>) -> Tally {
        let mut tally = Tally::default();
        let mut skipped_within = 0;
        for line in lines.map(without_its_test) {
            if let Some(counts) = line.strip_prefix("test result: ") {
                let count = |what: &str| {
                    counts.split([';', '.']).find_map(|part| {
                        part.trim().strip_suffix(what)?.trim().parse::<usize>().ok()
                    })
                };
                tally.passed += count("passed").unwrap_or(0);
                tally.failed += count("failed").unwrap_or(0);
                tally.skipped += count("ignored").unwrap_or(0);
            } else if line.starts_with(SKIP_MARK) {
                skipped_within += 1;
                tally.remarks.push(line.to_string());
            } else if let Some((name, end)) =
                line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
            {
                if end == "FAILED" {
                    tally.remarks.push(format!("failed: {name}"));
                } else if let Some(reason) = end.strip_prefix("ignored") {
                    tally
                        .remarks
                        .push(format!("{SKIP_MARK}{name}{}", reason.replacen(',', ":", 1)));
                }
            }
        }
        tally.passed = tally.passed.saturating_sub(skipped_within);
        tally.skipped += skipped_within;
        tally
    }

    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.remarks.extend(other.remarks);
    }

    pub fn is_empty(&self) -> bool {
        self.passed + self.failed + self.skipped == 0
    }

    pub fn closing_line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Alone, the runner of tests has begun the line of a test before the test says that it is skipped.
fn without_its_test(line: &str) -> &str {
    let behind = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "));
    behind.map(|(_, said)| said).filter(|said| said.starts_with(SKIP_MARK)).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runners_are_summed() {
        let output = "running 3 tests
test a ... ok
test b ... FAILED
test c ... ignored, needs a guest
test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.25s";
        let tally = Tally::of(output.lines());
        assert_eq!(tally.closing_line(), "41 passed, 1 failed, 1 skipped");
        assert_eq!(tally.remarks, ["failed: b", "skipped: c: needs a guest"]);
    }

    #[test]
    fn tests_that_skip_themselves_have_not_passed() {
        let output = "skipped: redis: redis-server is not installed
1 skipped: redis
test redis ... ok
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let tally = Tally::of(output.lines());
        assert_eq!(tally.closing_line(), "1 passed, 0 failed, 1 skipped");
        assert_eq!(tally.remarks, ["skipped: redis: redis-server is not installed"]);
    }

    #[test]
    fn a_skip_may_stand_behind_the_name_of_its_test() {
        let output = "
running 1 test
test redis ... skipped: redis: redis-server is not installed
ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out
1 skipped: redis";
        let tally = Tally::of(output.lines());
        assert_eq!(tally.closing_line(), "0 passed, 0 failed, 1 skipped");
        assert_eq!(tally.remarks, ["skipped: redis: redis-server is not installed"]);
    }

    #[test]
    fn tallies_add_up() {
        let mut sum = Tally::one_passed();
        sum.add(Tally::one_failed("clippy"));
        assert_eq!(
            (sum.closing_line().as_str(), sum.remarks.len()),
            ("1 passed, 1 failed, 0 skipped", 1)
        );
    }
}
