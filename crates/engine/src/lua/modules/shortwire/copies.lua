-- A copy of the code of an app's class for one instance.
--
-- The compiler records traces per function prototype. Two instances that run the same functions share traces, and then
-- one that meets other types than the first one leaves them by side exits. A copy has prototypes of its own, so that
-- whatever one instance meets cannot slow another. Variables of the module stay shared: only functions, and the class
-- itself, are replaced.

-- Runs when a network changes, not when packets move: traces of it would only hide those that matter.
jit.off(true, true)

local jutil = require("jit.util")
local host = require("shortwire.host")
local M = {}

-- Function prototype to the name of the app whose copy it is, for whoever looks at traces.
M.owner = setmetatable({}, { __mode = "k" })
-- Name of an app that runs to the set of the prototypes that it runs.
M.of = {}

local function add (prototype, app)
   local set = M.of[app]
   if not set then
      set = setmetatable({}, { __mode = "k" })
      M.of[app] = set
   end
   set[prototype] = true
end

-- Says that a function, and those inside of it, are of this app.
function M.claim (f, app)
   local info = jutil.funcinfo(f)
   if not info.proto and type(f) ~= "proto" then return end
   M.owner[info.proto or f] = app
   add(info.proto or f, app)
   for i = -1, -(info.gcconsts or 0), -1 do
      local constant = jutil.funck(f, i)
      if type(constant) == "proto" then M.claim(constant, app) end
   end
end

-- Says that an app runs the functions of its class, though they are not its own.
function M.note (class, app)
   for _, value in pairs(class) do
      local prototype = type(value) == "function" and jutil.funcinfo(value).proto
      if prototype then add(prototype, app) end
   end
end

-- The app whose function this is.
function M.name (f) return M.owner[jutil.funcinfo(f).proto] end

-- Lets traces that come from elsewhere go on into the code of the app whose function this is. The compiler begins none at a
-- function with a loop in it, and after some tries it forbids that function to all traces.
function M.open (f)
   for prototype in pairs(M.of[M.name(f)] or {}) do host.open_to_traces(prototype) end
end

local function source_of (f)
   local info = debug.getinfo(f, "S")
   return info.what ~= "C" and info.source or nil
end

local Copier = {}
Copier.__index = Copier

function Copier:value (value)
   if value == self.class then return self.copy end
   if type(value) == "function" then return self:fn(value) end
   return value
end

function Copier:fn (f)
   local done = self.done[f]
   if done then return done end
   if source_of(f) ~= self.source then return f end
   local copy = loadstring(string.dump(f))
   self.done[f] = copy
   M.claim(copy, self.app)
   setfenv(copy, self:environment(getfenv(f)))
   for i = 1, math.huge do
      local name, value = debug.getupvalue(f, i)
      if not name then break end
      local new = self:value(value)
      if new ~= value then
         debug.setupvalue(copy, i, new)
      else
         debug.upvaluejoin(copy, i, f, i)
      end
   end
   return copy
end

-- Globals of the module, of which those that are functions of the same source, or the class, are copies.
function Copier:environment (env)
   local done = self.done[env]
   if done then return done end
   local copy = setmetatable({}, { __index = env, __newindex = env })
   self.done[env] = copy
   for key, value in pairs(env) do
      local new = self:value(value)
      if new ~= value then rawset(copy, key, new) end
   end
   return copy
end

function M.copy (class, app)
   local source = source_of(class.new)
   if not source then return class end
   local copy = setmetatable({}, getmetatable(class))
   local copier = setmetatable({ class = class, copy = copy, source = source, app = app, done = {} }, Copier)
   for key, value in pairs(class) do copy[key] = copier:value(value) end
   -- A class that serves as the metatable of its instances.
   if rawget(class, "__index") == class then copy.__index = copy end
   return copy
end

return M
