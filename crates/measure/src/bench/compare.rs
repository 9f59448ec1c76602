//! Two records beside each other: how far Shortwire's ratio to TCP has moved, and whether that is
//! more than it moves from round to round.

use std::fmt::Write as _;

use anyhow::{Result, bail, ensure};
use terminal::units::engineering;

use super::case::{Better, Path};
use super::samples::{Kind, Row, Samples, Summary};

/// A row that both records have.
struct Change<'a> {
    name: &'a str,
    /// Ratios to TCP where there is one to compare with; values turned so that more is better
    /// otherwise.
    old: Summary,
    new: Summary,
    is_ratio: bool,
    kind: Kind,
}

impl Change<'_> {
    /// Above 1 it became better.
    fn factor(&self) -> f64 {
        self.new.median / self.old.median
    }

    /// Latencies and costs are many; they are told where they moved.
    fn is_told(&self) -> bool {
        self.kind == Kind::Figure || self.verdict().ends_with("beyond the spread")
    }

    /// Whether no round of the one lies among the rounds of the other. Of single rounds nothing is
    /// known.
    fn verdict(&self) -> &'static str {
        if self.old.n < 2 || self.new.n < 2 {
            "one round: no spread known"
        } else if self.new.min > self.old.max {
            "better, beyond the spread"
        } else if self.new.max < self.old.min {
            "WORSE, beyond the spread"
        } else {
            "within the spread"
        }
    }
}

fn changes<'a>(old: &Samples, new: &'a Samples) -> Vec<Change<'a>> {
    let same = |row: &Row| old.rows.iter().find(|old| old.measure.name == row.measure.name);
    let both = new.rows.iter().filter_map(|row| Some((same(row)?, row)));
    both.filter_map(|(old, new)| {
        let (name, kind) = (new.measure.name.as_ref(), new.kind);
        let ratio = |row: &Row| row.ratio(Path::Shortwire, Path::Tcp);
        if let (Some(old), Some(new)) = (ratio(old), ratio(new)) {
            return Some(Change { name, old, new, is_ratio: true, kind });
        }
        Some(Change { name, old: benefit(old)?, new: benefit(new)?, is_ratio: false, kind })
    })
    .collect()
}

fn benefit(row: &Row) -> Option<Summary> {
    let turned =
        |value: f64| if row.measure.better == Better::Higher { value } else { value.recip() };
    let values: Vec<f64> = row
        .values(Path::Shortwire)
        .into_iter()
        .map(turned)
        .filter(|value| value.is_finite())
        .collect();
    Summary::of(&values)
}

pub fn text(old: &Samples, new: &Samples) -> String {
    let changes = changes(old, new);
    let mut text = String::from("\nAgainst the older record:\n");
    if changes.is_empty() {
        text.push_str("the two records have no row in common\n");
        return text;
    }
    let mut table = terminal::table::new(["measure", "old ratio", "new ratio", "change", ""]);
    for change in changes.iter().filter(|change| change.is_told()) {
        let show = |summary: &Summary| match (change.is_ratio, summary.n) {
            (false, _) => "no TCP".to_string(),
            (true, 1) => format!("{} x", engineering(summary.median)),
            _ => format!(
                "{} x [{}..{}]",
                engineering(summary.median),
                engineering(summary.min),
                engineering(summary.max)
            ),
        };
        let percent = (change.factor() - 1.0) * 100.0;
        table.add_row([
            change.name.to_string(),
            show(&change.old),
            show(&change.new),
            format!("{percent:+.1} %"),
            change.verdict().to_string(),
        ]);
    }
    let _ = writeln!(text, "{table}");
    let count = |verdict: &str| {
        changes.iter().filter(|change| change.verdict().starts_with(verdict)).count()
    };
    let _ = writeln!(
        text,
        "Ratio: Shortwire to TCP in the same round, above 1 is better, [least..greatest]; change: above 0 is better. Beyond the\n\
         spread: no round of the one record lies among those of the other. {} better, {} worse, of {}; latencies\n\
         and costs are listed where they are beyond it.",
        count("better"),
        count("WORSE"),
        changes.len()
    );
    if place(old) != place(new) {
        let _ = writeln!(
            text,
            "The records are of different machines, so only ratios may be compared, with care:\n  {}\n  {}",
            old.machine.sentence(),
            new.machine.sentence()
        );
    }
    let missing = missing(old, new);
    if !missing.is_empty() {
        let _ = writeln!(text, "Not in the new record: {}.", missing.join("; "));
    }
    text
}

/// What a main row may lose beyond what it moves from round to round before `--gate` fails.
const ALLOWED: f64 = 0.05;

/// Main rows that lost more than that against a record of the same machine, each in words; also
/// those that the record has and that were not measured.
pub fn lost(old: &Samples, new: &Samples) -> Result<Vec<String>> {
    if place(old) != place(new) {
        bail!(
            "the record is of another machine, and a loss cannot be told from that; measure one here first:\n  {}\n  {}",
            old.machine.sentence(),
            new.machine.sentence()
        );
    }
    let changes = changes(old, new);
    let main = || changes.iter().filter(|change| change.kind == Kind::Figure);
    ensure!(main().count() > 0, "the record has no row that was measured");
    let single = main().find(|change| change.old.n < 2 || change.new.n < 2);
    if let Some(single) = single {
        bail!("{}: one round has no spread; measure at least two (--repeat)", single.name);
    }
    let lost = main().filter(|change| change.new.max < change.old.min * (1.0 - ALLOWED));
    let lost = lost.map(|change| {
        let percent = (change.factor() - 1.0) * 100.0;
        format!(
            "{}: {percent:+.1} %, at best {:.3} and at worst {:.3} before",
            change.name, change.new.max, change.old.min
        )
    });
    let missing = missing(old, new).into_iter().map(|name| format!("{name}: not measured"));
    Ok(lost.chain(missing).collect())
}

fn place(samples: &Samples) -> (&str, usize, &str) {
    (&samples.machine.cpu, samples.machine.cpus, &samples.machine.kernel)
}

/// Main rows that only the old record has.
fn missing<'a>(old: &'a Samples, new: &Samples) -> Vec<&'a str> {
    let is_gone = |row: &&Row| !new.rows.iter().any(|new| new.measure.name == row.measure.name);
    let rows = old.rows.iter().filter(|row| row.kind == Kind::Figure);
    rows.filter(is_gone).map(|row| row.measure.name.as_ref()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Machine;
    use crate::bench::samples::Settings;
    use crate::bench::samples::tests::row;

    fn record(better: Better, tcp: &[f64], ours: &[f64]) -> Samples {
        let some = |values: &[f64]| values.iter().copied().map(Some).collect::<Vec<_>>();
        let (tcp, ours) = (some(tcp), some(ours));
        let mut samples = Samples::new(Machine::describe(None), Settings::default());
        samples.rows.push(row(
            "the row",
            better,
            None,
            &[(Path::Tcp, &tcp), (Path::Shortwire, &ours)],
        ));
        samples
    }

    fn verdict(old: &Samples, new: &Samples) -> (&'static str, f64) {
        let change = &changes(old, new)[0];
        (change.verdict(), change.factor())
    }

    #[test]
    fn a_change_counts_if_the_rounds_lie_apart() {
        let old = record(Better::Higher, &[100.0, 100.0, 100.0], &[200.0, 210.0, 190.0]);
        let faster = record(Better::Higher, &[50.0, 50.0, 50.0], &[150.0, 160.0, 140.0]);
        assert_eq!(verdict(&old, &faster), ("better, beyond the spread", 1.5));
        assert_eq!(verdict(&faster, &old).0, "WORSE, beyond the spread");
        let wide = record(Better::Higher, &[100.0, 100.0, 100.0], &[150.0, 300.0, 205.0]);
        assert_eq!(verdict(&old, &wide).0, "within the spread");
        let once = record(Better::Higher, &[100.0], &[900.0]);
        assert_eq!(verdict(&old, &once).0, "one round: no spread known");
    }

    #[test]
    fn less_is_better_for_latencies_also_where_there_is_no_tcp() {
        let slow = record(Better::Lower, &[10.0, 10.0], &[5.0, 5.0]);
        let fast = record(Better::Lower, &[10.0, 10.0], &[2.5, 2.5]);
        assert_eq!(verdict(&slow, &fast), ("better, beyond the spread", 2.0));
        let alone = |samples: Samples| {
            let mut samples = samples;
            samples.rows[0].values.remove(&Path::Tcp);
            samples
        };
        assert_eq!(verdict(&alone(slow), &alone(fast)), ("better, beyond the spread", 2.0));
    }

    #[test]
    fn the_text_tells_what_changed_and_what_is_missing() {
        let old = record(Better::Higher, &[100.0, 100.0], &[200.0, 200.0]);
        let mut new = record(Better::Higher, &[100.0, 100.0], &[300.0, 300.0]);
        new.machine.cpu = "another".into();
        let said = text(&old, &new);
        for part in [
            "the row",
            "2.00 x",
            "3.00 x",
            "+50.0 %",
            "1 better, 0 worse, of 1",
            "different machines",
        ] {
            assert!(said.contains(part), "{part} is missing in\n{said}");
        }
        new.rows.clear();
        assert!(text(&old, &new).contains("no row in common"));
    }

    #[test]
    fn the_gate_lets_pass_what_is_within_the_spread_or_little() {
        let tcp = [100.0, 100.0];
        let of = |ours: &[f64]| record(Better::Higher, &tcp, ours);
        let old = of(&[200.0, 220.0]);
        for (ours, passes) in [
            ([190.1, 190.2], true),
            ([100.0, 200.0], true),
            ([188.0, 189.9], false),
            ([300.0, 310.0], true),
        ] {
            let lost = lost(&old, &of(&ours)).unwrap();
            assert_eq!(lost.is_empty(), passes, "{ours:?}: {lost:?}");
        }
        let mut gone = of(&[200.0, 210.0]);
        gone.rows[0].measure.name = "another".into();
        assert!(lost(&old, &gone).unwrap_err().to_string().contains("no row"));
        gone.rows.push(of(&[200.0, 210.0]).rows.remove(0));
        assert_eq!(lost(&gone, &old).unwrap(), ["another: not measured"]);
    }

    #[test]
    fn the_gate_needs_the_same_machine_and_a_spread() {
        let old = record(Better::Higher, &[100.0, 100.0], &[200.0, 200.0]);
        let once = record(Better::Higher, &[100.0], &[200.0]);
        assert!(lost(&old, &once).unwrap_err().to_string().contains("--repeat"));
        let mut elsewhere = record(Better::Higher, &[100.0, 100.0], &[200.0, 200.0]);
        elsewhere.machine.kernel = "6.19".into();
        assert!(lost(&old, &elsewhere).unwrap_err().to_string().contains("another machine"));
    }
}
