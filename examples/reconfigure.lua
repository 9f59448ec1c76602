-- A network that changes while it runs: a timer adds and removes a tap on the traffic, and the other links lose nothing.
--
--   shortwire snsh examples/reconfigure.lua [SECONDS]

local basic = require("apps.basic.basic_apps")

local function network (watched)
   local c = config.new()
   config.app(c, "source", basic.Source, 60)
   config.app(c, "tee", basic.Tee)
   config.app(c, "sink", basic.Sink)
   config.link(c, "source.output -> tee.input")
   config.link(c, "tee.output -> sink.input")
   if watched then
      config.app(c, "watcher", basic.Sink)
      config.link(c, "tee.copy -> watcher.input")
   end
   return c
end

local watched, changes = false, 0
engine.configure(network(watched))
timer.activate(timer.new("change", function ()
   watched = not watched
   changes = changes + 1
   engine.configure(network(watched))
end, 50e6, "repeating"))

engine.main({ duration = tonumber((...)) or 1, report = { showlinks = true } })
local sent = link.stats(engine.link_table["source.output -> tee.input"])
print(changes.." changes; "..(sent.rxpackets == sent.txpackets and "no packet lost" or "packets lost"))
