-- As replay.toml, in a script.
local Intel82574 = require("apps.intel.intel_app").Intel82574
local PcapReader = require("apps.pcap.pcap").PcapReader

local c = config.new()
config.app(c, "a", Intel82574, { pciaddr = "00:04.0" })
config.app(c, "in", PcapReader, "/net/in.pcap")
config.link(c, "in.output -> a.rx")
engine.configure(c)
local sent = engine.app_table.a.input.rx
engine.main({ done = function () return link.stats(sent).rxpackets >= 1000 end, report = { showapps = true } })
engine.stop()
