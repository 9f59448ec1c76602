//! Scripts that do not end by themselves, and scripts without memory.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{longer, script, snsh, stderr, stdout};

/// An app whose `pull` does this, and the network around it.
fn app(pull: &str) -> String {
    format!(
        "local A = {{}}
         function A:new () return setmetatable({{ t = {{}} }}, {{ __index = A }}) end
         function A:pull () {pull} end
         function A:stop () print('released') end
         local c = config.new()
         config.app(c, 'a', A)
         config.app(c, 's', require('apps.basic.basic_apps').Sink)
         config.link(c, 'a.output -> s.input')
         engine.configure(c)"
    )
}

/// A chain of apps that are entered by one call; the one in the middle does this with its packets.
fn chain(push: &str) -> String {
    format!(
        "local basic = require('apps.basic.basic_apps')
         local function class (push) local t = {{ push = push }} t.__index = t
            function t:new () return setmetatable({{}}, t) end function t:stop () print(self.appname .. ' released') end return t end
         local function pass (self) local i, o = self.input.input, self.output.output
            while not link.empty(i) do link.transmit(o, link.receive(i)) end end
         Pass, Middle = class(pass), class(function (self) {push} end)
         local c = config.new()
         for name, class in pairs {{ a = basic.Source, b = Pass, c = Middle, d = Pass, e = basic.Sink }} do config.app(c, name, class) end
         for _, spec in ipairs {{ 'a.output -> b.input', 'b.output -> c.input', 'c.output -> d.input', 'd.output -> e.input' }} do
            config.link(c, spec)
         end
         engine.configure(c)"
    )
}

/// Runs a script that prints `ready` and goes on for ever, and interrupts it there, once. Gives its
/// end, and what it said.
fn interrupted(code: &str) -> (ExitStatus, String) {
    let (_folder, path) = script(&format!("io.stdout:setvbuf('line')\n{code}"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_shortwire"));
    command.arg("snsh").arg(&path).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command under test");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("ready") {
        assert!(output.read_line(&mut said).expect("text") > 0, "{said}");
    }
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process");
    kill_process(pid, Signal::INT).expect("a child of ours");
    // One that goes on is ended by force: it would use a processor for ever.
    let late = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("a child of ours").is_none() && Instant::now() < late {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    output.read_to_string(&mut said).expect("text");
    let ended = child.wait_with_output().expect("its end");
    said += &stderr(&ended);
    (ended.status, said)
}

#[test]
fn one_interrupt_ends_a_loop_wherever_it_is() {
    let in_app = app("print('ready') while true do end");
    for code in [
        "print('ready') while true do end",
        "print('ready') while true do pcall(function () while true do end end) end",
        "print('ready') coroutine.wrap(function () while true do end end)()",
        &format!("{in_app} engine.main({{ duration = 1000 }})"),
        &format!(
            "{} engine.main({{ duration = 1000 }})",
            chain("print('ready') while true do end")
        ),
        "engine.main({ done = function () print('ready') while true do end end })",
        &format!("{} engine.main({{ duration = 1000 }})", app("print('ready')")),
        // Each run ends well, and the loop around it must end, too.
        "print('ready') while true do pcall(engine.main, { duration = 1, no_report = true }) end",
    ] {
        let (status, said) = interrupted(&format!("jit.off() {code}"));
        assert_eq!(status.code(), Some(130), "{code}\n{said}");
        assert!(!code.contains("'released'") || said.contains("released"), "{code}\n{said}");
        // The app in whose turn it was, and no other.
        assert!(!code.contains("Middle") || said.contains("app 'c': "), "{said}");
        assert!(!said.contains("app 'b'") && !said.contains("app 'd'"), "{said}");
    }
}

#[test]
fn one_interrupt_ends_a_compiled_loop_with_the_process() {
    let in_app = app("print('ready') local n = 0 while true do n = n + 1 end");
    let in_chain = chain("print('ready') local n = 0 while true do n = n + 1 end");
    for code in [
        "print('ready') while true do end",
        &format!("{in_chain} engine.main({{ duration = 1000 }})"),
        &format!("{in_app} engine.main({{ duration = 1000 }})"),
    ] {
        let (status, said) = interrupted(code);
        assert_eq!(status.signal(), Some(libc::SIGINT), "{code}\n{said}");
        assert!(said.contains("did not end"), "{said}");
    }
}

#[test]
fn a_script_without_memory_ends_in_an_error() {
    let fill = "local t = {} for i = 1, 1e9 do t[i] = { i, tostring(i) } end";
    let output = snsh(&["--memory", "48M", "-e", fill]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("not enough memory: its limit is 48 MiB"), "{output:?}");
    // What the system does not give: here because more may not be mapped.
    let mut command = Command::new("sh");
    let shell = "ulimit -v 500000 && exec \"$0\" snsh -e \"$1\"";
    let output = command.args(["-c", shell, env!("CARGO_BIN_EXE_shortwire"), fill]).output();
    let output = output.expect("a shell");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("the system gives no more"), "{output:?}");
}

#[test]
fn an_app_without_memory_ends_and_the_rest_goes_on() {
    let network = app("for i = 1, 10000 do self.t[#self.t + 1] = { i } end");
    let run = |seconds: &str| {
        let code = format!(
            "{network} engine.main({{ duration = {seconds}, no_report = true }}) collectgarbage() \
             print('on with', collectgarbage('count') < 40000)"
        );
        snsh(&["--memory", "48M", "-e", &code])
    };
    let output = longer(3.0, run, |output| !output.status.success());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("app 'a': the script has not enough memory"), "{output:?}");
    let said = stdout(&output);
    assert!(said.contains("released") && said.contains("on with\ttrue"), "{said}");
}

#[test]
fn memory_that_is_refused_can_be_caught() {
    let code = "print(pcall(string.rep, 'x', 2 ^ 30)) print(#string.rep('x', 1e6))";
    let output = snsh(&["--memory", "48M", "-e", code]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stdout(&output), "false\tnot enough memory\n1000000\n");
    // It is not the cause of what fails behind it.
    let code = "pcall(string.rep, 'x', 2 ^ 30) error('another thing')";
    let output = snsh(&["--memory", "48M", "-e", code]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("another thing"), "{output:?}");
    assert!(!stderr(&output).contains("memory"), "{output:?}");
    let network = app("pcall(string.rep, 'x', 2 ^ 30) error('another thing')");
    let code = format!("{network} engine.main({{ duration = 0.1, no_report = true }})");
    let output = snsh(&["--memory", "48M", "-e", &code]);
    assert!(stderr(&output).contains("another thing"), "{output:?}");
    assert!(!stderr(&output).contains("memory"), "{output:?}");
}
