//! `tests/conformance`: what a program can observe of its connections is the same plain, upgraded
//! at both ends, upgraded at one end, and when the switch falls in the middle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use system_tests::probe::need_devices;
use system_tests::{
    Case, Outcome, Proc, Side, Skip, case, compile_conformance, count_skip, plain, secs, shared,
};

/// Cases that need not be as on plain TCP: each line has the mode, the case, and the reason.
const DIFFERENCES: &str = include_str!("../conformance/differences.txt");

/// What a case printed, and what became of its connections.
#[derive(Default, Clone)]
struct Told {
    transcript: String,
    /// Its connections leave TCP if both ends can, and were so many; so many had when the case
    /// began.
    upgrades: bool,
    warmed: u32,
    upgraded: u32,
    /// Bytes of the case itself took another way than TCP.
    switched: bool,
}

type Run = BTreeMap<String, Told>;

/// Which end runs under `shortwire run`, with which devices (none: as it does unasked), and how.
struct Mode {
    name: &'static str,
    sides: [Side; 2],
    devices: &'static str,
    settings: &'static [&'static str],
}

impl Mode {
    const fn new(name: &'static str, sides: [Side; 2], settings: &'static [&'static str]) -> Self {
        Self { name, sides, devices: "", settings }
    }

    const fn over(
        devices: &'static str,
        name: &'static str,
        settings: &'static [&'static str],
    ) -> Self {
        Self { name, sides: BOTH, devices, settings }
    }
}

const PLAIN: [Side; 2] = [Side::Plain, Side::Plain];
const BOTH: [Side; 2] = [Side::Run, Side::Run];
/// What the others are compared with.
const ON_TCP: Mode = Mode::new("plain", PLAIN, &["warm=4"]);

fn read(out: &str, facts: &str) -> Run {
    let mut run = Run::new();
    let mut name = "";
    for line in out.lines() {
        if let Some(next) = line.strip_prefix("== ") {
            name = next;
        } else {
            run.entry(name.to_string()).or_default().transcript += &format!("{line}\n");
        }
    }
    for line in facts.lines().filter_map(|line| line.strip_prefix('#')) {
        let (plan, rest) = line.split_once(' ').expect("a plan");
        let mut numbers = rest.rsplitn(5, ' ');
        let mut number = || numbers.next().and_then(|n| n.parse().ok()).expect("a number");
        let (_took, switched, upgraded, warmed): (u32, u32, u32, u32) =
            (number(), number(), number(), number());
        let told = run.get_mut(numbers.next().expect("a name")).expect("a transcript");
        (told.upgrades, told.warmed, told.upgraded, told.switched) =
            (plan == "upgrades", warmed, upgraded, switched != 0);
    }
    run
}

struct Programs {
    shared: PathBuf,
    fixed: Option<PathBuf>,
}

fn start(c: &Case, (side, devices): (Side, &str), programs: &Programs, args: &[&str]) -> Proc {
    let mut command = side.command(&programs.shared);
    // Cases are short: with a later upgrade few of them would see the switch.
    command.env("SHORTWIRE_AFTER", "4");
    if !devices.is_empty() {
        command.env("SHORTWIRE_PREFER", devices);
    }
    command.args(args);
    command.env("CONFORMANCE_STATIC", programs.fixed.as_deref().unwrap_or(Path::new("")));
    c.start(&format!("{}-{side:?}", args[0]), &mut command)
}

/// What the program printed on its two streams; with `only`, of the cases that have this in their
/// names.
fn said(c: &Case, programs: &Programs, mode: &Mode, only: &str) -> [String; 2] {
    let name = format!("conformance-{}-{}", std::process::id(), mode.name.replace(' ', "-"));
    let began = Instant::now();
    let [subject, peer] = mode.sides.map(|side| (side, mode.devices));
    let mut peer = start(c, peer, programs, &["peer", &name]);
    peer.wait_line("ready", secs(60));
    let chosen = format!("match={only}");
    let args = [&["run", name.as_str(), chosen.as_str()], mode.settings].concat();
    let mut subject = start(c, subject, programs, &args);
    let out = subject.success(secs(600));
    peer.success(secs(60));
    let cases = out.lines().filter(|line| line.starts_with("== ")).count();
    println!("{}: {cases} cases {only} in {:.0} s", mode.name, began.elapsed().as_secs_f64());
    [out, subject.stderr()]
}

fn run(c: &Case, programs: &Programs, mode: &Mode) -> Run {
    let [out, facts] = said(c, programs, mode, "");
    let run = read(&out, &facts);
    assert!(run.len() > 500, "only {} cases ran", run.len());
    run
}

/// Beside busy processes TCP itself takes a few bytes more or less into a full connection, or says
/// so later, in the run that others are measured by as well as in theirs. A case that has differed is
/// therefore looked at alone: so many more times it must print the same on plain TCP and in the mode.
const MORE_TIMES: usize = 5;
/// More cases than this do not differ by chance.
const BY_CHANCE: usize = 12;

/// What the case prints alone, if it prints the same each time and in each of the modes.
fn alone(c: &Case, programs: &Programs, modes: [&Mode; 2], name: &str) -> Option<String> {
    let mut always: Option<String> = None;
    for mode in [modes; MORE_TIMES].concat() {
        let [out, _] = said(c, programs, mode, name);
        let transcript = read(&out, "").remove(name)?.transcript;
        if always.as_ref().is_some_and(|before| *before != transcript) {
            return None;
        }
        always = Some(transcript);
    }
    always
}

fn programs() -> Result<Programs, Skip> {
    let (shared, fixed) = compile_conformance()?;
    Ok(Programs { shared, fixed })
}

/// The transcripts of plain TCP. A case that differs from itself would be no measure for another: it
/// counts what it prints alone.
fn reference(c: &Case, programs: &Programs) -> Run {
    let transcripts = shared("conformance.plain", || {
        let again = Mode::new("plain again", PLAIN, &["warm=9", "high=1", "dials=1"]);
        let [first, _] = said(c, programs, &ON_TCP, "");
        let second = run(c, programs, &again);
        let (mut expected, mut settled) = (read(&first, ""), Run::new());
        compare(&expected, &second, again.name, |name| {
            let Some(transcript) = alone(c, programs, [&ON_TCP, &again], name) else {
                return false;
            };
            settled.insert(name.to_string(), Told { transcript, ..Told::default() });
            true
        });
        expected.extend(settled);
        expected.iter().map(|(name, told)| format!("== {name}\n{}", told.transcript)).collect()
    });
    let run = read(&transcripts, "");
    for (name, told) in &run {
        if let Some(why) = told.transcript.lines().find_map(|line| line.strip_prefix("skipped: ")) {
            count_skip(&format!("conformance {name}"), &Skip(why.to_string()));
        }
    }
    run
}

/// Whether the difference is a known one, which is then said.
fn excused(mode: &str, name: &str) -> bool {
    DIFFERENCES.lines().filter(|line| !line.starts_with('#')).any(|line| {
        let mut fields = line.splitn(3, " | ");
        let (modes, cases) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        let covers = cases.strip_suffix('*').map_or(cases == name, |start| name.starts_with(start));
        (modes == "any" || mode.starts_with(modes)) && covers
    })
}

fn difference(expected: &str, found: &str) -> String {
    let (mut text, mut want, mut have) = (String::new(), expected.lines(), found.lines());
    loop {
        match (want.next(), have.next()) {
            (None, None) => return text,
            (a, b) if a == b => text += &format!("  {}\n", a.unwrap_or("")),
            (a, b) => text += &format!("- {}\n+ {}\n", a.unwrap_or("(end)"), b.unwrap_or("(end)")),
        }
    }
}

/// `is_chance` looks again at a case that differs.
fn compare(expected: &Run, found: &Run, mode: &str, mut is_chance: impl FnMut(&str) -> bool) {
    let mut failures = Vec::new();
    let differs = |(name, told): &(&String, &Told)| {
        found.get(*name).is_none_or(|it| it.transcript != told.transcript)
    };
    let few = expected.iter().filter(differs).filter(|(name, _)| !excused(mode, name)).count()
        <= BY_CHANCE;
    for (name, told) in expected {
        let there = found.get(name).map_or("", |told| &told.transcript);
        if there == told.transcript {
            continue;
        }
        if excused(mode, name) {
            println!("{mode}: {name} differs, as listed");
        } else if few && is_chance(name) {
            let difference = difference(&told.transcript, there);
            println!("{mode}: {name} differed once, and not {MORE_TIMES} times more\n{difference}");
        } else {
            failures.push(format!("== {name}\n{}", difference(&told.transcript, there)));
        }
    }
    let extra: Vec<_> = found.keys().filter(|name| !expected.contains_key(*name)).collect();
    assert!(extra.is_empty(), "{mode}: cases that did not run before: {extra:?}");
    let count = failures.len();
    assert!(
        count == 0,
        "{mode}: {count} cases differ (- plain, + {mode})\n{}",
        failures.join("\n")
    );
}

/// Cases whose connections do not do in this mode what they should.
fn wrong(run: &Run, is_wrong: impl Fn(&Told) -> bool) -> Vec<&str> {
    run.iter().filter(|(_, told)| is_wrong(told)).map(|(name, _)| name.as_str()).collect()
}

fn conformance(name: &str, modes: &[Mode], proof: fn(&Run)) {
    case(name, |c| -> Outcome {
        let programs = programs()?;
        let expected = reference(c, &programs);
        for mode in modes {
            need_devices(mode.devices)?;
            let found = run(c, &programs, mode);
            compare(&expected, &found, mode.name, |name| {
                alone(c, &programs, [&ON_TCP, mode], name).is_some()
            });
            if !plain() {
                proof(&found);
            }
        }
        Ok(())
    });
}

fn all_upgraded(run: &Run) {
    let tcp = wrong(run, |told| told.upgrades && told.upgraded < told.warmed);
    assert!(tcp.is_empty(), "still on TCP when they began: {tcp:?}");
    let upgraded = wrong(run, |told| told.upgraded > 0).len();
    assert!(upgraded > 500, "only {upgraded} cases had an upgraded connection");
}

fn many_switched(run: &Run) {
    let switched = wrong(run, |told| told.switched && told.upgraded < told.warmed).len();
    println!("{switched} cases switched while they ran");
    assert!(switched > 200, "only {switched} cases switched while they ran");
}

#[test]
fn upgraded_at_both_ends() {
    let modes = [
        Mode::new("both ends", BOTH, &["warm=up"]),
        Mode::new("both ends, dialling", BOTH, &["warm=up", "high=1", "dials=1"]),
    ];
    conformance("conformance-both", &modes, all_upgraded);
}

/// The device that copies. A case has its connections from one process to another, as on loopback.
#[test]
fn upgraded_at_both_ends_over_ism() {
    let modes = [
        Mode::over("ism", "both ends, ism", &["warm=up"]),
        Mode::over("ism", "both ends, ism, dialling", &["warm=up", "high=1", "dials=1"]),
    ];
    conformance("conformance-ism-both", &modes, all_upgraded);
}

/// The device that writes by RDMA. What forks goes back to TCP, so not all is upgraded to its end.
#[test]
fn upgraded_at_both_ends_over_verbs() {
    let modes = [
        Mode::over("verbs", "both ends, verbs", &["warm=up"]),
        Mode::over("verbs", "both ends, verbs, dialling", &["warm=up", "high=1", "dials=1"]),
    ];
    conformance("conformance-verbs-both", &modes, all_upgraded);
}

#[test]
fn upgraded_at_one_end() {
    let modes = [
        Mode::new("one end, this one", [Side::Run, Side::Plain], &["warm=12"]),
        Mode::new("one end, the other", [Side::Plain, Side::Run], &["warm=12", "high=1"]),
    ];
    conformance("conformance-one", &modes, |run| {
        let gone = wrong(run, |told| told.upgraded > 0 || told.switched);
        assert!(gone.is_empty(), "left TCP with nobody at the other end: {gone:?}");
    });
}

#[test]
fn switched_in_the_middle() {
    let modes = [
        Mode::new("middle", BOTH, &["any=1"]),
        Mode::new("middle, high port", BOTH, &["any=2", "high=1"]),
        Mode::new("middle, dialling", BOTH, &["any=3", "dials=1"]),
    ];
    conformance("conformance-middle", &modes, many_switched);
}

#[test]
fn switched_in_the_middle_over_ism() {
    let modes = [
        Mode::over("ism", "middle, ism", &["any=1"]),
        Mode::over("ism", "middle, ism, high port", &["any=2", "high=1"]),
        Mode::over("ism", "middle, ism, dialling", &["any=3", "dials=1"]),
    ];
    conformance("conformance-ism-middle", &modes, many_switched);
}

#[test]
fn switched_in_the_middle_over_verbs() {
    let modes = [
        Mode::over("verbs", "middle, verbs", &["any=1"]),
        Mode::over("verbs", "middle, verbs, dialling", &["any=3", "dials=1"]),
    ];
    conformance("conformance-verbs-middle", &modes, many_switched);
}
