-- The Internet checksum at the speed of the engine's own (crates/checksum), by the functions that Snabb's module has. Sums and
-- checksums are numbers in the byte order of the machine.

module(..., package.seeall)

local ffi = require("ffi")
local bit = require("bit")
local lib = require("core.lib")
local C = ffi.C
local cast, htons, band = ffi.cast, lib.htons, bit.band
local words_t, bytes_t = ffi.typeof("uint16_t *"), ffi.typeof("uint8_t *")
local cksum = C.cksum_generic

-- Of `length` bytes, behind a sum of 16 bits.
function ipsum (pointer, length, initial) return cksum(pointer, length, initial) end

-- Writes the checksum of all bytes to their place `offset`.
function finish_packet (pointer, length, offset)
   cast(words_t, cast(bytes_t, pointer) + offset)[0] = htons(cksum(pointer, length, 0))
end

-- Where the payload of an IP packet begins.
local function payload (pointer)
   local first = cast(bytes_t, pointer)[0]
   return bit.rshift(first, 4) == 6 and 40 or band(first, 15) * 4
end

-- Of a packet that begins with an IP header: whether the checksum of TCP or UDP is right; nil if there is none.
function verify_packet (pointer, length)
   local initial = C.pseudo_header_initial(pointer, length)
   if initial == 0xffff0001 then return nil end
   if initial == 0xffff0002 then return false end
   local from = payload(pointer)
   return cksum(cast(bytes_t, pointer) + from, length - from, initial) == 0
end

-- Where TCP and UDP have their checksum.
local PLACE = { [6] = 16, [17] = 6 }

-- Puts the sum of the pseudo header where hardware, or the receiver, completes it; gives where the sum begins and where it goes,
-- or nothing if the packet has none.
local function prepare (pointer, length, protocol)
   local initial = C.pseudo_header_initial(pointer, length)
   local from, place = payload(pointer), PLACE[protocol]
   if initial > 0xffff or not place then return nil, nil end
   cast(words_t, cast(bytes_t, pointer) + from + place)[0] = htons(initial)
   return from, place
end

function prepare_packet4 (pointer, length)
   local words = cast(words_t, pointer)
   words[5] = 0
   words[5] = htons(cksum(pointer, payload(pointer), 0))
   return prepare(pointer, length, cast(bytes_t, pointer)[9])
end

function prepare_packet6 (pointer, length) return prepare(pointer, length, cast(bytes_t, pointer)[6]) end
