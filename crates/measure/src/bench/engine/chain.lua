-- Packets of 60 bytes through so many apps in a row that look at nothing.

local basic = require("apps.basic.basic_apps")

local PassThrough = {}

function PassThrough:new () return setmetatable({}, { __index = PassThrough }) end

function PassThrough:push ()
   local input, output = self.input.input, self.output.output
   while not link.empty(input) do
      link.transmit(output, link.receive(input))
   end
end

local c = config.new()
config.app(c, "source", basic.Source, 60)
config.app(c, "sink", basic.Sink)
local from = "source"
for i = 1, tonumber(...) do
   local name = ("app%02d"):format(i)
   config.app(c, name, PassThrough)
   config.link(c, from..".output -> "..name..".input")
   from = name
end
config.link(c, from..".output -> sink.input")
engine.configure(c)
engine.busywait = true
