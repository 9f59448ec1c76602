-- Cuts datagrams of 1400 bytes to an MTU of 576 and puts the pieces together again.
--
--   shortwire snsh examples/fragments.lua [SECONDS]

local frame = ("020000000002020000000001" .. "0800" .. "450005780001000040110000" .. "c0000201c6336401"
   .. "0009000705640000"):gsub("%x%x", function (digits) return string.char(tonumber(digits, 16)) end)
local p = packet.from_string(frame .. ("x"):rep(1372))

local Datagrams = {}

function Datagrams:new () return setmetatable({}, { __index = self }) end
function Datagrams:pull ()
   for _ = 1, engine.pull_npackets do link.transmit(self.output.output, packet.clone(p)) end
end

local c = config.new()
config.app(c, "source", Datagrams)
config.app(c, "sums", "Checksum", { mode = "fill" })
config.app(c, "cut", "Fragmenter", { mtu = 576 })
config.app(c, "join", "Reassembler", { datagrams = 64, timeout = 1 })
config.app(c, "sink", "Sink")
config.link(c, "source.output -> sums.input")
config.link(c, "sums.output -> cut.input")
config.link(c, "cut.output -> join.input")
config.link(c, "join.output -> sink.input")
engine.configure(c)
engine.main({ duration = tonumber((...)) or 1, report = { showlinks = true, showapps = true } })
