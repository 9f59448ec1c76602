-- Looks into packets: counts what is UDP, and throws the rest away. Shows a schema, own counters, structs and a report.
--
--   shortwire snsh examples/protocols.lua [SECONDS]

local ffi = require("ffi")
local lib = require("core.lib")
local counter = require("core.counter")
local basic = require("apps.basic.basic_apps")

-- Declared once, for all instances: see mistake.lua for what happens otherwise.
local frame_t = ffi.typeof([[struct {
   uint8_t destination[6], source[6];
   uint16_t type;
   uint8_t version, tos;
   uint16_t length, id, fragment;
   uint8_t ttl, protocol;
   uint16_t checksum;
   uint8_t source_ip[4], destination_ip[4];
} __attribute__((packed)) *]])
local IPV4, UDP = lib.htons(0x0800), 17

-- Packets with these addresses, half of them UDP.
Generator = { config = { size = { default = 60 } } }

function Generator:new (conf)
   local frames = {}
   for i, protocol in ipairs { 17, 6 } do
      local p = packet.resize(packet.allocate(), conf.size)
      local frame = ffi.cast(frame_t, p.data)
      frame.type, frame.version, frame.ttl, frame.protocol = IPV4, 0x45, 64, protocol
      frames[i] = p
   end
   return setmetatable({ frames = frames }, { __index = Generator })
end

function Generator:pull ()
   local output, frames = self.output.output, self.frames
   for i = 1, engine.pull_npackets do
      link.transmit(output, packet.clone(frames[i % 2 + 1]))
   end
end

function Generator:stop ()
   for _, p in ipairs(self.frames) do packet.free(p) end
end

OnlyUDP = { shm = { udp = { counter }, other = { counter } } }

function OnlyUDP:new ()
   return setmetatable({}, { __index = OnlyUDP })
end

function OnlyUDP:push ()
   local input, output, shm = self.input.input, self.output.output, self.shm
   local udp, other = 0, 0
   while not link.empty(input) do
      local p = link.receive(input)
      local frame = ffi.cast(frame_t, p.data)
      if p.length >= 34 and frame.type == IPV4 and frame.protocol == UDP then
         udp = udp + 1
         link.transmit(output, p)
      else
         other = other + 1
         packet.free(p)
      end
   end
   shm.udp.c, shm.other.c = shm.udp.c + udp, shm.other.c + other
end

function OnlyUDP:report ()
   print(("  %s UDP, %s other"):format(lib.comma_value(self.shm.udp.c), lib.comma_value(self.shm.other.c)))
end

local c = config.new()
config.app(c, "generator", Generator, { size = 64 })
config.app(c, "udp", OnlyUDP)
config.app(c, "sink", basic.Sink)
config.link(c, "generator.output -> udp.input")
config.link(c, "udp.output -> sink.input")
engine.configure(c)
engine.main({ duration = tonumber((...)) or 1, report = { showlinks = true, showapps = true } })
