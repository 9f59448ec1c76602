//! The shunt on real interfaces, in a network namespace.

use super::*;

/// Two cables, `a0 = a1` and `b0 = b1`; the shunt joins a1 and b0. Packets go in at a0 and are
/// looked at behind b1.
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
    let root =
        Command::new("id").arg("-u").output().is_ok_and(|output| stdout(&output).trim() == "0");
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
        let command =
            format!("exec {} snsh {} shunt {how}", env!("CARGO_BIN_EXE_shortwire"), path.display());
        let output = unshared(&command).expect("unshare worked before");
        if how == "XDP" && stderr(&output).contains("needs the capabilities") {
            println!("skipped: XDP needs rights that a user namespace has not");
            continue;
        }
        assert!(output.status.success(), "{how}: {}{}", stdout(&output), stderr(&output));
        assert!(
            stdout(&output).contains("seen 500"),
            "{how}: {}{}",
            stdout(&output),
            stderr(&output)
        );
    }
}
