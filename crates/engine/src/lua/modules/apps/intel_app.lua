-- The Intel 82599: `config.app(c, "if1", Intel82599, { pciaddr = "0000:82:00.0" })`, with ports `rx` and `tx`. The address
-- may be a model's, such as "model:0,packets=64"; `snsh --model` lets a model stand in for any address.

module(..., package.seeall)

local classes = require("shortwire.classes")

Intel82599 = classes.native("Intel82599", function (arg, name)
   if type(arg) ~= "table" then
      error("app '"..name.."' (Intel82599): the argument is a table such as { pciaddr = \"0000:01:00.0\" }, not a "
            ..type(arg), 0)
   end
   return arg
end)

Intel82599.ports = classes.INTERFACE

-- The gigabit card 82574, which QEMU emulates as e1000e, takes the same argument.
Intel82574 = classes.native("Intel82574")
Intel82574.ports = classes.INTERFACE
