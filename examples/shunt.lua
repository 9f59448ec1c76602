-- Joins two network interfaces: what comes in on one goes out on the other.
--
--   shortwire snsh examples/shunt.lua IF1 IF2 [SECONDS [xdp|raw]]

local if1, if2, seconds, how = ...
if not if2 then
   print("usage: shunt.lua IF1 IF2 [SECONDS [xdp|raw]]")
   main.exit(1)
end

local function interface (name)
   if how == "raw" then return require("apps.socket.raw").RawSocket, name end
   return require("apps.xdp.xdp").XDP, { ifname = name }
end

local c = config.new()
config.app(c, "if1", interface(if1))
config.app(c, "if2", interface(if2))
config.link(c, "if1.tx -> if2.rx")
config.link(c, "if2.tx -> if1.rx")
engine.configure(c)
engine.main({ duration = tonumber(seconds), report = { showlinks = true } })
