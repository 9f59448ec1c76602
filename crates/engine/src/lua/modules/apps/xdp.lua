-- A network interface through AF_XDP: `config.app(c, "if1", XDP, { ifname = "eth0", queue = 0 })`, ports `rx` and `tx`.

module(..., package.seeall)

local classes = require("shortwire.classes")

XDP = classes.native("XDP", function (arg, name)
   if type(arg) == "string" then return { interface = arg } end
   if type(arg) ~= "table" then
      error("app '"..name.."' (XDP): the argument is a table such as { ifname = \"eth0\" }, not a "..type(arg), 0)
   end
   if not arg.ifname then return arg end
   local copy = { interface = arg.ifname }
   for key, value in pairs(arg) do
      if key ~= "ifname" then copy[key] = value end
   end
   return copy
end)

XDP.ports = classes.INTERFACE
