-- What a script finds without `require`.

require("shortwire.prelude")
_G.config = require("core.config")
_G.engine = require("core.app")
_G.memory = require("core.memory")
_G.link = require("core.link")
_G.packet = require("core.packet")
_G.timer = require("core.timer")
_G.main = require("core.main")
-- A library, if there is one.
_G.timeline = setmetatable({}, { __index = function (_, name) return require("core.timeline")[name] end })

-- Interfaces are released, however a script ends.
local exit = os.exit
os.exit = function (...)
   pcall(engine.stop)
   exit(...)
end

-- Asked last, when no loader knows a module.
local host = require("shortwire.host")
table.insert(package.loaders, function (name)
   local known = {}
   for other in pairs(package.preload) do known[#known + 1] = other end
   local near = host.nearest(name, known)
   return near and "\n\tdid you mean '"..near.."'?"
end)
