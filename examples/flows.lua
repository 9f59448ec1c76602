-- Tells a collector of the flows in a capture; the datagrams to it go into a capture, too.
--
--   shortwire snsh examples/flows.lua IN.pcap OUT.pcap [SECONDS]

local input, output, seconds = ...

local c = config.new()
config.app(c, "reader", "PcapReader", { file = input })
config.app(c, "flows", "Ipfix", {
   idle = 0.1,
   collector = { ["local"] = "10.9.0.1", remote = "10.9.0.2", mac = "02:00:00:00:00:01", next_hop = "02:00:00:00:00:02" },
})
config.app(c, "sink", "Sink")
config.app(c, "writer", "PcapWriter", { file = output })
config.link(c, "reader.output -> flows.input")
config.link(c, "flows.output -> sink.input")
config.link(c, "flows.export -> writer.input")
engine.configure(c)
engine.main({ duration = tonumber(seconds) or 1, report = { showlinks = true, showapps = true } })
