-- Apps written in Lua, as the engine calls them.

-- Runs when a network changes, not when packets move: traces of it would only hide those that matter.
jit.off(true, true)

local ffi = require("ffi")
local copies = require("shortwire.copies")
local classes = require("shortwire.classes")
local lib = require("core.lib")
local host = require("shortwire.host")
local protect = require("shortwire.errors").protect

local M = {}

-- By number: what the engine was told to run. A number is all that crosses the border.
M.specs = {}
-- Whether instances have their own copy of the code, if their class does not say.
M.shared = false
local last = 0

-- The number of an app: that of its predecessor if nothing changed.
function M.number (name, class, arg, before)
   if before and before.class == class and lib.equal(before.arg, arg) then return before.number end
   last = last + 1
   M.specs[last] = { number = last, name = name, class = class, arg = arg }
   return last
end

function M.get (number) return M.specs[number].object end

local function counters_of (class)
   local names, shm = {}, {}
   for name, kind in lib.sorted(class.shm or {}) do
      if type(kind) == "table" and type(kind[1]) == "table" and kind[1].type == "counter" or kind == "counter" then
         names[#names + 1] = name
      end
   end
   return names
end
M.counters_of = counters_of

-- What the engine calls: a function of its own for each instance and method, so that these, too, have own traces. It finds the
-- instance in a box: traces of other apps that lead here keep the function, and must not keep an app that was stopped.
local TRAMPOLINE = "local box = ... return function () local app = box.app return app:%s() end"
local EACH_LINK = [[
local box = ...
return function ()
   local app = box.app
   for name, push in pairs(app.push_link) do
      local link = app.input[name]
      if link then push(app, link) end
   end
   if app.push then app:push() end
end]]

local function method (object, name, box)
   local code
   -- Perhaps it is filled only when links come.
   if name == "push" and type(object.push_link) == "table" then
      code = EACH_LINK
   elseif type(object[name]) == "function" then
      code = TRAMPOLINE:format(name)
   else
      return nil
   end
   local call = loadstring(code, "=("..name.." of "..object.appname..")")(box)
   copies.claim(call, object.appname)
   -- It may be a function of another file, of which there is no copy.
   copies.note({ object[name] }, object.appname)
   return call
end

local mark = ffi.cast("void (*)(void *)", host.mark)

-- One function for what the engine calls of apps that follow each other; after each it sets a mark in `place`. In a function
-- without a loop the compiler follows the end of one app's loop to the beginning of the next one's.
function M.chain (place, calls)
   local names, steps = {}, {}
   for i, call in ipairs(calls) do
      copies.open(call)
      names[i], steps[i] = "call"..i, "call"..i.."() mark(place)"
   end
   local code = ("local mark, place, %s = ... return function () %s end"):format(
      table.concat(names, ", "), table.concat(steps, " "))
   local first, last = copies.name(calls[1]), copies.name(calls[#calls])
   return loadstring(code, "=(from "..first.." to "..last..")")(mark, ffi.cast("void *", place), unpack(calls))
end

-- Turns the description `shm` of a class, or of an object that its `new` gave one, into counters and other objects. Those that the
-- class names are published by the engine; others are files of their own (core.shm).
local function attach_counters (object, class, made)
   local names = counters_of(class)
   local values = ffi.new("struct counter[?]", math.max(#names, 1))
   local shm = {}
   for i, name in ipairs(names) do
      local kind = class.shm[name]
      values[i - 1].c = type(kind) == "table" and kind[2] or 0
      shm[name] = values + (i - 1)
   end
   for name, kind in pairs(object.shm or {}) do
      if type(kind) ~= "table" or type(kind[1]) ~= "table" then
         -- What is no description is there already.
         shm[name] = shm[name] or kind
      elseif not shm[name] then
         local file = ("apps/%s/%s.%s"):format(object.appname, name, kind[1].type)
         shm[name] = kind[1].create(file, unpack(kind, 2))
         made[file] = { module = kind[1], object = shm[name] }
      end
   end
   object.shm = shm
   return values, #names
end

local function remove (made)
   for file, one in pairs(made or {}) do
      if rawget(one.module, "delete") then
         one.module.delete(file)
      else
         local shm = require("core.shm")
         shm.unmap(one.object)
         shm.unlink(file)
      end
   end
end

-- Makes the instance, and returns what the engine calls: push, pull, tick; then where its counters are.
local function start (number)
   local spec = M.specs[number]
   local class = spec.class
   local shared = class.shared
   if shared == nil then shared = M.shared end
   if not shared then class = copies.copy(class, spec.name) end
   local object = class:new(spec.arg)
   if type(object) ~= "table" then
      error(classes.name(spec.class)..":new returned a "..type(object).." where the new app is expected", 0)
   end
   if object.pull and not spec.class.pull then
      error("`pull` must be a function of the class: the engine puts its apps in order before there are instances", 0)
   end
   object.appname = spec.name
   object.input, object.output = object.input or {}, object.output or {}
   spec.object = object
   spec.made = {}
   local counters, count = attach_counters(object, spec.class, spec.made)
   spec.counters = counters
   local box = { app = object }
   spec.box = box
   if shared then copies.note(spec.class, spec.name) end
   return method(object, "push", box), method(object, "pull", box), method(object, "tick", box),
      tonumber(ffi.cast("uintptr_t", counters)), count
end

-- Takes new arguments over without a stop; false if the app cannot.
local function reconfigure (old, new)
   local object = M.specs[old].object
   if type(object.reconfig) ~= "function" then return false end
   object:reconfig(M.specs[new].arg)
   for _, key in ipairs { "object", "counters", "made", "box" } do M.specs[new][key] = M.specs[old][key] end
   M.specs[old] = nil
   return true
end

-- `drop`: the app found no memory, so that not even the table of apps may keep what it has.
local function stop (number, drop)
   local spec = M.specs[number]
   local object, made = spec.object, spec.made
   if drop and M.drop then M.drop(spec.name, object) end
   M.specs[number] = nil
   copies.of[spec.name] = nil
   if spec.box then spec.box.app = nil end
   if object and type(object.stop) == "function" then object:stop() end
   remove(made)
end

function M.start (number) return protect(start, number) end
function M.reconfigure (old, new) return protect(reconfigure, old, new) end
function M.stop (number, drop) return protect(stop, number, drop) end

return M
