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

/// A script whose app does this with each packet; gives what was said about its traces.
fn costs_of(case: &Case, work: &str) -> String {
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
         engine.main({{ duration = 1 }})\n"
    );
    let path = case.dir().join("work.lua");
    fs::write(&path, text).expect("a script");
    let mut script = case.start("snsh", command(&["snsh", "--traces", "-"]).arg(path));
    script.success(secs(30));
    script.stderr()
}

/// The line of `work` in `costs_of`.
const WORK: &str = "work.lua:7";

#[test]
fn findings_name_the_line_that_costs_and_no_loop_that_is_compiled_in_the_end() {
    case("costs", |case| {
        let said = costs_of(case, "self.last = function () return p end");
        let first = said.lines().find(|line| line.starts_with("finding 1")).expect(&said);
        assert!(first.contains(&format!("{WORK}: NYI: bytecode FNEW")), "{said}");
        let said = costs_of(case, "self.kept[self.n % 1000] = { p.length, p.length }");
        let first = said.lines().find(|line| line.starts_with("finding 1")).expect(&said);
        assert!(
            first.contains("collector") && first.contains(&format!("{WORK} makes a table")),
            "{said}"
        );
        let said = costs_of(case, "self.last = collectgarbage(\"count\")");
        let first = said.lines().find(|line| line.starts_with("finding 1")).expect(&said);
        assert!(first.contains("is left for a call") && first.contains(WORK), "{said}");
        Ok(())
    });
}
