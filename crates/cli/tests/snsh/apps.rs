//! Apps written in Lua: packets, links, errors, changes, timers, copies.

use super::*;

#[test]
fn an_app_that_fails_stops_alone() {
    let code = r#"local basic = require("apps.basic.basic_apps")
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
engine.main({ duration = SECONDS, report = { showlinks = true, showapps = true } })
print("script goes on")
"#;
    let run = |seconds: &str| {
        let (_folder, path) = script(&code.replace("SECONDS", seconds));
        snsh(&[path.to_str().expect("UTF-8")])
    };
    let go_on = |output: &Output| sent(&stdout(output), "tee.b -> sink2.input") > 10 * 128;
    let output = longer(0.2, run, go_on);
    let (report, notices) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        notices.contains("app 'bad'")
            && notices.contains("script.lua:6: attempt to index field 'no_such'"),
        "{notices}"
    );
    assert_eq!(notices.matches("attempt to index").count(), 1, "{notices}");
    assert_eq!(sent(&report, "bad.output -> sink1.input"), 5 * 128);
    assert!(go_on(&output), "{report}");
    assert!(
        report.contains("Bad stops")
            && report.contains("script goes on")
            && report.contains("stopped by an error")
    );
}

#[test]
fn an_app_that_fails_while_it_is_linked_or_reports_is_named_and_costs_itself_only() {
    let (_folder, path) = script(
        r#"local basic = require("apps.basic.basic_apps")
local function class (t) t.new = function () return setmetatable({}, { __index = t }) end return t end
Linked = class { link = function () error("no link") end, push = function () end }
Left = class { link = function () end, unlink = function () error("no unlink") end, stop = function () error("no stop") end }
Told = class { push = function (self) link.discard(self.input.input) end, report = function () return nil + 1 end }
local function network (other)
   local c = config.new()
   config.app(c, "source", basic.Source, 60)
   config.app(c, "tee", basic.Tee)
   config.app(c, "told", Told)
   config.link(c, "source.output -> tee.input")
   config.link(c, "tee.a -> told.input")
   if other then
      config.app(c, "other", other)
      config.link(c, "tee.b -> other.input")
   end
   return c
end
print(pcall(engine.configure, network(Linked)))
engine.main({ duration = 0.05, report = { showapps = true } })
print(pcall(engine.configure, network(Left)))
print(pcall(engine.configure, network()))
engine.main({ duration = 0.05, report = { showlinks = true } })
"#,
    );
    let output = snsh(&[path.to_str().expect("UTF-8")]);
    let (report, notices) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{report}{notices}");
    for expected in [
        "false\tapp 'other': ",
        "script.lua:3: no link\n",
        "\ntrue\nfalse\t",
        "script.lua:4: no stop",
        "no unlink",
    ] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
    assert!(
        notices.contains("app 'told': ") && notices.contains("script.lua:5: attempt to perform"),
        "{notices}"
    );
    assert!(
        notices.contains("app 'other': ") && notices.contains("The app is stopped"),
        "{notices}"
    );
    assert!(sent(&report, "tee.a -> told.input") > 0, "{report}");
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
        local n, once, enough = 0, false, require("core.lib").timeout(20)
        timer.activate(timer.new("often", function () n = n + 1 end, 1e6, "repeating"))
        local late = timer.new("never", function () print("never") end, 1e6)
        timer.activate(late)
        timer.cancel(late)
        timer.activate(timer.new("once", function () engine.configure(config.new()) print("once") once = true end, 5e6))
        engine.main({ done = function () return n > 5 and once or enough() end, no_report = true })
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
