-- Errors as sentences that name the user's file and line.

local M = {}

-- Whether a source is one of the modules that come with the engine, whose files exist nowhere, or what calls apps one after
-- the other (shortwire/instances.lua).
local function ours (source)
   if source:find("^=%(from ") then return true end
   local name = source:match("^@?(.-)%.lua$")
   return name == "startup" or name ~= nil and package.preload[(name:gsub("/", "."))] ~= nil
end

-- The first place outside of our own modules.
local function place ()
   for level = 3, 100 do
      local info = debug.getinfo(level, "Sl")
      if not info then return nil end
      if info.currentline > 0 and not ours(info.source) then return info.short_src..":"..info.currentline end
   end
end

function M.sentence (problem)
   local text = tostring(problem)
   local file = text:match("^([^:\n]+%.lua):%d+: ")
   if file and not ours(file) then return text end
   local where = place()
   if not where or text:find(where, 1, true) then return text end
   -- Positions in our own modules mean nothing to the user.
   if file then text = text:gsub("^[^:\n]+:%d+: ", "") end
   return where..": "..text
end

-- True and what `f` returned, or false and a sentence.
function M.protect (f, ...)
   return xpcall(f, M.sentence, ...)
end

return M
