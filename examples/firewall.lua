-- Hosts behind one address: what they begin is let out, translated, and answered; web requests from outside go to one of them.
-- Needs root. Frames keep their MAC addresses: a Forwarder and Neighbours go beside it where the two sides are networks of their own.
--
--   shortwire snsh examples/firewall.lua SECONDS [INSIDE OUTSIDE]

local seconds, inside, outside = ...

local c = config.new()
config.app(c, "inside", inside and "XDP" or "Tap", { interface = inside or "tap0" })
config.app(c, "outside", outside and "XDP" or "Tap", { interface = outside or "tap1" })
config.app(c, "acl", "Acl", {
   rules = {
      { action = "deny", protocol = "tcp", ports = { 25 } },
      { action = "allow", from = "inside" },
      { action = "allow", protocol = "tcp", destination = "10.0.0.5/32", ports = { 8080 } },
   },
})
config.app(c, "nat", "Nat", {
   address = "203.0.113.7",
   forwards = { { protocol = "tcp", port = 80, to = "10.0.0.5", to_port = 8080 } },
})
config.link(c, "inside.tx -> acl.inside")
config.link(c, "acl.inside -> inside.rx")
config.link(c, "acl.outside -> nat.inside")
config.link(c, "nat.inside -> acl.outside")
config.link(c, "nat.outside -> outside.rx")
config.link(c, "outside.tx -> nat.outside")
engine.configure(c)
engine.main({ duration = tonumber(seconds) or 1, report = { showapps = true } })
