-- The mistake that costs a driver most of its speed: a ctype per instance.
--
--   shortwire snsh --shared --traces - examples/mistake.lua          finds and names it
--   shortwire snsh --shared --traces - examples/mistake.lua clean    nothing to find
--
-- `ffi.metatype(ffi.typeof("struct ..."))` looks innocent, but declares a new type at every call. Code that was compiled
-- for the first instance does not fit the second, which leaves it by a side exit for every packet.

local ffi = require("ffi")
local basic = require("apps.basic.basic_apps")
local seconds, clean = 1, false
for _, word in ipairs { ... } do
   if word == "clean" then clean = true else seconds = tonumber(word) end
end

local methods = { __index = function (ring, i) return ring.slots[i % 16] end }
local function new_ring_type () return ffi.metatype(ffi.typeof("struct { uint32_t slots[16]; }"), methods) end
local ring_t = new_ring_type()

Driver = {}

function Driver:new ()
   local ring = clean and ring_t() or new_ring_type()()
   return setmetatable({ ring = ring, sum = 0 }, { __index = Driver })
end

function Driver:push ()
   local input, output = self.input.rx, self.output.tx
   while not link.empty(input) do
      local p = link.receive(input)
      self.sum = (self.sum + self.ring[p.length]) % 65536
      link.transmit(output, p)
   end
end

local c = config.new()
for _, n in ipairs { "1", "2" } do
   config.app(c, "source"..n, basic.Source, 60)
   config.app(c, "if"..n, Driver)
   config.app(c, "sink"..n, basic.Sink)
   config.link(c, "source"..n..".output -> if"..n..".rx")
   config.link(c, "if"..n..".tx -> sink"..n..".input")
end
engine.configure(c)
engine.busywait = true
engine.main({ duration = seconds, report = { showlinks = true } })
