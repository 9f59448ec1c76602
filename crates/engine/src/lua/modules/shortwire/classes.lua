-- What a configuration can name as class: tables of functions written in Lua, and the engine's own kinds.

-- Runs when a network changes, not when packets move: traces of it would only hide those that matter.
jit.off(true, true)

local host = require("shortwire.host")
local M = {}

-- The engine's own app of that kind. `arguments` turns what scripts pass into the kind's own table; without it the table
-- is passed as it is. `advice` is what to do where this engine has no such kind.
function M.native (kind, arguments, advice)
   local class = { kind = kind, arguments = arguments, advice = advice }
   function class.new ()
      error(kind.." is one of the engine's own apps: name it in config.app; it has no methods to call", 2)
   end
   return class
end

-- Scripts call the ports of an interface by either pair of names.
M.INTERFACE = { input = "rx", output = "tx" }

-- Checked when a configuration is taken over.
function M.check (name, class)
   if host.has_kind(class.kind) then return end
   local near = host.nearest_kind(class.kind)
   error(("app '%s': this engine has no app of kind '%s'%s"):format(name, class.kind,
      class.advice and ": "..class.advice or near and "; did you mean '"..near.."'?"
      or "; `shortwire snsh --apps` lists those that it has"), 0)
end

-- A name for people: that under which a module or the script exports it.
function M.name (class)
   if class.kind then return class.kind end
   local found
   for module_name, module in pairs(package.loaded) do
      if module == class then return module_name end
      if type(module) == "table" then
         for key, value in pairs(module) do
            if value == class and type(key) == "string" and (not found or key < found) then found = key end
         end
      end
   end
   if found then return found end
   local info = debug.getinfo(class.new, "S")
   return ("app of %s:%d"):format(info.short_src, info.linedefined)
end

return M
