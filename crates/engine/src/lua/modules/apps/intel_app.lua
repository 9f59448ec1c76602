-- The Intel 82599: `config.app(c, "if1", Intel82599, { pciaddr = "0000:82:00.0" })`, with ports `rx` and `tx`.

module(..., package.seeall)

Intel82599 = require("shortwire.classes").native("Intel82599", nil, [[the driver of the 82599 is not part of this build.
  A network interface of the kernel does the same job: replace Intel82599, { pciaddr = ... } by
  require("apps.xdp.xdp").XDP, { ifname = "NAME" }; `ls /sys/bus/pci/devices/ADDRESS/net` shows the name]])
