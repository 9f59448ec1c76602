//! What is found in scripts, every time.

use std::path::Path;

use super::*;

const RUNS: usize = 20;
/// Time is sampled, and a thread that gets no processor is seen where it stands: a run that was spoilt so is
/// repeated.
const TRIES: usize = 5;

/// Runs the example of the mistake for so many tenths of a second; gives what was said about its traces.
fn traced(case: &Case, tenths: u32, words: &[&str]) -> String {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/mistake.lua");
    let mut command = command(&["snsh", "--shared", "--traces", "-"]);
    let mut script = case.start(
        "snsh",
        command.arg(example).arg(format!("{}", f64::from(tenths) / 10.0)).args(words),
    );
    script.success(secs(60));
    script.stderr()
}

#[test]
fn the_mistake_is_named_in_every_run_and_nothing_in_clean_ones() {
    case("mistake", |case| {
        for run in 1..=RUNS {
            let what = [
                "instances if1 and if2 of Driver run different traces since `ring` has 2 ctypes",
                "mistake.lua:17 creates a new ctype",
            ];
            // In less than a tenth of a second's processor time one of the instances may have no trace yet.
            let mut said = String::new();
            let named = (0..TRIES).any(|tries| {
                said = traced(case, 1 << (2 * tries), &[]);
                what.iter().all(|what| said.contains(what))
            });
            assert!(named, "run {run}: {said}");
            // A tenth of a second has too few samples for findings about time, unless the script stood
            // still for longer.
            let clean =
                (0..TRIES).map(|_| traced(case, 1, &["clean"])).find(|said| !is_of_time(said));
            let said = clean.unwrap_or_else(|| panic!("clean run {run}: findings in each try"));
            assert!(said.contains("findings: none"), "clean run {run}: {said}");
        }
        Ok(())
    });
}

/// Whether something was found by where the time goes.
fn is_of_time(said: &str) -> bool {
    let mut found = said.lines().filter(|line| line.starts_with("finding "));
    found.any(|line| line.contains("of the script's time"))
}

/// A script whose app does this with each packet, for so many seconds; gives what was said about its
/// traces.
fn costs_of(case: &Case, work: &str, seconds: u32) -> String {
    let text = format!(
        "local basic = require('apps.basic.basic_apps')\n\
         local Work = {{}}\n\
         function Work:new () return setmetatable({{ n = 0, kept = {{}} }}, {{ __index = Work }}) end\n\
         function Work:push ()\n\
         while not link.empty(self.input.input) do\n\
         local p = link.receive(self.input.input)\n\
         {work}\n\
         self.n = self.n + 1\n\
         link.transmit(self.output.output, p) end end\n\
         local c = config.new()\n\
         config.app(c, 'source', basic.Source)\n\
         config.app(c, 'work', Work)\n\
         config.app(c, 'sink', basic.Sink)\n\
         config.link(c, 'source.output -> work.input')\n\
         config.link(c, 'work.output -> sink.input')\n\
         engine.configure(c)\n\
         engine.main({{ duration = {seconds} }})\n"
    );
    let path = case.dir().join("work.lua");
    fs::write(&path, text).expect("a script");
    let mut script = case.start("snsh", command(&["snsh", "--traces", "-"]).arg(path));
    script.success(secs(100));
    script.stderr()
}

/// Runs it, longer each time, until the first finding says all of this.
fn finds_first(case: &Case, work: &str, parts: &[&str]) {
    let mut said = String::new();
    for tries in 0..TRIES {
        said = costs_of(case, work, 1 << tries);
        let first = said.lines().find(|line| line.starts_with("finding 1"));
        if first.is_some_and(|first| parts.iter().all(|part| first.contains(*part))) {
            return;
        }
    }
    panic!("the first finding is not {parts:?}: {said}");
}

/// The line of `work` in `costs_of`.
const WORK: &str = "work.lua:7";

#[test]
fn findings_name_the_line_that_costs_and_no_loop_that_is_compiled_in_the_end() {
    case("costs", |case| {
        let closure = format!("{WORK}: NYI: bytecode FNEW");
        finds_first(case, "self.last = function () return p end", &[&closure]);
        let table = format!("{WORK} makes a table");
        let work = "self.kept[self.n % 1000] = { p.length, p.length }";
        finds_first(case, work, &["collector", &table]);
        let work = "self.last = collectgarbage(\"count\")";
        finds_first(case, work, &["is left for a call", WORK]);
        Ok(())
    });
}
