-- What a script finds without `require`.

_G.config = require("core.config")
_G.engine = require("core.app")
_G.link = require("core.link")
_G.packet = require("core.packet")
_G.timer = require("core.timer")
_G.main = require("core.main")

-- Interfaces are released, however a script ends.
local exit = os.exit
os.exit = function (...)
   pcall(engine.stop)
   exit(...)
end
