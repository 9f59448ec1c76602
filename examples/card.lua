-- Joins two Intel 82599 cards, driven from here and not by the kernel. Where no cards are named, models stand in for them.
--
--   shortwire snsh examples/card.lua [SECONDS [PCIADDR1 PCIADDR2]]

local Intel82599 = require("apps.intel.intel_app").Intel82599
local seconds, one, two = ...

local c = config.new()
config.app(c, "if1", Intel82599, { pciaddr = one or "model:0,packets=64" })
config.app(c, "if2", Intel82599, { pciaddr = two or "model:1,packets=64" })
config.link(c, "if1.tx -> if2.rx")
config.link(c, "if2.tx -> if1.rx")
engine.configure(c)
engine.busywait = true
engine.main({ duration = tonumber(seconds), report = { showlinks = true, showapps = true } })
