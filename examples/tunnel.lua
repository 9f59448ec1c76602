-- A VXLAN between an interface and another host, to which `ip link add v type vxlan id 77 remote 10.9.0.1 dstport 4789` is the
-- other end. With kind "Gre" and no `vni` it is a gretap; "L2tpv3" and "Esp" take the same `outer`. Needs root.
--
--   shortwire snsh examples/tunnel.lua SECONDS [UNDERLAY OVERLAY]

local seconds, underlay, overlay = ...

local c = config.new()
config.app(c, "underlay", underlay and "XDP" or "Tap", { interface = underlay or "tap0" })
config.app(c, "overlay", overlay and "XDP" or "Tap", { interface = overlay or "tap1" })
config.app(c, "arp", "Neighbour", { mac = "02:00:00:00:00:10", addresses = { "10.9.0.1" } })
config.app(c, "tunnel", "Vxlan", {
   vni = 77,
   outer = {
      ["local"] = "10.9.0.1", remote = "10.9.0.2", mac = "02:00:00:00:00:10",
   },
})
config.link(c, "underlay.tx -> arp.south")
config.link(c, "arp.south -> underlay.rx")
config.link(c, "arp.north -> tunnel.outer")
config.link(c, "tunnel.outer -> arp.north")
config.link(c, "tunnel.inner -> overlay.rx")
config.link(c, "overlay.tx -> tunnel.inner")
engine.configure(c)
engine.main({ duration = tonumber(seconds) or 1, report = { showapps = true } })
