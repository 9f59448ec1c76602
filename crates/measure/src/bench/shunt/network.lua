-- The shunt of Snabb's issue 612, between models: `pcap, instances, driver` come from the bench.
--
-- On the far end of each cable a packetblaster replays 64.pcap. `instances` is 1 (what comes in on if1 goes out there) or
-- 2. `driver`: "native" is the script of that issue; "same" and "mixed" put an app in Lua into each direction, which does
-- to every packet what a driver in Lua does: writes a descriptor, and reads one. With "mixed" each instance declares the
-- type of its descriptors anew, as `lib.bounds_checked` did then.

local ffi = require("ffi")
local basic = require("apps.basic.basic_apps")
local Intel82599 = require("apps.intel.intel_app").Intel82599

local pcap, instances, driver = ...
instances = tonumber(instances)

local DESCRIPTORS = 512
local descriptor_t = ffi.typeof("struct { uint64_t address, status; }")

local function bounds_checked (count)
   local methods = { __index = function (ring, i)
      assert(i < count)
      return ring.slots[i]
   end }
   return ffi.metatype(ffi.typeof("struct { $ slots[$]; }", descriptor_t, count), methods)
end
local shared_t = bounds_checked(DESCRIPTORS)

Driver = { config = { mixed = { required = true } } }

function Driver:new (arg)
   local ring_t = arg.mixed and bounds_checked(DESCRIPTORS) or shared_t
   return setmetatable({ rxdesc = ring_t(), rdt = 0 }, { __index = Driver })
end

function Driver:push ()
   local input, output = self.input.rx, self.output.tx
   while not link.empty(input) do
      local p = link.receive(input)
      local descriptor = self.rxdesc[self.rdt]
      descriptor.address = ffi.cast("uintptr_t", packet.data(p))
      descriptor.status = packet.length(p)
      self.rdt = (self.rdt + 1) % DESCRIPTORS
      link.transmit(output, p)
   end
end

local c = config.new()

local function packetblaster (name, pciaddr)
   config.app(c, name, Intel82599, { pciaddr = pciaddr })
   config.app(c, name.."_file", require("apps.pcap.pcap").PcapReader, pcap)
   config.app(c, name.."_replay", basic.Repeater)
   config.link(c, name.."_file.output -> "..name.."_replay.input")
   config.link(c, name.."_replay.output -> "..name..".rx")
end

-- From one interface to another, maybe through an app in Lua.
local function join (from, to)
   if driver == "native" then
      config.link(c, from..".tx -> "..to..".rx")
   else
      config.app(c, from.."_lua", Driver, { mixed = driver == "mixed" })
      config.link(c, from..".tx -> "..from.."_lua.rx")
      config.link(c, from.."_lua.tx -> "..to..".rx")
   end
end

local other = instances == 2 and "if2" or "if1"
packetblaster("blaster1", "0000:82:00.1")
config.app(c, "if1", Intel82599, { pciaddr = "0000:82:00.0" })
join("if1", other)
if instances == 2 then
   packetblaster("blaster2", "0000:83:00.1")
   config.app(c, "if2", Intel82599, { pciaddr = "0000:83:00.0" })
   join("if2", "if1")
end
engine.configure(c)
engine.busywait = true
