-- Lets packets through that match: `config.app(c, "udp", PcapFilter, { filter = "udp port 53" })`.

module(..., package.seeall)

PcapFilter = require("shortwire.classes").native("PcapFilter")
