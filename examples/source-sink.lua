-- How fast can packets be made, copied once and freed again?
--
--   shortwire snsh examples/source-sink.lua [SECONDS [SIZE]]

local basic = require("apps.basic.basic_apps")
local seconds, size = ...

local c = config.new()
config.app(c, "source", basic.Source, tonumber(size) or 60)
config.app(c, "sink", basic.Sink)
config.link(c, "source.output -> sink.input")
engine.configure(c)
engine.busywait = true
engine.main({ duration = tonumber(seconds) or 1, report = { showlinks = true, showload = true } })
