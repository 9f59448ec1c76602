//! Traces as a list, the hottest first.

use std::fmt::Write;

use engine::lua::traces::{Finding, Trace, TraceFacts, too_short};

use super::{percent, short};

/// The `most` hottest traces, what was given up, and the findings.
pub fn list(facts: &TraceFacts, found: &[Finding], most: usize) -> String {
    let mut out = String::new();
    // A String takes everything.
    let _ = write(&mut out, facts, found, most);
    out
}

fn write(out: &mut String, facts: &TraceFacts, found: &[Finding], most: usize) -> std::fmt::Result {
    let looping = facts.traces.iter().filter(|trace| trace.looping).count();
    let side = facts.traces.iter().filter(|trace| trace.parent.is_some()).count();
    let falls: u64 = facts.traces.iter().map(Trace::falls).sum();
    writeln!(
        out,
        "traces: {} ({looping} looping, {side} side), {falls} exits to the interpreter, {} recordings given up, {} flushes",
        facts.traces.len(),
        facts.aborts.iter().map(|abort| abort.count).sum::<u64>(),
        facts.flushes
    )?;
    let all = facts.samples();
    let compiled: u64 = facts.traces.iter().map(|trace| trace.samples).sum();
    let share = |part| percent(part, all);
    writeln!(
        out,
        "time:   {:.1} % engine, {:.1} % traces, {:.1} % interpreter, {:.1} % leaving traces, {:.1} % compiler, {:.1} % collector",
        share(facts.engine),
        share(compiled),
        share(facts.interpreter),
        share(facts.exiting),
        share(facts.compiler),
        share(facts.collector)
    )?;
    traces(out, facts, most)?;
    aborts(out, facts, most)?;
    for (i, finding) in found.iter().enumerate() {
        writeln!(out, "finding {}: {}\n  {}", i + 1, finding.what, finding.advice)?;
    }
    if found.is_empty() {
        writeln!(out, "findings: none")?;
    }
    if too_short(facts) {
        let samples = facts.script_samples();
        writeln!(
            out,
            "        {samples} samples of its time are too few to say where it goes: let it run longer"
        )?;
    }
    Ok(())
}

fn traces(out: &mut String, facts: &TraceFacts, most: usize) -> std::fmt::Result {
    let mut hottest: Vec<&Trace> = facts.traces.iter().collect();
    hottest.sort_by_key(|trace| (std::cmp::Reverse(trace.samples), trace.id));
    if !hottest.is_empty() {
        writeln!(
            out,
            "{:>6} {:>7} {:9} {:>9} {:>8} {:>10}  STARTS AT",
            "TRACE", "TIME", "KIND", "FROM", "GOES TO", "FALLS"
        )?;
    }
    for trace in hottest.iter().take(most) {
        let from = trace
            .parent
            .map(|parent| format!("{parent}/{}", trace.exit.unwrap_or(0)))
            .unwrap_or_default();
        let to = trace.link.map(|link| link.to_string());
        let to = to.unwrap_or_else(|| {
            if trace.looping { "itself".into() } else { trace.link_kind.clone() }
        });
        let app = trace.app.as_deref().map(|app| format!(" ({app})")).unwrap_or_default();
        writeln!(
            out,
            "{:>6} {:>6.1}% {:9} {from:>9} {to:>8} {:>10}  {}:{}{app}",
            trace.id,
            percent(trace.samples, facts.samples()),
            trace.kind(),
            trace.falls(),
            short(&trace.file),
            trace.line
        )?;
    }
    if hottest.len() > most {
        writeln!(out, "       ... and {} more", hottest.len() - most)?;
    }
    Ok(())
}

fn aborts(out: &mut String, facts: &TraceFacts, most: usize) -> std::fmt::Result {
    let mut aborts: Vec<_> = facts.aborts.iter().collect();
    aborts.sort_by(|a, b| {
        (a.weight(), b.count, &a.file, a.line).cmp(&(b.weight(), a.count, &b.file, b.line))
    });
    if !aborts.is_empty() {
        writeln!(out, "{:>6}  GIVEN UP AT", "TIMES")?;
    }
    for abort in aborts.iter().take(most) {
        let app = abort.app.as_deref().map(|app| format!(" ({app})")).unwrap_or_default();
        writeln!(
            out,
            "{:>6}  {}:{}{app}: {}",
            abort.count,
            short(&abort.file),
            abort.line,
            abort.reason
        )?;
    }
    if aborts.len() > most {
        writeln!(out, "        ... and {} more", aborts.len() - most)?;
    }
    Ok(())
}
