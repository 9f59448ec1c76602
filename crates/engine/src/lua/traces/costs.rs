//! Findings about time: what is not compiled, what is left and entered again, and what makes garbage.

use std::collections::BTreeMap;

use super::findings::list;
use super::{Abort, Finding, Trace, TraceFacts, Weight};

/// Fewer samples than this say nothing.
const ENOUGH: u64 = 200;
/// Percent of the script's time from which on a cause that is known is worth a word.
const KNOWN: u64 = 5;
/// The same for the collector.
const COLLECTED: u64 = 10;
/// The same for the interpreter without such a cause: a breath enters and leaves each app, which
/// takes a tenth where apps do next to nothing.
const INTERPRETED: u64 = 12;
/// A recording that was given up less often is the start of the script.
const OFTEN: u64 = 3;
/// Lines that one finding names.
const LINES: usize = 3;

/// Whether the script ran too shortly for findings about time: on a busy machine, or with a run of
/// less than a second, there are fewer samples than they need.
pub fn too_short(facts: &TraceFacts) -> bool {
    facts.script_samples() < ENOUGH
}

/// Findings about time, what costs most by its kind first: code that cannot be compiled, calls
/// between compiled code and C, garbage, and the interpreter without any of these.
pub(super) fn costs(facts: &TraceFacts) -> Vec<Finding> {
    if too_short(facts) {
        return Vec::new();
    }
    let all = facts.script_samples();
    let share = |samples: u64| samples * 100 / all;
    let outside = share(facts.interpreter + facts.exiting);
    let mut found = Vec::new();
    if outside >= KNOWN {
        found.extend(not_compiled(facts, outside));
    }
    found.extend(stitched(facts));
    let known = !found.is_empty();
    if share(facts.collector) >= COLLECTED {
        found.push(garbage(facts, share(facts.collector)));
    }
    if !known && outside >= INTERPRETED {
        found.push(interpreted(facts, outside));
    }
    found
}

/// Recordings that were given up, by line and reason, the most frequent first.
fn aborts(facts: &TraceFacts, weight: Weight) -> Vec<(&Abort, u64)> {
    let mut lines: BTreeMap<(&str, i64, &str), (&Abort, u64)> = BTreeMap::new();
    for abort in facts.aborts.iter().filter(|abort| abort.weight() == weight) {
        let key = (abort.file.as_str(), abort.line, abort.reason.as_str());
        lines.entry(key).or_insert((abort, 0)).1 += abort.count;
    }
    let mut lines: Vec<_> = lines.into_values().filter(|(_, count)| *count >= OFTEN).collect();
    // Stable: lines alike stay in the order of files.
    lines.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    lines.truncate(LINES);
    lines
}

fn not_compiled(facts: &TraceFacts, outside: u64) -> Option<Finding> {
    let lines = aborts(facts, Weight::NotCompiled);
    let named: Vec<String> = lines
        .iter()
        .map(|(abort, _)| format!("{}:{}: {}", abort.file, abort.line, abort.reason))
        .collect();
    let (first, _) = lines.first()?;
    let advice = match first.reason.as_str() {
        reason if reason.ends_with("FNEW") => {
            "`function ... end` makes a closure each time it is passed, which is not compiled: make it once, in `new` or outside."
        }
        reason if reason.contains("C function") => {
            "A function in C is not compiled: call it through the FFI, or out of the loop over packets."
        }
        _ => "Move what cannot be compiled out of the loop over packets.",
    };
    Some(Finding {
        what: format!(
            "{outside} % of the script's time passes in the interpreter, since LuaJIT cannot compile {}",
            list(&named)
        ),
        advice: advice.to_string(),
    })
}

/// Traces that end at a call of what is not compiled, behind which another one begins. What such a
/// call itself takes is not told apart from the engine's own time: both are C.
fn stitched(facts: &TraceFacts) -> Option<Finding> {
    let mut lines: BTreeMap<(&str, i64), u64> = BTreeMap::new();
    for trace in facts.traces.iter().filter(|trace| trace.link_kind == "stitch") {
        let place = trace.end_file.as_deref().zip(trace.end_line);
        let behind = |next: &&Trace| next.parent == Some(trace.id) && next.exit == Some(-1);
        let after = facts.traces.iter().find(behind).map_or(0, |next| next.samples);
        *lines.entry(place.unwrap_or((&trace.file, trace.line))).or_default() +=
            trace.samples + after;
    }
    let around = facts.interpreter + facts.exiting + lines.values().sum::<u64>();
    let share = around * 100 / facts.script_samples().max(1);
    let mut lines: Vec<_> = lines.into_iter().filter(|(_, samples)| *samples > 0).collect();
    lines.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    lines.truncate(LINES);
    let named: Vec<String> =
        lines.iter().map(|((file, line), _)| format!("{file}:{line}")).collect();
    (!named.is_empty() && share >= KNOWN).then(|| Finding {
        what: format!(
            "compiled code is left for a call that is not compiled, and entered again behind it, at {} ({share} % of the script's \
             time passes around such calls)",
            list(&named)
        ),
        advice: "Call it out of the loop over packets, or use what is compiled: LuaJIT's FFI, `bit`, arithmetic.".to_string(),
    })
}

fn garbage(facts: &TraceFacts, collected: u64) -> Finding {
    let samples =
        |id: u64| facts.traces.iter().find(|trace| trace.id == id).map_or(0, |trace| trace.samples);
    // Which of the interpreted lines the time goes to is not known: they share it.
    let interpreted = facts.allocations.iter().filter(|made| made.trace.is_none()).count() as u64;
    let each = (facts.interpreter / interpreted.max(1)).max(1);
    let mut lines: BTreeMap<(&str, i64, &str), u64> = BTreeMap::new();
    for made in &facts.allocations {
        let heat = made.trace.map_or(each, samples);
        if heat > 0 {
            *lines.entry((&made.file, made.line, &made.what)).or_default() += heat;
        }
    }
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|(_, heat)| std::cmp::Reverse(*heat));
    lines.truncate(LINES);
    let named: Vec<String> =
        lines.iter().map(|((file, line, what), _)| format!("{file}:{line} makes {what}")).collect();
    let from = if named.is_empty() {
        "what makes the garbage was not seen in compiled code".to_string()
    } else {
        format!("{} each time it is passed", list(&named))
    };
    Finding {
        what: format!("{collected} % of the script's time passes in the garbage collector: {from}"),
        advice: "Make it once and use it again: a table, buffer or value of the FFI kept in the instance.".to_string(),
    }
}

/// Nothing above explains it.
fn interpreted(facts: &TraceFacts, outside: u64) -> Finding {
    let failed =
        aborts(facts, Weight::Failed).into_iter().chain(aborts(facts, Weight::Blacklisted)).next();
    let (cause, advice) = match failed {
        Some((abort, count)) => (
            format!(
                "at {}:{} recording was given up {count} times: {}",
                abort.file, abort.line, abort.reason
            ),
            "Make that code simpler, or move it out of the loop over packets.",
        ),
        None => (
            "no line is to blame: it is what enters and leaves each app, for each breath"
                .to_string(),
            "Fewer and larger apps, and larger breaths (a load that is less than full makes them smaller), lower that share.",
        ),
    };
    Finding {
        what: format!("{outside} % of the script's time passes in the interpreter; {cause}"),
        advice: advice.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Allocation;
    use super::*;

    fn abort(line: i64, reason: &str, count: u64) -> Abort {
        Abort { file: "a.lua".into(), line, reason: reason.into(), count, ..Abort::default() }
    }

    /// A script with so much time in each place, whose loops were given up often, as all are.
    fn facts(interpreter: u64, collector: u64, aborts: Vec<Abort>) -> TraceFacts {
        let trace = Trace { id: 1, samples: 1000 - interpreter - collector, ..Trace::default() };
        let mut all = vec![abort(4, "inner loop in root trace", 99)];
        all.extend(aborts);
        TraceFacts {
            traces: vec![trace],
            aborts: all,
            interpreter,
            collector,
            ..TraceFacts::default()
        }
    }

    #[test]
    fn what_cannot_be_compiled_goes_before_what_happens_with_every_loop() {
        let aborts = vec![
            abort(7, "NYI: bytecode FNEW", 4),
            abort(7, "NYI: bytecode FNEW", 8),
            abort(3, "blacklisted", 30),
        ];
        let found = costs(&facts(420, 0, aborts));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].what.contains("a.lua:7: NYI: bytecode FNEW")
                && !found[0].what.contains("a.lua:4")
        );
        assert!(found[0].advice.contains("closure"));
    }

    #[test]
    fn the_calls_between_stitched_traces_are_named() {
        let mut facts = facts(60, 0, vec![]);
        facts.traces.push(Trace {
            id: 2,
            link_kind: "stitch".into(),
            samples: 20,
            line: 1,
            end_file: Some("b.lua".into()),
            end_line: Some(5),
            ..Trace::default()
        });
        let found = costs(&facts);
        assert!(found.len() == 1 && found[0].what.contains("b.lua:5"), "{found:?}");
    }

    #[test]
    fn the_collector_has_a_finding_with_the_line_that_allocates() {
        let mut facts = facts(10, 250, vec![]);
        let made = |line, trace| Allocation {
            file: "a.lua".into(),
            line,
            what: "a table".into(),
            trace,
            ..Allocation::default()
        };
        // One in a trace that never ran, one in the hot one.
        facts.allocations = vec![made(2, Some(9)), made(5, Some(1))];
        let found = costs(&facts);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].what.starts_with("25 %") && found[0].what.contains("a.lua:5 makes a table")
        );
        assert!(!found[0].what.contains("a.lua:2"));
    }

    #[test]
    fn eighteen_percent_are_told_and_the_usual_share_is_not() {
        let found = costs(&facts(180, 0, vec![]));
        assert!(
            found.len() == 1 && found[0].what.contains("18 %") && found[0].what.contains("no line"),
            "{found:?}"
        );
        assert!(costs(&facts(110, 0, vec![])).is_empty());
        let failed = costs(&facts(180, 0, vec![abort(8, "bad argument type", 5)]));
        assert!(failed[0].what.contains("a.lua:8"), "{failed:?}");
    }

    #[test]
    fn a_short_run_says_nothing() {
        let facts = TraceFacts { interpreter: 150, collector: 40, ..TraceFacts::default() };
        assert!(costs(&facts).is_empty() && too_short(&facts));
    }
}
