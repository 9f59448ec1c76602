//! Apps in Lua that are entered by one call do what they do one by one.
#![cfg(feature = "lua")]

use engine::Options;
use engine::lua::{Evaluated, Session, Settings};
use proptest::prelude::*;

/// Classes that networks are made of, and functions to make and run one. Everything that goes through is
/// numbered, so that order and contents can be told at the end.
const SCRIPT: &str = r#"
local ffi = require("ffi")
local basic = require("apps.basic.basic_apps")
-- Instances, for as long as somebody has them.
kept = setmetatable({}, { __mode = "k" })
local function class (t)
   t.__index = t
   function t:new (arg)
      local object = setmetatable({ arg = arg or {}, n = 0 }, self)
      kept[object] = true
      return object
   end
   return t
end
local function number (p) return ffi.cast("uint32_t *", p.data) end
log = {}

-- As many packets as it was told, and then nothing.
Numbers = class { sent = 0 }
function Numbers:pull ()
   local output = self.output.output
   for _ = 1, math.min(self.arg.batch or 100, self.arg.count - self.n) do
      self.n = self.n + 1
      local p = packet.allocate()
      packet.resize(p, 60 + self.n % 7)
      number(p)[0] = self.n
      link.transmit(output, p)
   end
end

Pass = class {}
function Pass:push ()
   local input, output = self.input.input, self.output.output
   while not link.empty(input) do link.transmit(output, link.receive(input)) end
end

-- By number, and a part of it to another output.
Sort = class {}
function Sort:push ()
   local input, a, b = self.input.input, self.output.output, self.output.other
   for _ = 1, link.nreadable(input) do
      local p = link.receive(input)
      self.n = self.n + 1
      if b and number(p)[0] % self.arg.every == 0 then link.transmit(b, p) else link.transmit(a, p) end
   end
end

Drop = class {}
function Drop:push ()
   local input, output = self.input.input, self.output.output
   while not link.empty(input) do
      local p = link.receive(input)
      self.n = self.n + 1
      if self.n % self.arg.every == 0 then packet.free(p) else link.transmit(output, p) end
   end
end

Change = class { shm = { changed = "counter" } }
function Change:push ()
   local input, output = self.input.input, self.output.output
   while not link.empty(input) do
      local p = link.receive(input)
      number(p)[1] = number(p)[1] * 31 + self.arg.every
      self.shm.changed.c = self.shm.changed.c + 1
      link.transmit(output, p)
   end
end

Double = class {}
function Double:push ()
   local input, output = self.input.input, self.output.output
   while not link.empty(input) do
      local p = link.receive(input)
      if number(p)[0] % self.arg.every == 0 then link.transmit(output, packet.clone(p)) end
      link.transmit(output, p)
   end
end

-- Not a loop: one packet of each turn, and what it cannot take waits.
One = class {}
function One:push ()
   if not link.empty(self.input.input) then link.transmit(self.output.output, link.receive(self.input.input)) end
end

-- By port, through a table of functions.
Ports = class {}
function Ports:link ()
   self.push_link = { input = function (self, l)
      while not link.empty(l) do link.transmit(self.output.output, link.receive(l)) end
   end }
end

-- Ends in an error at a packet.
Fail = class {}
function Fail:push ()
   local input, output = self.input.input, self.output.output
   while not link.empty(input) do
      local p = link.receive(input)
      self.n = self.n + 1
      if self.n == self.arg.at then packet.free(p) error("no more of "..self.n) end
      link.transmit(output, p)
   end
end
function Fail:stop () log[#log + 1] = self.appname.." stops" end

-- In its tick, which is not taken with others.
Late = class {}
function Late:push () Pass.push(self) self.n = self.n + 1 end
function Late:tick () if self.n > 20 then error("late") end end
Late.stop = Fail.stop

-- What came, and in which order.
Last = class {}
function Last:push ()
   local input = self.input.input
   while not link.empty(input) do
      local p = link.receive(input)
      self.n = self.n + 1
      self.sum = ((self.sum or 7) * 33 + tonumber(number(p)[0]) * 5 + tonumber(number(p)[1]) % 65521 + p.length) % 2 ^ 40
      packet.free(p)
   end
end

local NATIVE = { Join = basic.Join, Tee = basic.Tee }

-- `apps` is a list of { name, class, arg }, `links` one of names.
function network (apps, links)
   local c = config.new()
   for _, app in ipairs(apps) do config.app(c, app[1], _G[app[2]] or NATIVE[app[2]], app[3]) end
   for _, spec in ipairs(links) do config.link(c, spec) end
   engine.configure(c)
end

local function moved ()
   local sum = 0
   for _, l in pairs(engine.link_table) do sum = sum + link.stats(l).rxpackets + link.stats(l).txdrop end
   return sum
end

-- Until nothing moves any more.
function run ()
   engine.busywait = true
   repeat
      local before = moved()
      engine.main { duration = 0.01, no_report = true }
   until moved() == before
end

function result ()
   local lines = {}
   for spec, l in require("core.lib").sorted(engine.link_table) do
      local s = link.stats(l)
      lines[#lines + 1] = ("%s %d %d %d %d %d"):format(spec, s.txpackets, s.txbytes, s.txdrop, s.rxpackets, s.rxbytes)
   end
   for name, app in require("core.lib").sorted(engine.app_table) do
      local changed = not app.kind and app.shm and app.shm.changed
      lines[#lines + 1] = ("%s %s %s %s"):format(name, app.n, app.sum, changed and tonumber(changed.c))
   end
   table.sort(log)
   return table.concat(lines, "\n").."\n"..table.concat(log, "\n")
end
"#;

fn session(together: bool) -> Session {
    let options = Options { together, ..Options::default() };
    let session = Session::new(Settings { engine: options, ..Settings::default() });
    let session = session.expect("an interpreter");
    runs(&session, SCRIPT);
    session
}

fn runs(session: &Session, code: &str) {
    if let Err(error) = session.run_code(code, &[]) {
        panic!("{code}\n{error}");
    }
}

fn value(session: &Session, code: &str) -> String {
    match session.evaluate(code) {
        Ok(Evaluated::Values(values)) => values.join("\t"),
        Ok(Evaluated::Incomplete) => panic!("{code}: incomplete"),
        Err(error) => panic!("{code}: {error}"),
    }
}

/// What a script leads to, together and one by one.
fn both(code: &str) -> [String; 2] {
    [true, false].map(|together| {
        let session = session(together);
        runs(&session, code);
        value(&session, "result()")
    })
}

/// A chain, and beside it a second one that takes what a sorting app sends there.
fn chain(kinds: &[(usize, u32)], packets: u32, batch: u32) -> String {
    const KINDS: [&str; 11] = [
        "Pass", "Sort", "Drop", "Change", "Double", "One", "Ports", "Fail", "Join", "Tee", "Change",
    ];
    let mut apps = format!("{{ 'source', 'Numbers', {{ count = {packets}, batch = {batch} }} }},");
    let (mut links, mut from, mut branches) =
        (String::new(), "source.output".to_string(), String::new());
    for (number, (kind, every)) in kinds.iter().enumerate() {
        let (name, kind) = (format!("app{number:02}"), KINDS[*kind]);
        let argument = match kind {
            "Join" | "Tee" => "nil".to_string(),
            _ => format!("{{ every = {every}, at = {} }}", every * 97),
        };
        apps += &format!("{{ '{name}', '{kind}', {argument} }},");
        links += &format!("'{from} -> {name}.input',");
        from = format!("{name}.output");
        if matches!(kind, "Sort" | "Tee") {
            branches += &format!("'{name}.other -> side{number:02}.input',");
            apps += &format!("{{ 'side{number:02}', 'Last' }},");
        }
    }
    apps += "{ 'zlast', 'Last' }";
    format!("network({{ {apps} }}, {{ {links} {branches} '{from} -> zlast.input' }}) run()")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn networks_lead_to_the_same(
        kinds in prop::collection::vec((0usize..11, 2u32..9), 1..14),
        packets in prop_oneof![1u32..200, 10_000u32..20_000],
        batch in 1u32..130,
    ) {
        let [together, one_by_one] = both(&chain(&kinds, packets, batch));
        prop_assert_eq!(together, one_by_one);
    }
}

/// More than one call takes, and more variables than a function may have from outside.
#[test]
fn long_chains_are_entered_piece_by_piece() {
    let kinds: Vec<(usize, u32)> = (0..150).map(|number| ([0, 3][number % 2], 3)).collect();
    let [together, one_by_one] = both(&chain(&kinds, 5000, 100));
    assert_eq!(together, one_by_one);
    assert!(together.contains("\nzlast 5000 "), "{together}");
}

#[test]
fn an_error_in_the_middle_ends_one_app_and_no_turn_is_lost() {
    let [together, one_by_one] = both(
        "network({ { 'a', 'Numbers', { count = 3000 } }, { 'b', 'Pass' }, { 'c', 'Fail', { at = 1234 } },
                   { 'd', 'Change', { every = 3 } }, { 'e', 'Last' } },
                 { 'a.output -> b.input', 'b.output -> c.input', 'c.output -> d.input', 'd.output -> e.input' })
         run()",
    );
    assert_eq!(together, one_by_one);
    for line in ["b.output -> c.input 3000 ", "c.output -> d.input 1233 ", "\ne 1233 ", "c stops"] {
        assert!(together.contains(line), "{line}: {together}");
    }
}

/// A chain of five, whose third has an argument that changes, and whose fourth fails.
const FIVE: &str = "
    function five (count, every, at)
       network({ { 'a', 'Numbers', { count = count } }, { 'b', 'Pass' }, { 'c', 'Change', { every = every } },
                 { 'd', 'Fail', { at = at } }, { 'e', 'Last' } },
               { 'a.output -> b.input', 'b.output -> c.input', 'c.output -> d.input', 'd.output -> e.input' })
    end";

#[test]
fn an_app_that_is_changed_starts_again_alone() {
    let run = |together| {
        let session = session(together);
        runs(&session, FIVE);
        runs(&session, "five(2000, 3, -1) run() b, c = engine.app_table.b, engine.app_table.c");
        runs(&session, "five(4000, 5, -1) run()");
        assert_eq!(
            value(&session, "b == engine.app_table.b, c == engine.app_table.c"),
            "true\tfalse"
        );
        value(&session, "result()")
    };
    let [together, one_by_one] = [true, false].map(run);
    assert_eq!(together, one_by_one);
    assert!(together.contains("d.output -> e.input 6000 "), "{together}");
}

#[test]
fn an_app_that_failed_starts_with_the_next_configuration() {
    let run = |together| {
        let session = session(together);
        runs(&session, FIVE);
        runs(&session, "five(3000, 3, 700) run() before = result() five(4000, 3, 701) run()");
        value(&session, "before..'\\n'..result()")
    };
    let [together, one_by_one] = [true, false].map(run);
    assert_eq!(together, one_by_one);
    assert_eq!(together.matches("d stops").count(), 3, "{together}");
}

/// An app that ends outside of its turn is not called any more, and its neighbours go on.
#[test]
fn an_app_that_fails_in_its_tick_ends_alone() {
    let session = session(true);
    runs(
        &session,
        "network({ { 'a', 'Numbers', { count = 1e9 } }, { 'b', 'Late' }, { 'c', 'Pass' }, { 'd', 'Last' } },
            { 'a.output -> b.input', 'b.output -> c.input', 'c.output -> d.input' })
         engine.busywait = true
         for _ = 1, 100 do
            engine.main { duration = 0.1, no_report = true }
            if log[1] then break end
         end
         pushes, before = engine.app_table.b.n, link.stats(engine.link_table['a.output -> b.input'])
         engine.main { duration = 0.1, no_report = true }
         after = link.stats(engine.link_table['a.output -> b.input'])",
    );
    assert_eq!(
        value(&session, "log[1], #log, pushes > 20, engine.app_table.b.n == pushes"),
        "b stops\t1\ttrue\ttrue"
    );
    assert_eq!(value(&session, "after.rxpackets > before.rxpackets, after.txdrop"), "true\t0");
    assert_eq!(session.failures(), 1);
}

/// Nothing of an app that was stopped is kept by traces or calls of its neighbours.
#[test]
fn what_a_stopped_app_had_is_given_back() {
    let session = session(true);
    runs(&session, FIVE);
    runs(
        &session,
        "for every = 1, 20 do
            five(1e9, every, -1)
            engine.main { duration = 0.02, no_report = true }
         end
         collectgarbage() collectgarbage()
         living = 0
         for _ in pairs(kept) do living = living + 1 end",
    );
    assert_eq!(value(&session, "living"), "5");
}

/// Time and counters of each app, and of each link.
#[test]
fn what_is_counted_is_counted_by_app() {
    let session = session(true);
    runs(
        &session,
        "network({ { 'a', 'Numbers', { count = 100000 } }, { 'b', 'Pass' }, { 'c', 'Change', { every = 3 } }, { 'd', 'Last' } },
            { 'a.output -> b.input', 'b.output -> c.input', 'c.output -> d.input' }) run()",
    );
    session.with_engine(|engine| {
        for (app, nanos) in engine.app_times() {
            assert!(nanos > 0, "{app}");
        }
        assert_eq!(engine.app_times().count(), 4);
        for (link, stats) in engine.links() {
            assert_eq!((stats.txpackets, stats.rxpackets), (100_000, 100_000), "{link}");
        }
        let mut counters = [0];
        engine.apps().find(|(name, _)| *name == "c").expect("it runs").1.counters(&mut counters);
        assert_eq!(counters, [100_000]);
    });
}
