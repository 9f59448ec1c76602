-- Counters: 64-bit numbers. An app that names some in its `shm` field has them published under its name.

module(..., package.seeall)

local ffi = require("ffi")
local counter_t = require("core.memory_layout").counter_t

type = "counter"
local named = {}

function create (name, value)
   local c = counter_t(value or 0)
   if name then named[name] = c end
   return c
end

function open (name)
   return named[name] or error("no counter named '"..tostring(name).."'", 2)
end

function delete (name) named[name] = nil end
function read (c) return c.c end
function set (c, value) c.c = value end
function add (c, value) c.c = c.c + (value or 1) end
-- Counters of this engine are published as they are; there is no private copy to commit.
function commit () end
