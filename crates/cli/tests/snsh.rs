//! Scripts as users run them: the command as a program, its output and its exit status.
#![cfg(feature = "lua")]

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

/// The number that stands before `sent on LINK` in a report.
fn sent(report: &str, link: &str) -> u64 {
    let line =
        report.lines().find(|line| line.contains(&format!("sent on {link} "))).unwrap_or_else(|| panic!("{report}"));
    line.split_whitespace().next().and_then(|n| n.replace(',', "").parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn every_example_runs() {
    for entry in std::fs::read_dir(example("")).expect("examples") {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.extension().is_none_or(|extension| extension != "lua") || name == "shunt.lua" {
            continue;
        }
        let output = snsh(&[path.to_str().expect("UTF-8"), "0.2"]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        assert_eq!(stderr(&output), "", "{name}");
        let report = stdout(&output);
        assert!(
            report.contains("link report:") && !report.contains("lost\n") || report.contains("no packet lost"),
            "{name}: {report}"
        );
        let moved = report.lines().filter(|line| line.contains("sent on")).all(|line| !line.trim().starts_with("0 "));
        assert!(moved, "{name}: {report}");
    }
}

#[test]
fn the_shunt_says_what_it_needs() {
    let output = snsh(&[&example("shunt.lua")]);
    assert!(stdout(&output).contains("usage: shunt.lua IF1 IF2"));
    assert_eq!(output.status.code(), Some(1));
    let output = snsh(&[&example("shunt.lua"), "no-such-if0", "no-such-if1", "0.1"]);
    assert!(stderr(&output).contains("app 'if1' (XDP): there is no interface \"no-such-if0\""), "{}", stderr(&output));
}

/// The scripts of the source document, as they stand there. Without the driver they get as far as `engine.configure`.
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

/// A driver in Lua under the name of the hardware's: what a script cannot tell from it runs as written.
const STAND_IN: &str = r#"
module(..., package.seeall)
Intel82599 = { config = { pciaddr = { required = true } } }
function Intel82599:new (conf) return setmetatable({ pciaddr = conf.pciaddr, n = 0 }, { __index = Intel82599 }) end
function Intel82599:pull ()
   local l = self.output.tx
   for i = 1, 64 do link.transmit(l, packet.resize(packet.allocate(), 60)) end
end
function Intel82599:push ()
   local l = self.input.rx
   while not link.empty(l) do packet.free(link.receive(l)) end
end
"#;

#[test]
fn the_scripts_of_the_source_document_name_what_is_missing() {
    for code in [SHUNT, TWICE] {
        let (_folder, path) = script(code);
        let output = snsh(&[path.to_str().expect("UTF-8")]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1));
        assert!(text.contains("script.lua:") && text.contains("app 'if1'") && text.contains("Intel82599"), "{text}");
    }
}

#[test]
fn the_scripts_of_the_source_document_run_as_written_with_a_driver_in_lua() {
    for code in [SHUNT, TWICE] {
        let (folder, path) = script(code);
        std::fs::write(folder.path().join("driver.lua"), STAND_IN).expect("a writable folder");
        // Only the module behind the name is replaced; the script is not touched but for its duration of ten seconds.
        let setup = format!(
            "package.preload['apps.intel.intel_app'] = loadfile('{0}/driver.lua')
             local main = engine.main
             engine.main = function (options) options.duration = 0.2; return main(options) end",
            folder.path().display()
        );
        let output = Command::new(env!("CARGO_BIN_EXE_shortwire"))
            .current_dir(folder.path())
            .args(["snsh", "-e", &setup])
            .arg(&path)
            .output()
            .expect("the command under test");
        let report = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(sent(&report, "if1.tx -> if2.rx") > 0 && sent(&report, "if2.tx -> if1.rx") > 0, "{report}");
        assert!(report.contains("(loss rate: 0%)"));
        let dump = std::fs::read_to_string(folder.path().join("dump")).expect("the trace dump");
        assert!(dump.contains("---- TRACE") && dump.contains("IR"), "{}", &dump[..dump.len().min(500)]);
    }
}

#[test]
fn bad_input_is_answered_with_what_to_do() {
    for (code, answer) in [
        ("x = = 1", "(command line):1: unexpected symbol near '='"),
        ("require('no.such')", "module 'no.such' not found"),
        ("config.app(config.new(), 'a', nil)", "app 'a': the class is nil: does the module export that name?"),
        ("config.app(config.new(), 'a b', {})", "'a b' is not a name of an app"),
        ("config.app(config.new(), 'a', 7)", "app 'a': the class is a number"),
        ("config.app(config.new(), 'a', {})", "the class has no function `new`"),
        ("config.app(nil, 'a', {})", "the first argument must be a configuration"),
        ("config.link(config.new(), 'a->b')", "'a->b' is not a link: write \"app.output -> app.input\""),
        ("engine.configure(3)", "engine.configure: the argument must be a configuration"),
        ("engine.main{ duration = 'x' }", "`duration` must be a number of seconds"),
        ("engine.main{ done = 3 }", "`done` must be a function"),
        ("local c = config.new() config.app(c, 'a', 'Sorce') engine.configure(c)", "did you mean 'Source'?"),
        ("local c = config.new() config.link(c, 'a.x -> b.y') engine.configure(c)", "no such app 'a'"),
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
        ("local p = packet.allocate() packet.free(p) packet.free(p)", "transmitted or freed already"),
        ("packet.shiftleft(packet.from_string('abc'), 4)", "cannot remove 4 bytes from a packet of 3"),
        ("packet.append(packet.allocate(), ('x'):rep(3000), 3000)", "packet too long: 3000 bytes, at most 1984"),
        ("local l = {} while true do l[#l + 1] = packet.allocate() end", "all packets are in use"),
    ] {
        let text = refuses(code);
        assert!(text.contains(answer), "{code}\n{text}");
    }
    let output = snsh(&["no-such-script.lua"]);
    assert!(stderr(&output).contains("cannot read 'no-such-script.lua'") && output.status.code() == Some(1));
    let output = snsh(&[]);
    assert!(stderr(&output).contains("nothing to run") && output.status.code() == Some(1));
    let output = snsh(&["--traces", "out.png", "x.lua"]);
    assert!(stderr(&output).contains(".svg, .dot, .json or .txt"));
}

#[test]
fn an_app_that_fails_stops_alone() {
    let (_folder, path) = script(
        r#"local basic = require("apps.basic.basic_apps")
Bad = {}
function Bad:new () return setmetatable({ n = 0 }, { __index = Bad }) end
function Bad:push ()
   self.n = self.n + 1
   if self.n > 5 then self.no_such.field = 1 end
   while not link.empty(self.input.input) do link.transmit(self.output.output, link.receive(self.input.input)) end
end
function Bad:stop () print("Bad stops") end
local c = config.new()
config.app(c, "source", basic.Source, 60)
config.app(c, "tee", basic.Tee)
config.app(c, "bad", Bad)
config.app(c, "sink1", basic.Sink)
config.app(c, "sink2", basic.Sink)
config.link(c, "source.output -> tee.input")
config.link(c, "tee.a -> bad.input")
config.link(c, "tee.b -> sink2.input")
config.link(c, "bad.output -> sink1.input")
engine.configure(c)
engine.main({ duration = 0.2, report = { showlinks = true, showapps = true } })
print("script goes on")
"#,
    );
    let output = snsh(&[path.to_str().expect("UTF-8")]);
    let (report, notices) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        notices.contains("app 'bad'") && notices.contains("script.lua:6: attempt to index field 'no_such'"),
        "{notices}"
    );
    assert_eq!(notices.matches("attempt to index").count(), 1, "{notices}");
    assert_eq!(sent(&report, "bad.output -> sink1.input"), 5 * 128);
    assert!(sent(&report, "tee.b -> sink2.input") > 10 * 128, "{report}");
    assert!(
        report.contains("Bad stops") && report.contains("script goes on") && report.contains("stopped by an error")
    );
}

#[test]
fn packets_are_what_the_engine_knows_of_them() {
    let hex = "require('core.lib').hexdump(require('ffi').string(p.data, p.length))";
    assert_eq!(
        prints(&format!(
            "local p = packet.from_string('abc') packet.prepend(p, 'xy', 2) packet.resize(p, 7) print({hex})"
        )),
        "78 79 61 62 63 00 00\n"
    );
    assert_eq!(
        prints(&format!(
            "local p = packet.from_string('abcdef') packet.shiftleft(p, 2) packet.append(p, 'Z', 1) p = packet.clone(p) print({hex})"
        )),
        "63 64 65 66 5A\n"
    );
    // More than the headroom, up to all of the slot, and back to empty.
    assert_eq!(
        prints(
            "local p = packet.from_string('abc') packet.shiftright(p, 1900) packet.resize(p, 1984) packet.shiftleft(p, 1984) print(p.length, packet.append(p, 'q', 1).length)"
        ),
        "0\t1\n"
    );
    let through = r#"
        local basic = require("apps.basic.basic_apps")
        local seen = {}
        local Make = { new = function (self) return setmetatable({ n = 0 }, { __index = self }) end }
        function Make:pull ()
           while self.n < 3000 do
              self.n = self.n + 1
              link.transmit(self.output.output, packet.from_string(("%04d"):format(self.n)))
              if self.n % 100 == 0 then return end
           end
        end
        local Check = { new = function (self) return setmetatable({}, { __index = self }) end }
        function Check:push ()
           while not link.empty(self.input.input) do
              local p = link.receive(self.input.input)
              seen[#seen + 1] = tonumber(require("ffi").string(p.data, p.length))
              packet.free(p)
           end
        end
        local c = config.new()
        config.app(c, "make", Make)
        config.app(c, "join", basic.Join)
        config.app(c, "check", Check)
        config.link(c, "make.output -> join.input")
        config.link(c, "join.output -> check.input")
        engine.configure(c)
        engine.main({ done = function () return #seen == 3000 end, no_report = true })
        for i, n in ipairs(seen) do assert(i == n) end
        local s = link.stats(engine.link_table["join.output -> check.input"])
        print(#seen, s.txpackets, s.rxpackets, s.rxbytes, s.txdrop)"#;
    assert_eq!(prints(through), "3000\t3000\t3000\t12000\t0\n");
}

#[test]
fn links_of_scripts_drop_and_count_when_full() {
    let code = r#"
        local Flood = { new = function (self) return setmetatable({}, { __index = self }) end }
        function Flood:pull () for i = 1, 1500 do link.transmit(self.output.output, packet.allocate()) end end
        local Lazy = { new = function (self) return setmetatable({}, { __index = self }) end, push = function () end }
        local c = config.new()
        config.app(c, "flood", Flood)
        config.app(c, "lazy", Lazy)
        config.link(c, "flood.output -> lazy.input")
        engine.configure(c)
        local l = engine.app_table.flood.output.output
        engine.main({ done = function () return engine.breaths.c > 0 end, no_report = true })
        local s = link.stats(l)
        print(link.full(l), link.nreadable(l), link.nwritable(l), s.txpackets, (s.txpackets + s.txdrop) % 1500)
        engine.stop()
        print(next(engine.app_table), link.nreadable(l))"#;
    assert_eq!(prints(code), "true\t1024\t0\t1024\t0\nnil\t1024\n");
}

#[test]
fn what_does_not_change_is_not_touched() {
    let code = r#"
        local log = {}
        local A = {}
        function A:new (arg) log[#log + 1] = "new "..arg.name return setmetatable({}, { __index = A }) end
        function A:reconfig (arg) log[#log + 1] = "reconfig "..arg.name end
        function A:stop () log[#log + 1] = "stop" end
        function A:link (direction, name) log[#log + 1] = direction.." "..name end
        local B = { new = function (self, arg) log[#log + 1] = "B "..tostring(arg) return setmetatable({}, { __index = self }) end }
        local function go (name, arg, linked)
           local c = config.new()
           config.app(c, "a", A, { name = name })
           config.app(c, "b", B, arg)
           if linked then config.link(c, "a.out -> b.in") end
           engine.configure(c)
           log[#log + 1] = "|"
        end
        go("x", 1, true) go("x", 1, true) go("y", 1, true) go("y", 2, true) go("y", 2, false)
        engine.stop()
        print(table.concat(log, ", "))"#;
    let expected = "new x, B 1, output out, |, |, reconfig y, |, B 2, |, output out, |, stop\n";
    assert_eq!(prints(code), expected);
}

#[test]
fn timers_run_between_breaths_and_can_configure() {
    let code = r#"
        local n = 0
        timer.activate(timer.new("often", function () n = n + 1 end, 1e6, "repeating"))
        local late = timer.new("never", function () print("never") end, 1e6)
        timer.activate(late)
        timer.cancel(late)
        timer.activate(timer.new("once", function () engine.configure(config.new()) print("once") end, 5e6))
        engine.main({ duration = 0.1, no_report = true })
        print(n > 5, pcall(engine.main, { duration = 0.01, no_report = true }))"#;
    assert_eq!(prints(code), "once\ntrue\ttrue\n");
    let busy = r#"
        local A = { new = function (self) return setmetatable({}, { __index = self }) end }
        function A:pull () engine.configure(config.new()) end
        local c = config.new() config.app(c, "a", A) engine.configure(c)
        engine.main({ duration = 0.05, no_report = true })"#;
    assert!(refuses(busy).contains("configure it from a timer"));
}

#[test]
fn each_instance_has_its_own_copy_of_the_code_unless_told_otherwise() {
    let code = r#"
        local protos, total = {}, 0
        local function helper () return 1 end
        A = {}
        function A:new () return setmetatable({}, { __index = A }) end
        function A:push () total = total + helper() protos[self.push] = true end
        function A:pull () self:push() end
        local c = config.new()
        config.app(c, "a1", A)
        config.app(c, "a2", A)
        engine.configure(c)
        engine.main({ done = function () return total > 10 end, no_report = true })
        local n = 0
        for _ in pairs(protos) do n = n + 1 end
        print(n, total > 10)"#;
    assert_eq!(prints(code), "2\ttrue\n");
    assert_eq!(stdout(&snsh(&["--shared", "-e", code])), "1\ttrue\n");
    assert_eq!(prints(&code.replace("A = {}", "A = { shared = true }")), "1\ttrue\n");
}

/// Findings of a run of the example with the mistake.
fn mistake(args: &[&str]) -> String {
    let output = snsh(&[&["--traces", "-"], args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn the_mistake_is_named_and_clean_code_is_not_accused() {
    let path = example("mistake.lua");
    let text = mistake(&["--shared", &path, "0.3"]);
    assert!(text.contains("instances if1 and if2 of Driver run different traces since `ring` has 2 ctypes"), "{text}");
    assert!(text.contains("mistake.lua:17 creates a new ctype every time"), "{text}");
    let text = mistake(&[&path, "0.3"]);
    assert!(text.contains("instances if1 and if2 of Driver run different traces"), "{text}");
    for args in
        [&["--shared", &path, "0.3", "clean"][..], &[&path, "0.3", "clean"], &[&example("protocols.lua"), "0.3"]]
    {
        let text = mistake(args);
        assert!(text.contains("findings: none"), "{args:?}\n{text}");
    }
}

#[test]
fn traces_are_written_in_every_form() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, expected) in
        [("t.svg", "</svg>"), ("t.dot", "digraph traces {"), ("t.json", "\"looping\": true"), ("t.txt", "looping")]
    {
        let file = folder.path().join(name);
        let output = snsh(&["--traces", file.to_str().expect("UTF-8"), &example("passthrough.lua"), "0.2"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = std::fs::read_to_string(&file).expect("the file of traces");
        assert!(text.contains(expected) && text.contains("passthrough.lua"), "{name}: {text}");
    }
    let output = snsh(&["--traces", "/no/such/folder/t.svg", "-e", "print('ran')"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    assert!(stderr(&output).contains("cannot write /no/such/folder/t.svg"));
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
    assert!(text.contains("21\ttwo\n") && text.contains("1;2;") && text.contains("1024\n"), "{text}");
    assert!(stderr(&output).contains("attempt to index global 'nosuch'"));
    let history = std::fs::read_to_string(folder.path().join("shortwire/snsh_history")).expect("a history");
    assert!(history.contains("link.max"));
}

/// Two cables, `a0 = a1` and `b0 = b1`; the shunt joins a1 and b0. Packets go in at a0 and are looked at behind b1.
const CABLES: &str = r#"
local RawSocket = require("apps.socket.raw").RawSocket
local _, how = ...
local class = how == "XDP" and require("apps.xdp.xdp").XDP or RawSocket
local function port (name) return how == "XDP" and { ifname = name } or name end
local Make = { new = function (self) return setmetatable({ n = 0 }, { __index = self }) end }
function Make:pull ()
   if self.n == 500 then return end
   self.n = self.n + 1
   local p = packet.resize(packet.allocate(), 60)
   p.data[12], p.data[13], p.data[14], p.data[15] = 0x88, 0xb5, self.n % 256, math.floor(self.n / 256)
   link.transmit(self.output.output, p)
end
local seen = 0
local Check = { new = function (self) return setmetatable({}, { __index = self }) end }
function Check:push ()
   while not link.empty(self.input.input) do
      local p = link.receive(self.input.input)
      if p.length == 60 and p.data[12] == 0x88 and p.data[13] == 0xb5 then
         seen = seen + 1
         assert(p.data[14] + 256 * p.data[15] == seen, "out of order")
      end
      packet.free(p)
   end
end
local c = config.new()
config.app(c, "make", Make)
config.app(c, "in", RawSocket, "a0")
config.app(c, "if1", class, port("a1"))
config.app(c, "if2", class, port("b0"))
config.app(c, "out", RawSocket, "b1")
config.app(c, "check", Check)
config.link(c, "make.output -> in.rx")
config.link(c, "if1.tx -> if2.rx")
config.link(c, "if2.tx -> if1.rx")
config.link(c, "out.tx -> check.input")
engine.configure(c)
local enough = require("core.lib").timeout(20)
engine.main({ done = function () return seen == 500 or enough() end, report = { showlinks = true } })
print("seen "..seen)
"#;

#[test]
fn the_shunt_joins_two_interfaces() {
    let (_folder, path) = script(CABLES);
    let cables = "set -e
        for c in a b; do ip link add ${c}0 type veth peer name ${c}1; done
        for i in a0 a1 b0 b1; do
            sysctl -qw net.ipv6.conf.$i.disable_ipv6=1 2>/dev/null || true; ip link set $i up
        done";
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| stdout(&output).trim() == "0");
    let unshared = |tail: &str| {
        let shell = format!("{cables}\n{tail}");
        // Root needs no user namespace, in which XDP would not be allowed.
        let user: &[&str] = if root { &[] } else { &["--user", "--map-root-user"] };
        Command::new("unshare").args(user).args(["--net", "sh", "-c", &shell]).output()
    };
    match unshared("true") {
        Ok(output) if output.status.success() => {}
        Ok(output) => return println!("skipped: no network namespace: {}", stderr(&output).trim()),
        Err(error) => return println!("skipped: no network namespace: {error}"),
    }
    for how in ["RawSocket", "XDP"] {
        let command = format!("exec {} snsh {} shunt {how}", env!("CARGO_BIN_EXE_shortwire"), path.display());
        let output = unshared(&command).expect("unshare worked before");
        if how == "XDP" && stderr(&output).contains("needs the capabilities") {
            println!("skipped: XDP needs rights that a user namespace has not");
            continue;
        }
        assert!(output.status.success(), "{how}: {}{}", stdout(&output), stderr(&output));
        assert!(stdout(&output).contains("seen 500"), "{how}: {}{}", stdout(&output), stderr(&output));
    }
}
