-- Links: the engine's own rings, read and written by compiled code without a call into the engine.
--
-- A packet in a ring is a handle of 16 bytes. `receive` moves it to the place of its packet in the array of views, where
-- it stays valid as long as the packet lives, and returns the address; `transmit` moves it back.

module(..., package.seeall)

local ffi = require("ffi")
local bit = require("bit")
local layout = require("core.memory_layout")
local packet = require("core.packet")

local band, rshift, tobit, cast = bit.band, bit.rshift, bit.tobit, ffi.cast
local stats_t, counter_t = ffi.typeof("struct link_stats"), layout.counter_t
local packet_t, handle_t, HELD = layout.packet_t, layout.handle_t, layout.HELD
local free_packet = packet.free
local host = require("shortwire.host")

max = layout.RING
-- Locals, since these are constants for the compiler.
local MAX, MASK, FAR = layout.RING, layout.RING - 1, layout.FAR
local ARENA, VIEWS = layout.ARENA, layout.VIEWS

function empty (l) return l.read == l.write end
function full (l) return tobit(l.write - l.read) >= MAX end
function nreadable (l) return tobit(l.write - l.read) end
function nwritable (l) return MAX - tobit(l.write - l.read) end

-- The cursors of a link that is never emptied go back by whole rings: they would run over, and packets be counted wrong.
local function go_back (l, read)
   local rings = band(read, bit.bnot(MASK))
   l.before.c = l.before.c + rings
   l.read, l.write = read - rings, l.write - rings
end

-- The packet that waits longest; nil if there is none.
function receive (l)
   local read = l.read
   if read == l.write then return nil end
   local from = l.ring + band(read, MASK)
   local data, rest = from.data, from.rest
   read = tobit(read + 1)
   -- A link that was emptied starts again at its first place, so that few lines of the cache are in use.
   if read == l.write then
      local before = l.before
      before.c = before.c + read
      l.read, l.write = 0, 0
   elseif read < FAR then
      l.read = read
   else
      go_back(l, read)
   end
   -- The view is written last: with no other store in between, what a `transmit` that follows reads of it is known to the
   -- compiler.
   local view = VIEWS + band(rshift(data - ARENA, 6), 0xffffffffffffffe0ULL)
   local to = cast(handle_t, view)
   to.data, to.rest = data, rest
   local p = cast(packet_t, view)
   p.held = HELD
   return p
end

-- The packet that waits longest, which stays there: look at it, but do not keep it. nil if there is none.
function front (l)
   if l.read == l.write then return nil end
   return cast(packet_t, l.ring + band(l.read, MASK))
end

-- Hands a packet on; a full link frees and counts it.
function transmit (l, p)
   local write = l.write
   if tobit(write - l.read) >= MAX then
      local txdrop = l.txdrop
      txdrop.c = txdrop.c + 1
      return free_packet(p)
   end
   if p.held ~= HELD then
      error("this packet was transmitted or freed already: it belongs to somebody else now", 2)
   end
   p.held = 0
   local from, to = cast(handle_t, p), l.ring + band(write, MASK)
   local rest = from.rest
   to.data, to.rest = from.data, rest
   -- The length is the first of four numbers of 16 bits.
   local txbytes = l.txbytes
   txbytes.c = txbytes.c + band(rest, 0xffffULL)
   l.write = tobit(write + 1)
end

-- Moves up to `most` packets from one link to another at the engine's own speed, and returns how many.
function forward (from, to, most) return layout.forward(from, to, most or max) end

-- Frees all that wait, and returns how many.
function discard (l) return layout.discard(l) end

-- What the counters of a link are now. The engine keeps only those of them that the others do not follow from.
local function counters (l)
   local now = ffi.new(stats_t)
   layout.stats(l, now)
   return now
end

-- `link.stats.txpackets` and its like, for `counter.read`: what it is whenever it is read.
local Counter = {}
function Counter:__index (key)
   if key ~= "c" then return nil end
   local now = counters(self.link)
   local value = now[self.name].c
   return value
end
function Counter:__tostring () return tostring(counter_t(self.c)) end

local Counters = {}
function Counters:__index (name) return setmetatable({ link = self.link, name = name }, Counter) end

ffi.metatype("struct link", {
   __index = function (l, key)
      if key == "stats" then return setmetatable({ link = l }, Counters) end
      error("a link has no '"..tostring(key).."'", 2)
   end,
})

-- Counters as numbers.
function stats (l)
   local s = counters(l)
   return {
      txpackets = tonumber(s.txpackets.c), txbytes = tonumber(s.txbytes.c), txdrop = tonumber(s.txdrop.c),
      rxpackets = tonumber(s.rxpackets.c), rxbytes = tonumber(s.rxbytes.c),
   }
end

-- A link of nobody's, for a test of an app without an engine: `app.input.input = link.new("in")`. What is left in it goes with it.
function new () return ffi.gc(cast(layout.link_t, host.new_link()), layout.release_link) end
function free (l) layout.discard(l) end
