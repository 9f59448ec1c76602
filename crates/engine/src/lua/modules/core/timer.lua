-- Functions to be called at a time: `timer.activate(timer.new(name, fn, nanoseconds, 'repeating'))`. They run between two
-- breaths, to the precision of a millisecond.

module(..., package.seeall)

local layout = require("core.memory_layout")
local session = layout.session

local NEVER = 0xffffffffffffffffULL
local active = {}

-- The engine leaves its loop when something is due.
local function announce ()
   local due = NEVER
   for t in pairs(active) do
      if t.at < due then due = t.at end
   end
   session.due = due
end

function new (name, fn, nanos, mode)
   if _G.type(fn) ~= "function" then
      error("timer '"..tostring(name).."': the second argument must be the function to call, not a ".._G.type(fn), 2)
   end
   nanos = tonumber(nanos)
   if not nanos or nanos < 0 then
      error("timer '"..tostring(name).."': the third argument must be a number of nanoseconds", 2)
   end
   return { name = name, fn = fn, nanos = nanos, ["repeating"] = mode == "repeating", ticks = math.ceil(nanos / 1e6) }
end

local host = require("shortwire.host")

function activate (t)
   t.at = host.monotonic() + t.nanos
   active[t] = true
   announce()
   return t
end

function cancel (t)
   active[t] = nil
   announce()
end

-- Calls what is due, the earliest first. A timer that comes late is not made up for.
function run ()
   local now = host.monotonic()
   local due = {}
   for t in pairs(active) do
      if t.at <= now then due[#due + 1] = t end
   end
   table.sort(due, function (a, b) return a.at < b.at end)
   for _, t in ipairs(due) do
      if active[t] then
         if t["repeating"] then
            t.at = math.max(t.at + t.nanos, now + 1)
         else
            active[t] = nil
         end
         t.fn(t)
      end
   end
   announce()
end
