-- A TAP interface: `config.app(c, "tap", Tap, "tap0")` or `{ name = "tap0", mtu = 1500 }`, ports `input` and `output`.

module(..., package.seeall)

local classes = require("shortwire.classes")

Tap = classes.native("Tap", function (arg, name)
   if type(arg) == "string" then return { interface = arg } end
   if type(arg) ~= "table" then
      error("app '"..name.."' (Tap): the argument is the name of an interface, not a "..type(arg), 0)
   end
   if not arg.name then return arg end
   local copy = { interface = arg.name }
   for key, value in pairs(arg) do
      if key ~= "name" then copy[key] = value end
   end
   return copy
end)

Tap.ports = classes.INTERFACE
