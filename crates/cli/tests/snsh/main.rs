//! Scripts as users run them: the command as a program, its output and its exit status.
#![cfg(feature = "lua")]

mod apps;
mod ends;
mod interfaces;
mod network;
mod programs;
mod traces;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn snsh(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shortwire"));
    command.arg("snsh").args(args).stdin(Stdio::null()).output().expect("the command under test")
}

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    folder.join(name).to_str().expect("a path in UTF-8").to_string()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs code that must succeed, and returns what it printed.
fn prints(code: &str) -> String {
    let output = snsh(&["-e", code]);
    assert!(output.status.success(), "{code}\n{}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// Runs code that must fail, and returns the message.
fn refuses(code: &str) -> String {
    let output = snsh(&["-e", code]);
    assert_eq!(output.status.code(), Some(1), "{code}\n{}", stdout(&output));
    stderr(&output)
}

/// A file that goes with the test.
fn script(code: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("script.lua");
    std::fs::write(&path, code).expect("a writable folder");
    (folder, path)
}

/// Runs something for so many seconds, and longer where that was not enough: a program may get no
/// processor for the first ones.
fn longer<T>(first: f64, run: impl Fn(&str) -> T, is_enough: impl Fn(&T) -> bool) -> T {
    let mut seconds = first;
    loop {
        let ended = run(&seconds.to_string());
        if is_enough(&ended) || seconds > 20.0 {
            return ended;
        }
        seconds *= 4.0;
    }
}

/// The number that stands before `sent on LINK` in a report.
fn sent(report: &str, link: &str) -> u64 {
    let line = report
        .lines()
        .find(|line| line.contains(&format!("sent on {link} ")))
        .unwrap_or_else(|| panic!("{report}"));
    line.split_whitespace()
        .next()
        .and_then(|n| n.replace(',', "").parse().ok())
        .unwrap_or_else(|| panic!("{line}"))
}

/// Examples that need files or interfaces: they have tests of their own.
const WITH_ARGUMENTS: [&str; 6] =
    ["shunt.lua", "router.lua", "tunnel.lua", "firewall.lua", "spread.lua", "flows.lua"];

#[test]
fn every_example_runs() {
    for entry in std::fs::read_dir(example("")).expect("examples") {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let is_script = path.extension().is_some_and(|extension| extension == "lua");
        if !is_script || WITH_ARGUMENTS.contains(&&*name) {
            continue;
        }
        let moved = |output: &Output| {
            let report = stdout(output);
            let mut links = report.lines().filter(|line| line.contains("sent on"));
            links.all(|line| !line.trim().starts_with("0 "))
        };
        let run = |seconds: &str| snsh(&[path.to_str().expect("UTF-8"), seconds]);
        let output = longer(0.2, run, moved);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        assert_eq!(stderr(&output), "", "{name}");
        let report = stdout(&output);
        assert!(
            report.contains("link report:") && !report.contains("lost\n")
                || report.contains("no packet lost"),
            "{name}: {report}"
        );
        assert!(moved(&output), "{name}: {report}");
    }
}

#[test]
fn the_shunt_says_what_it_needs() {
    let output = snsh(&[&example("shunt.lua")]);
    assert!(stdout(&output).contains("usage: shunt.lua IF1 IF2"));
    assert_eq!(output.status.code(), Some(1));
    let output = snsh(&[&example("shunt.lua"), "no-such-if0", "no-such-if1", "0.1"]);
    assert!(
        stderr(&output).contains("app 'if1' (XDP): there is no interface \"no-such-if0\""),
        "{}",
        stderr(&output)
    );
}

/// The scripts of the source document, as they stand there.
const SHUNT: &str = r#" local Intel82599 = require("apps.intel.intel_app").Intel82599
 local c = config.new()
 config.app(c, "if1", Intel82599, { pciaddr = "0000:82:00.0" })
 config.app(c, "if2", Intel82599, { pciaddr = "0000:83:00.0" })
 config.link(c, "if1.tx -> if2.rx")
 config.link(c, "if2.tx -> if1.rx")
 engine.configure(c)
 engine.busywait = true
 require("jit.dump").start('+rs', 'dump')
 engine.main({ duration = 10, no_timers = false, report = { showlinks = true, showload = true } })
"#;

const TWICE: &str = r#"local Intel82599_1 = require("apps.intel.intel_app").Intel82599
-- Load a second copy of the Intel driver modules
package.loaded ["apps.intel.intel_app"] = nil
_G.apps.intel.intel_app = nil
package.loaded ["apps.intel.intel10g"] = nil
_G.apps.intel.intel10g = nil
local Intel82599_2 = require("apps.intel.intel_app").Intel82599
local c = config.new()
config.app(c, "if1", Intel82599_1, { pciaddr = "0000:01:00.0" })
config.app(c, "if2", Intel82599_2, { pciaddr = "0000:02:00.0" })
config.link(c, "if1.tx -> if2.rx")
config.link(c, "if2.tx -> if1.rx")
engine.configure(c)
engine.busywait = true
require("jit.dump").start('+rs', 'dump')
engine.main({ duration = 10, no_timers = false, report = { showlinks = true, showload = true } })
"#;

/// The first of them without the line that dumps traces.
fn shunt_alone() -> String {
    SHUNT
        .lines()
        .filter(|line| !line.contains("jit.dump"))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn the_scripts_of_the_source_document_name_what_is_missing() {
    for (code, address) in [
        (SHUNT.to_string(), "0000:82:00.0"),
        (shunt_alone(), "0000:82:00.0"),
        (TWICE.into(), "0000:01:00.0"),
    ] {
        // A device of this machine's would be driven, or refused as one of another kind.
        if std::path::Path::new("/sys/bus/pci/devices").join(address).exists() {
            eprintln!("skipped: there is a device at {address}");
            continue;
        }
        let (_folder, path) = script(&code);
        let output = snsh(&[path.to_str().expect("UTF-8")]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1));
        let missing = format!("app 'if1' (Intel82599): there is no PCI device at {address}");
        let no_bus = "this machine has no PCI bus";
        let line = code
            .lines()
            .position(|line| line.contains("engine.configure("))
            .expect("it configures")
            + 1;
        assert!(text.contains(&format!("script.lua:{line}: ")), "{text}");
        assert!(text.contains(&missing) || text.contains(no_bus), "{text}");
    }
}

/// Runs one of them between models, as written but for its ten seconds, and returns its report and
/// what it wrote to `dump`.
fn between_models(code: &str, [if1, if2]: [&str; 2], seconds: &str) -> (String, Option<String>) {
    let (folder, path) = script(code);
    let setup = format!(
        "local main = engine.main; engine.main = function (o) o.duration = {seconds}; return main(o) end"
    );
    let model = |address: &str, n: u32| format!("{address}=model:{n},packets=64");
    let output = Command::new(env!("CARGO_BIN_EXE_shortwire"))
        .current_dir(folder.path())
        .args(["snsh", "--model", &model(if1, 0), "--model", &model(if2, 1), "-e", &setup])
        .arg(&path)
        .output()
        .expect("the command under test");
    assert!(output.status.success(), "{}", stderr(&output));
    (stdout(&output), std::fs::read_to_string(folder.path().join("dump")).ok())
}

#[test]
fn the_scripts_of_the_source_document_run_as_written_between_models() {
    let (one, two) = ("0000:82:00.0", "0000:83:00.0");
    for (code, if1, if2) in [
        (SHUNT.to_string(), one, two),
        (shunt_alone(), one, two),
        (TWICE.into(), "0000:01:00.0", "0000:02:00.0"),
    ] {
        let run = |seconds: &str| between_models(&code, [if1, if2], seconds);
        let have_sent = |(report, _): &(String, _)| {
            ["if1.tx -> if2.rx", "if2.tx -> if1.rx"].iter().all(|link| sent(report, link) > 1000)
        };
        let ended = longer(0.2, run, have_sent);
        assert!(have_sent(&ended), "{}", ended.0);
        let (report, dump) = ended;
        assert!(report.contains("(loss rate: 0%)") && report.contains("load"), "{report}");
        // The native driver leaves the compiler nothing to trace; the file is there because the
        // script asks for it.
        assert_eq!(dump.is_some(), code.contains("jit.dump"));
    }
}

#[test]
fn models_stand_where_the_environment_says() {
    let models = "0000:82:00.0=model:0,packets=64 0000:83:00.0=model:1,packets=64,thread";
    let shunt = SHUNT.replace("'dump'", "'/dev/null'");
    let run = |seconds: &str| {
        let (_folder, path) =
            script(&shunt.replace("duration = 10", &format!("duration = {seconds}")));
        let mut command = Command::new(env!("CARGO_BIN_EXE_shortwire"));
        let output = command.env("SHORTWIRE_MODELS", models).arg("snsh").arg(&path).output();
        let output = output.expect("the command under test");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let have_sent = |report: &String| sent(report, "if2.tx -> if1.rx") > 0;
    assert!(have_sent(&longer(0.2, run, have_sent)));
    for (wrong, answer) in [
        ("0000:82:00.0", "write it as 0000:01:00.0=model:0,packets=64"),
        ("0000:82:00.0=eth0", "a model is named as model:0"),
        ("0000:82:00.0=model:0,cable=1,packets=64", "either a cable or a feed"),
    ] {
        let output = snsh(&["--model", wrong, "-e", ""]);
        assert!(
            stderr(&output).contains(answer) && output.status.code() == Some(2),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn cards_that_cannot_be_used_say_why() {
    for (arguments, answer) in [
        (
            "'0000:82:00.0'",
            "the argument is a table such as { pciaddr = \"0000:01:00.0\" }, not a string",
        ),
        ("{}", "missing key 'pciaddr'"),
        (
            "{ pciaddr = 'eth0' }",
            "\"eth0\" is not a PCI address such as 0000:01:00.0; `lspci -D` lists them",
        ),
        ("{ pciaddr = 'model:0,cable=0' }", "a cable has two ends: name another model"),
        ("{ pciaddr = 'model:0', rxq = 16 }", "16 is not a queue"),
        ("{ pciaddr = 'model:0', vmdq = true }", "unknown key 'vmdq'"),
    ] {
        let text = refuses(&format!(
            "local c = config.new() config.app(c, 'if1', require('apps.intel.intel_app').Intel82599, {arguments}) engine.configure(c)"
        ));
        assert!(text.contains(answer), "{arguments}: {text}");
    }
}

/// What `shortwire ps` and `top` look at.
#[test]
fn a_running_script_can_be_seen_from_outside() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let code = "local b = require('apps.basic.basic_apps') local c = config.new() config.app(c, 'src', b.Source, 60)
        config.app(c, 'sink', b.Sink) config.link(c, 'src.output -> sink.input') engine.configure(c)
        engine.main{ duration = 0.1 } os.execute(shortwire .. ' ps --json')";
    let program = env!("CARGO_BIN_EXE_shortwire");
    let output = Command::new(program)
        .env("SHORTWIRE_RUN_DIR", folder.path())
        .args(["snsh", "-e", &format!("shortwire = '{program}'"), "-e", code])
        .output()
        .expect("the command under test");
    let text = stdout(&output);
    assert!(output.status.success() && text.contains("\"apps\": 2"), "{text}{}", stderr(&output));
    let left = std::fs::read_dir(folder.path()).expect("the run directory").count();
    assert_eq!(left, 0, "the folder goes with the process");
}

#[test]
fn bad_input_is_answered_with_what_to_do() {
    for (code, answer) in [
        ("x = = 1", "(command line):1: unexpected symbol near '='"),
        ("require('no.such')", "module 'no.such' not found"),
        (
            "config.app(config.new(), 'a', nil)",
            "app 'a': the class is nil: does the module export that name?",
        ),
        ("config.app(config.new(), 'a b', {})", "'a b' is not a name of an app"),
        ("config.app(config.new(), 'a', 7)", "app 'a': the class is a number"),
        ("config.app(config.new(), 'a', {})", "the class has no function `new`"),
        ("config.app(nil, 'a', {})", "the first argument must be a configuration"),
        (
            "config.link(config.new(), 'a->b')",
            "'a->b' is not a link: write \"app.output -> app.input\"",
        ),
        ("engine.configure(3)", "engine.configure: the argument must be a configuration"),
        ("engine.main{ duration = 'x' }", "`duration` must be a number of seconds"),
        ("engine.main{ done = 3 }", "`done` must be a function"),
        (
            "engine.Hz = 0\nengine.main{}",
            "(command line):2: engine.main: `engine.Hz` must be a number",
        ),
        ("engine.Hz = -1 engine.main{}", "from 0.001 to 1e+09, not -1"),
        ("engine.Hz = 0/0 engine.main{}", "`engine.Hz` must be a number"),
        ("engine.Hz = math.huge engine.main{}", "not inf"),
        ("engine.Hz = 'often' engine.main{}", "not often"),
        ("engine.tick_Hz = 0/0 engine.main{}", "`engine.tick_Hz` must be a number"),
        ("engine.maxsleep = {} engine.main{}", "`engine.maxsleep` must be a number"),
        (
            "local c = config.new() config.app(c, 'a', 'Sorce') engine.configure(c)",
            "did you mean 'Source'?",
        ),
        (
            "local c = config.new() config.link(c, 'a.x -> b.y') engine.configure(c)",
            "no such app 'a'",
        ),
        (
            "local A = { config = { size = { required = true } }, new = print } config.app(config.new(), 'a', A, {})",
            "missing required parameter 'size'",
        ),
        (
            "local A = { config = {}, new = print } config.app(config.new(), 'a', A, { sise = 1 })",
            "unrecognized parameter 'sise'",
        ),
        (
            "local A = { new = function () return 3 end } local c = config.new() config.app(c, 'a', A) engine.configure(c)",
            "returned a number",
        ),
        ("timer.new('x', 3, 4)", "timer 'x': the second argument must be the function"),
        (
            "local p = packet.allocate() packet.free(p) packet.free(p)",
            "transmitted or freed already",
        ),
        (
            "packet.shiftleft(packet.from_string('abc'), 4)",
            "cannot remove 4 bytes from a packet of 3",
        ),
        (
            "packet.append(packet.allocate(), ('x'):rep(3000), 3000)",
            "packet too long: 3000 bytes, at most 1984",
        ),
        ("local l = {} while true do l[#l + 1] = packet.allocate() end", "all packets are in use"),
    ] {
        let text = refuses(code);
        assert!(text.contains(answer), "{code}\n{text}");
    }
    let output = snsh(&["no-such-script.lua"]);
    assert!(
        stderr(&output).contains("cannot read 'no-such-script.lua'")
            && output.status.code() == Some(1)
    );
    let output = snsh(&[]);
    assert!(stderr(&output).contains("nothing to run") && output.status.code() == Some(1));
    let output = snsh(&["--traces", "out.png", "x.lua"]);
    assert!(stderr(&output).contains(".svg, .dot, .json or .txt"));
}

#[test]
fn typed_lua_is_evaluated() {
    use std::io::Write;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut child = Command::new(env!("CARGO_BIN_EXE_shortwire"))
        .args(["snsh", "-i"])
        .env("XDG_STATE_HOME", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command under test");
    let mut input = child.stdin.take().expect("a pipe");
    input
        .write_all(
            b"x = 20\nx + 1, 'two'\nfor i = 1, 2 do\nio.write(i, ';')\nend io.write('\\n')\nnosuch.field\nlink.max\n",
        )
        .expect("a reader");
    drop(input);
    let output = child.wait_with_output().expect("the command under test");
    assert!(output.status.success());
    let text = stdout(&output);
    assert!(
        text.contains("21\ttwo\n") && text.contains("1;2;") && text.contains("1024\n"),
        "{text}"
    );
    assert!(stderr(&output).contains("attempt to index global 'nosuch'"));
    let history =
        std::fs::read_to_string(folder.path().join("shortwire/snsh_history")).expect("a history");
    assert!(history.contains("link.max"));
}
