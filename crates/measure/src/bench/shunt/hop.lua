-- Packets of 60 bytes through one app that looks at nothing: "lua" or "native", from the bench.

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
config.app(c, "hop", ... == "lua" and PassThrough or basic.Join)
config.app(c, "sink", basic.Sink)
config.link(c, "source.output -> hop.input")
config.link(c, "hop.output -> sink.input")
engine.configure(c)
engine.busywait = true
