-- Packets, as scripts see them: `p.data`, `p.length`. A packet that was received or allocated belongs to the script until
-- it is transmitted or freed; after that it must not be touched. Doing either twice is an error.

module(..., package.seeall)

local ffi = require("ffi")
local bit = require("bit")
local layout = require("core.memory_layout")

local band, lshift, rshift, cast, copy, fill = bit.band, bit.lshift, bit.rshift, ffi.cast, ffi.copy, ffi.fill
local pool, packet_t, HELD = layout.pool, layout.packet_t, layout.HELD
local SLOT, CONTROL = layout.SLOT, layout.CONTROL
local memmove = ffi.C.memmove
local uint64_t, bytes_t = ffi.typeof("uint64_t"), ffi.typeof("uint8_t *")
local ARENA, VIEWS = layout.ARENA, layout.VIEWS

max_payload = layout.MAX_LENGTH
preferred_headroom = 256 - CONTROL
default_headroom, packet_alignment = preferred_headroom, SLOT

-- The slot of a packet. A view has 32 bytes, a slot 2048.
local function slot_of (p)
   return ARENA + lshift(cast(uint64_t, p) - VIEWS, 6)
end

-- Bytes from the start of the slot to the data.
local function offset (p)
   return tonumber(band(cast(uint64_t, p.data), SLOT - 1ULL))
end

local function check (p)
   if p.held ~= HELD then
      error("this packet was transmitted or freed already: it belongs to somebody else now", 3)
   end
end

function allocate ()
   if pool.count == 0 and not layout.refill() then
      error("all packets are in use: free those that are not needed, or give snsh more with --packets", 2)
   end
   local count = pool.count - 1
   pool.count = count
   local slot = pool.free[count]
   local p = cast(packet_t, VIEWS + rshift(slot - ARENA, 6))
   -- As the engine does: slots that would meet in the same sets of the cache start at different lines.
   p.data = cast(bytes_t, slot) + 256 + band(rshift(slot, 12), 3ULL) * 64
   p.length, p.flags, p.checksum_start, p.checksum_offset = 0, 0, 0, 0
   p.held = HELD
   return p
end

function free (p)
   check(p)
   p.held = 0
   local count = pool.count
   if count == pool.full then
      layout.give_back()
      count = pool.count
   end
   pool.free[count] = slot_of(p)
   pool.count = count + 1
   pool.frees = pool.frees + 1
   pool.freebytes = pool.freebytes + p.length
end

-- Moves the data so that `front` bytes fit before it and `back` behind it.
local function make_room (p, front, back)
   local spare = max_payload - p.length - front - back
   if spare < 0 then
      error("packet too long: "..(p.length + front + back).." bytes, at most "..max_payload, 3)
   end
   local to = cast(bytes_t, slot_of(p)) + CONTROL + front + math.floor(spare / 2)
   memmove(to, p.data, p.length)
   p.data = to
end

function clone (p)
   local new = allocate()
   if p.length > SLOT - offset(new) then make_room(new, 0, p.length) end
   copy(new.data, p.data, p.length)
   new.length, new.flags = p.length, p.flags
   new.checksum_start, new.checksum_offset = p.checksum_start, p.checksum_offset
   return new
end

function append (p, bytes, length)
   check(p)
   if length > SLOT - offset(p) - p.length then make_room(p, 0, length) end
   copy(p.data + p.length, bytes, length)
   p.length = p.length + length
   return p
end

function shiftright (p, count)
   check(p)
   if count > offset(p) - CONTROL then make_room(p, count, 0) end
   p.data = p.data - count
   p.length = p.length + count
   return p
end

function shiftleft (p, count)
   check(p)
   if count < 0 or count > p.length then
      error("cannot remove "..count.." bytes from a packet of "..p.length, 2)
   end
   -- The end of the slot is the start of another one: an empty packet goes back to its usual place.
   if offset(p) + count == SLOT then
      p.data = cast(bytes_t, slot_of(p)) + 256
   else
      p.data = p.data + count
   end
   p.length = p.length - count
   return p
end

function prepend (p, bytes, length)
   shiftright(p, length)
   copy(p.data, bytes, length)
   return p
end

-- New bytes are zeros.
function resize (p, length)
   check(p)
   local more = length - p.length
   if more > 0 then
      if more > SLOT - offset(p) - p.length then make_room(p, 0, more) end
      fill(p.data + p.length, more)
   elseif length < 0 then
      error("a packet cannot have "..length.." bytes", 2)
   end
   p.length = length
   return p
end

function from_pointer (bytes, length) return append(allocate(), bytes, length) end
function from_string (text) return from_pointer(text, #text) end

function data (p) return p.data end
function length (p) return p.length end
