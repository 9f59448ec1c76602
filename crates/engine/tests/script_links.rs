//! Links as scripts use them without an app.
#![cfg(feature = "lua")]

use engine::lua::{Session, Settings};

fn run(code: &str) {
    Session::new(Settings::default()).unwrap().run_code(code, &[]).unwrap();
}

/// One that is never emptied for longer than its cursors can count.
#[test]
fn cursors_go_back() {
    run(r#"
        local l = link.new("in")
        local start = 2^30 - 1024
        l.read, l.write = start, start
        local function send (n)
           local p = packet.allocate()
           packet.resize(p, 60 + n % 7)
           p.data[0] = n % 251
           link.transmit(l, p)
        end
        send(0)
        for n = 1, 5000 do
           send(n)
           local p = link.receive(l)
           assert(p.length == 60 + (n - 1) % 7 and p.data[0] == (n - 1) % 251)
           packet.free(p)
           assert(link.nreadable(l) == 1)
        end
        assert(l.read < 10000)
        local s = link.stats(l)
        assert(s.txpackets == start + 5001 and s.rxpackets == start + 5000 and s.txdrop == 0)
        assert(s.txbytes - s.rxbytes == 60 + 5000 % 7)
    "#);
}

/// What a script keeps of them counts on, as in Snabb.
#[test]
fn counters_are_read_by_name() {
    run(r#"
        local counter = require("core.counter")
        local l = link.new("in")
        local sent, received, bytes = l.stats.txpackets, l.stats.rxpackets, l.stats.rxbytes
        for round = 0, 9 do
           for _ = 1, 1100 do
              local p = packet.allocate()
              packet.resize(p, 100)
              link.transmit(l, p)
           end
           for _ = 1, 1024 do packet.free(link.receive(l)) end
           assert(link.empty(l))
           collectgarbage()
           assert(counter.read(sent) == 1024 * (round + 1) and counter.read(received) == counter.read(sent))
           assert(counter.read(bytes) == 100 * counter.read(sent))
           assert(counter.read(l.stats.txdrop) == 76 * (round + 1))
        end
        assert(tostring(sent) == "10,240", tostring(sent))
        local s = link.stats(l)
        assert(s.rxpackets == 10240 and s.rxbytes == 1024000 and s.txdrop == 760)
        assert(not pcall(function () return l.stats.nonesuch.c end))
        assert(not pcall(function () return l.nonesuch end))
    "#);
}
