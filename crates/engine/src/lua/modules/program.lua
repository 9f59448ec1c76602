-- The programs that scripts know, `require("program.packetblaster.packetblaster").run({ "replay", "64.pcap", "82:00.1" })`.
-- Each is the subcommand of that name, run as a process of its own, on the same terminal.

local host = require("shortwire.host")

local name = ...
-- The last part names a file, as in program.packetblaster.replay.replay.
local words = {}
for word in name:gmatch("[^.]+") do words[#words + 1] = word end
local command = { unpack(words, 2, #words - 1) }

local M = {}

-- Returns when the program has ended; an end other than a good one is an error.
function M.run (parameters)
   if parameters ~= nil and type(parameters) ~= "table" then
      error(name..".run: the parameters are a list of words such as { \"--help\" }, not a "..type(parameters), 2)
   end
   local line = { unpack(command) }
   for i, word in ipairs(parameters or {}) do
      if type(word) ~= "string" and type(word) ~= "number" then
         error(name..".run: parameter "..i.." is a "..type(word).." instead of a word", 2)
      end
      line[#line + 1] = tostring(word)
   end
   io.flush()
   local problem = host.run_program(line)
   if problem == host.interrupted then error(problem, 0) end
   if problem then error("`shortwire "..table.concat(line, " ").."` "..problem, 2) end
end

return M
