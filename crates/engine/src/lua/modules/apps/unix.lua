-- A Unix socket: `config.app(c, "s", UnixSocket, { filename = "/run/x.sock", listen = true, mode = "packet" })`.

module(..., package.seeall)

local classes = require("shortwire.classes")

UnixSocket = classes.native("UnixSocket", function (arg, name)
   if type(arg) ~= "table" then
      error("app '"..name.."' (UnixSocket): the argument is a table such as { filename = ... }, not a "..type(arg), 0)
   end
   if not arg.filename then return arg end
   return { path = arg.filename, listen = arg.listen, mode = arg.mode }
end)

UnixSocket.ports = classes.INTERFACE
