-- Files of packets: `config.app(c, "in", PcapReader, "file.pcap")`, ports `output` and `input`.

module(..., package.seeall)

local native = require("shortwire.classes").native

local function file (arg, name)
   if type(arg) == "string" then return { file = arg } end
   if type(arg) ~= "table" then
      error("app '"..name.."': the argument is the name of a file, not a "..type(arg), 0)
   end
   return arg.file and arg or { file = arg.filename or arg[1] }
end

PcapReader = native("PcapReader", file)
PcapWriter = native("PcapWriter", file)
