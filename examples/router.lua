-- A router that answers: traceroute and ping work through it, and long packets are told of. Its neighbours find out who
-- has the next hop's address: of hosts on a link, or on the right of the router behind which all others are. Needs root, for the
-- interfaces.
--
--   shortwire snsh examples/router.lua SECONDS INTERFACE INTERFACE

local seconds, left, right = ...
local mac = { left = "02:00:00:00:00:10", right = "02:00:00:00:00:20" }
local addresses = { left = { "10.0.0.1", "fd00::1" }, right = { "10.1.0.1", "fd01::1" } }

local c = config.new()
config.app(c, "router", "Forwarder", {
   ports = {
      left = { mac = mac.left, addresses = addresses.left },
      right = { mac = mac.right, addresses = addresses.right, mtu = 1400 },
   },
   routes = {
      { prefix = "10.0.0.0/24", port = "left" }, { prefix = "0.0.0.0/0", port = "right" },
      { prefix = "fd00::/64", port = "left" }, { prefix = "::/0", port = "right" },
   },
})
local hops = {
   right = {
      { prefix = "10.1.0.0/24" }, { prefix = "0.0.0.0/0", via = "10.1.0.254" },
      { prefix = "fd01::/64" }, { prefix = "::/0", via = "fd01::fe" },
   },
}
for side, interface in pairs({ left = left or "tap0", right = right or "tap1" }) do
   config.app(c, side, left and "XDP" or "Tap", { interface = interface })
   config.app(c, "arp_" .. side, "Neighbour", { mac = mac[side], addresses = addresses[side], routes = hops[side] })
   config.link(c, side .. ".tx -> arp_" .. side .. ".south")
   config.link(c, "arp_" .. side .. ".south -> " .. side .. ".rx")
   config.link(c, "arp_" .. side .. ".north -> router." .. side)
   config.link(c, "router." .. side .. " -> arp_" .. side .. ".north")
end
engine.configure(c)
engine.main({ duration = tonumber(seconds) or 1, report = { showapps = true } })
