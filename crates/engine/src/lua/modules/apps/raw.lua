-- A network interface through a packet socket: `config.app(c, "if1", RawSocket, "eth0")`, ports `rx` and `tx`.

module(..., package.seeall)

local classes = require("shortwire.classes")

RawSocket = classes.native("RawSocket", function (arg, name)
   if type(arg) ~= "string" and type(arg) ~= "table" then
      error("app '"..name.."' (RawSocket): the argument is the name of an interface, not a "..type(arg), 0)
   end
   return type(arg) == "string" and { interface = arg } or arg
end)

RawSocket.ports = classes.INTERFACE
