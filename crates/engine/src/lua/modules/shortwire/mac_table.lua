-- The C parts of a learning bridge's table of addresses: a hash table of buckets with six places each, which its module
-- declares and owns (apps/bridge/learning.h).

local ffi = require("ffi")
local PLACES = 6
local M = {}

-- Adds an address, or moves it to another port, in both the table that is in use and the one that will follow it.
function M.mac_table_insert (mac, port, group, tables, index)
   for i = 0, 1 do
      local t = tables[i]
      local bucket = t.buckets[index]
      local place = 0
      while place < PLACES and bucket[place].mac ~= 0ULL and bucket[place].mac ~= mac do place = place + 1 end
      if place == PLACES then
         t.h.overflow = 1
      else
         local found = bucket[place]
         if found.mac == 0ULL then
            found.mac = mac
            t.h.entries = t.h.entries + 1
            if place == 0 then t.h.ubuckets = t.h.ubuckets + 1 end
         end
         found.port, found.group = port, group
      end
   end
end

local function find (mac, bucket)
   for place = 0, PLACES - 1 do
      local here = bucket[place].mac
      if here == mac then return bucket[place] end
      if here == 0ULL then return nil end
   end
   return nil
end

local result

-- Port and group of an address; port 0 if it is unknown. Good until the next call.
function M.mac_table_lookup (mac, bucket)
   result = result or ffi.new("lookup_result_t")
   local found = find(mac, bucket)
   if found then
      result.port, result.group = found.port, found.group
   else
      result.port = 0
   end
   return result
end

-- Puts a packet into one of three lists: for one port, for all ports, and what goes nowhere since it would go back to its port
-- or within its group.
function M.mac_table_lookup_pft (mac, bucket, port, group, packet, lists, flood)
   local found = find(mac, bucket)
   local list = lists[1]
   if found then
      local back = found.port == port or group ~= 0 and found.group == group
      list = lists[back and 2 or 0]
   end
   local entry = list.entries[list.length]
   entry.p = packet
   if not found then
      entry.plist = flood
   elseif list == lists[0] then
      entry.plist.ports[0] = found.port
   end
   list.length = list.length + 1
end

return M
