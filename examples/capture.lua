-- Writes packets into a capture file, then plays that file over and over.
--
--   shortwire snsh examples/capture.lua [SECONDS [FILE.pcap]]

local basic = require("apps.basic.basic_apps")
local pcap = require("apps.pcap.pcap")
local seconds, file = ...
local name = file or os.tmpname()

if not file then
   local c = config.new()
   config.app(c, "source", basic.Source, 60)
   config.app(c, "sample", basic.Sample, 1000)
   config.app(c, "capture", pcap.PcapWriter, name)
   config.link(c, "source.output -> sample.input")
   config.link(c, "sample.output -> capture.input")
   engine.configure(c)
   local written = engine.app_table.capture.input.input
   engine.main({ done = function () return link.stats(written).rxpackets >= 1000 end, no_report = true })
   engine.stop()
end

local c = config.new()
config.app(c, "playback", pcap.PcapReader, name)
config.app(c, "repeater", basic.Repeater)
config.app(c, "sink", basic.Sink)
config.link(c, "playback.output -> repeater.input")
config.link(c, "repeater.output -> sink.input")
engine.configure(c)
engine.main({ duration = tonumber(seconds) or 1, report = { showlinks = true } })
if not file then os.remove(name) end
