-- An app in Lua between two of the engine's own: the loop in `push` is compiled, and no packet is copied.
--
--   shortwire snsh examples/passthrough.lua [SECONDS]
--   shortwire snsh --traces passthrough.svg examples/passthrough.lua

local basic = require("apps.basic.basic_apps")

local PassThrough = {}
PassThrough.__index = PassThrough

function PassThrough:new ()
   return setmetatable({}, self)
end

function PassThrough:push ()
   local input, output = self.input.input, self.output.output
   while not link.empty(input) do
      link.transmit(output, link.receive(input))
   end
end

local c = config.new()
config.app(c, "source", basic.Source, 60)
config.app(c, "pass", PassThrough)
config.app(c, "sink", basic.Sink)
config.link(c, "source.output -> pass.input")
config.link(c, "pass.output -> sink.input")
engine.configure(c)
engine.busywait = true
engine.main({ duration = tonumber((...)) or 1, report = { showlinks = true, showload = true } })
