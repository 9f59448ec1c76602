-- Counters: 64-bit numbers. An app that names some in its `shm` field has them published under its name; others are objects of
-- core.shm, where this process has a run directory.

module(..., package.seeall)

local ffi = require("ffi")
local shm = require("core.shm")
local host = require("shortwire.host")
local lib = require("core.lib")
local counter_t = require("core.memory_layout").counter_t

type = shm.register("counter", getfenv())

local named = {}

-- The counter of that name, which begins with `value` if it is a new one; without a name, one that only this script has.
function create (name, value)
   if name and named[name] then return named[name] end
   local c
   if name and host.run_folder then
      c = shm.create(name, counter_t)
   else
      c = counter_t()
   end
   c.c = value or 0
   if name then named[name] = c end
   return c
end

function open (name)
   if named[name] then return named[name] end
   if not shm.exists(name) then error("no counter named '"..tostring(name).."'", 2) end
   local c = shm.open(name, counter_t, "readonly")
   named[name] = c
   return c
end

function delete (name)
   local c = named[name]
   if not c then error("no counter named '"..tostring(name).."'", 2) end
   named[name] = nil
   if not host.run_folder then return end
   shm.unmap(c)
   if not name:match("^/") then shm.unlink(name) end
end

function read (c) return c.c end
function set (c, value) c.c = value end
function add (c, value) c.c = c.c + (value or 1) end
-- Counters of this engine are published as they are; there is no private copy to commit.
function commit () end

ffi.metatype(counter_t, { __tostring = function (c) return lib.comma_value(c.c) end })
