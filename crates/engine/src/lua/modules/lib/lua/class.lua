-- Classes with inheritance whose objects are used again: `subClass(base)` is a new class, without an argument one of its own.
--
-- `class:new()` takes an object that was given back with `free`, or makes one; `_recycled` tells which. `object:new()` makes the
-- object ready for a further use in its place. A method calls the one that it replaces by
-- `class:superClass().method(self, ...)`, with the class that it was written for.

local base = { _name = "elementary class" }

function base:new ()
   if self == base then error("the elementary class has no objects: derive a class with subClass()", 2) end
   if self._instance then
      self._recycled = true
      return self
   end
   local free = self._freelist
   local count = free.index
   if count == 0 then return setmetatable({ _instance = true, _recycled = false }, { __index = self }) end
   local object = free.list[count]
   free.index = count - 1
   object._recycled = true
   return object
end

function base:free ()
   local free = self:class()._freelist
   free.index = free.index + 1
   free.list[free.index] = self
end

function base:name () return self._name end

function _G.subClass (from)
   from = from or base
   local class = { _freelist = { index = 0, list = {} } }
   function class:class () return class end
   function class:superClass () return from end
   return setmetatable(class, { __index = from })
end

return base
