-- Apps that make, discard and copy packets.

module(..., package.seeall)

local native = require("shortwire.classes").native

-- `config.app(c, "source", Source, 60)`: copies of one packet of that size.
Source = native("Source", function (size, name)
   if size ~= nil and type(size) ~= "number" and type(size) ~= "table" then
      error("app '"..name.."' (Source): the argument is the size of a packet in bytes, not a "..type(size), 0)
   end
   return type(size) == "table" and size or { size = size }
end)
Sink = native("Sink", function () end)
Join = native("Join", function () end)
Tee = native("Tee", function () end)
Split = native("Split", function () end)
Repeater = native("Repeater")
-- `config.app(c, "cut", Truncate, 100)`
Truncate = native("Truncate", function (n) return type(n) == "table" and n or { length = n } end)
-- `config.app(c, "some", Sample, 10)`: every tenth packet.
Sample = native("Sample", function (n) return type(n) == "table" and n or { every = n } end)
