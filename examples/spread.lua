-- Spreads flows over two branches by their RSS hash: packets of one flow stay together. In a configuration file the branches
-- may be on threads of their own.
--
--   shortwire snsh examples/spread.lua CAPTURE [SECONDS]

local capture, seconds = ...

local c = config.new()
config.app(c, "reader", "PcapReader", { file = capture })
config.app(c, "source", "Repeater")
config.app(c, "rss", "Rss", { symmetric = true })
config.app(c, "one", "Sink")
config.app(c, "other", "Sink")
config.link(c, "reader.output -> source.input")
config.link(c, "source.output -> rss.input")
config.link(c, "rss.a -> one.input")
config.link(c, "rss.b -> other.input")
engine.configure(c)
engine.main({ duration = tonumber(seconds) or 1, report = { showlinks = true, showapps = true } })
