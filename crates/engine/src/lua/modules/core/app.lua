-- The engine, as scripts know it: `engine.configure(c)`, `engine.main{duration = 1, report = {showlinks = true}}`.
--
-- The engine itself is not written in Lua. A script says what is to run; the engine's own apps then run at their own speed,
-- and apps written in Lua are called once per breath.

module(..., package.seeall)

-- Runs when a network changes, not when packets move: traces of it would only hide those that matter.
jit.off(true, true)

local ffi = require("ffi")
local lib = require("core.lib")
local config = require("core.config")
local timer = require("core.timer")
local layout = require("core.memory_layout")
local classes = require("shortwire.classes")
local instances = require("shortwire.instances")
local host = require("shortwire.host")
local protect = require("shortwire.errors").protect

-- Settings that scripts change.
busywait = false
maxsleep = 100
Hz = false
tick_Hz = 1000
pull_npackets = 128
-- The exit status of a test that had to be skipped.
test_skipped_code = 43

configuration = config.new()
-- Name to app; of the engine's own apps what there is to know about them.
app_table = {}
-- Name of a link to the link.
link_table = {}

frees = ffi.cast("struct counter *", ffi.cast("uint64_t *", layout.pool) + 3)
freebytes = ffi.cast("struct counter *", ffi.cast("uint64_t *", layout.pool) + 4)
breaths = layout.counter_t(0)
configs = layout.counter_t(0)

-- Seconds since some point in the past.
function now () return host.monotonic() / 1e9 end

local log

-- Where libraries log events, which `core.timeline` of theirs makes. The engine itself logs none.
function timeline ()
   log = log or require("core.timeline").new("events.timeline")
   return log
end

-- The name of a link by the engine's own names of ports.
local function engine_name (spec, apps)
   local from, output, to, input = config.parse_link(spec)
   local function port (app, name)
      local names = apps[app] and apps[app].class.ports
      return names and names[name] or name
   end
   return config.format_link(from, port(from, output), to, port(to, input))
end

local function describe (new)
   local apps, numbers = {}, {}
   for name, app in lib.sorted(new.apps) do
      local class = app.class
      if class.kind then
         classes.check(name, class)
         local arguments = app.arg
         if class.arguments then arguments = class.arguments(arguments, name) end
         if arguments ~= nil and type(arguments) ~= "table" then
            error(("app '%s' (%s): the argument must be a table, not a %s"):format(name, class.kind, type(arguments)), 0)
         end
         apps[#apps + 1] = { name = name, kind = class.kind, arguments = arguments or {} }
      else
         local before = app_table[name] and numbers_of[name] and instances.specs[numbers_of[name]]
         local number = instances.number(name, class, app.arg, before)
         numbers[name] = number
         apps[#apps + 1] = {
            name = name, number = number, class = classes.name(class), pulls = class.pull ~= nil,
            counters = instances.counters_of(class),
         }
      end
   end
   local links = {}
   for spec in lib.sorted(new.links) do links[#links + 1] = engine_name(spec, new.apps) end
   return apps, links, numbers
end

function instances.drop (name, object)
   if app_table[name] == object then app_table[name] = nil end
end

-- Name of an app written in Lua to the number under which the engine knows it.
numbers_of = {}

-- What apps did wrong while the network was changed.
local problems = {}

-- An app that fails here is stopped by its next breath, as one that fails in there.
local function call_port (app, method, direction, port)
   local ok, problem = protect(app[method], app, direction, port)
   if ok then return end
   problems[#problems + 1] = ("app '%s': %s"):format(app.appname, problem)
   for _, name in ipairs { "pull", "push", "tick" } do
      if app[name] then app[name] = function () error(problem, 0) end end
   end
end

local function set_port (app, direction, port, link)
   local ports = app[direction]
   if ports[port] == link then return end
   ports[port] = link
   if app.kind then return end
   if not link and type(app.unlink) == "function" then
      call_port(app, "unlink", direction, port)
   elseif type(app.link) == "function" then
      call_port(app, "link", direction, port)
   end
end

-- Each end of a link, for those which both lists have.
local function each_end (links, call)
   for spec in lib.sorted(links) do
      local from, output, to, input = config.parse_link(spec)
      call(spec, from, "output", output)
      call(spec, to, "input", input)
   end
end

local function detach (new)
   each_end(configuration.links, function (spec, name, direction, port)
      if not new.links[spec] and app_table[name] then set_port(app_table[name], direction, port, nil) end
   end)
end

local function take_links (new)
   local old = link_table
   link_table = {}
   for spec in pairs(new.links) do
      -- The engine's link lives as long as a script can reach it, whatever becomes of the network.
      local link = ffi.gc(ffi.cast(layout.link_t, host.link(engine_name(spec, new.apps))), layout.release_link)
      link_table[spec] = old[spec] == link and old[spec] or link
   end
end

-- `engine.app_table.reader.done`: whether nothing will come from an app of the engine's any more.
local native = {
   __index = function (app, name)
      if name == "done" then return host.app_finished(app.appname) end
      return nil
   end,
}

local function take_apps (new, numbers)
   local old = app_table
   app_table = {}
   for name, app in pairs(new.apps) do
      local object
      if app.class.kind then
         local before = old[name]
         object = before and before.kind == app.class.kind and before
            or setmetatable({ appname = name, kind = app.class.kind, input = {}, output = {} }, native)
      else
         object = instances.specs[numbers[name]] and instances.get(numbers[name])
      end
      app_table[name] = object
   end
   numbers_of = numbers
end

-- Ports by number come after those by name, in the order of the names.
local function number_ports (ports)
   for i = #ports, 1, -1 do ports[i] = nil end
   local links = {}
   for _, link in lib.sorted(ports) do links[#links + 1] = link end
   for i, link in ipairs(links) do ports[i] = link end
end

local function attach ()
   for _, app in pairs(app_table) do
      for _, direction in ipairs { "input", "output" } do
         for i = #app[direction], 1, -1 do app[direction][i] = nil end
      end
   end
   each_end(configuration.links, function (spec, name, direction, port)
      if app_table[name] then set_port(app_table[name], direction, port, link_table[spec]) end
   end)
   for _, app in pairs(app_table) do
      number_ports(app.input)
      number_ports(app.output)
   end
end

-- Makes the network what the configuration says. What is in both the old and the new one, and equal, is not touched.
function configure (new)
   if type(new) ~= "table" or not new.apps or not new.links then
      error("engine.configure: the argument must be a configuration, as config.new() makes it, not a "..type(new), 2)
   end
   local apps, links, numbers = describe(new)
   problems = {}
   local done, problem = host.configure(apps, links, function () detach(new) end)
   if not done then error(problem, 0) end
   config.applied[new] = true
   take_links(new)
   configuration = { apps = lib.shallow(new.apps), links = lib.shallow(new.links) }
   take_apps(new, numbers)
   attach()
   configs.c = configs.c + 1
   if problem then table.insert(problems, 1, problem) end
   -- Everything else runs.
   if #problems > 0 then error(table.concat(problems, "\n"), 0) end
end

-- Stops all apps and removes all links.
function stop () configure(config.new()) end

function report_load () io.write(host.report_load(), "\n") end

function report_links () io.write(host.report_links()) end

function report_apps ()
   print("apps report:")
   for name, app in lib.sorted(app_table) do
      local text = host.report_app(name)
      if text ~= "" then io.write(name, "\n", (text:gsub("[^\n]+", "  %0")), "\n") end
      if not app.kind and type(app.report) == "function" then
         print(name)
         local ok, problem = protect(app.report, app)
         if not ok then host.app_failed(name, problem) end
      end
   end
end

function report (options)
   if not options or options.showload then report_load() end
   if options and options.showlinks then report_links() end
   if options and options.showapps then report_apps() end
   io.flush()
end

-- What a script has set there: a number between these, which NaN is not. Told of the line that calls `main`.
local function setting (name, least, most)
   local value = tonumber(_M[name])
   if not (value and value >= least and value <= most) then
      error(("engine.main: `engine.%s` must be a number from %g to %g, not %s")
            :format(name, least, most, tostring(_M[name])), 4)
   end
   return value
end

local function settle (latency)
   local tick = setting("tick_Hz", 0, math.huge)
   if busywait then
      host.settle(tick, latency, "busy")
   elseif Hz then
      host.settle(tick, latency, "hertz", setting("Hz", 0.001, 1e9))
   else
      host.settle(tick, latency, "adaptive", setting("maxsleep", 0, math.huge))
   end
end

-- Runs the network, until `duration` seconds have passed, or `done()` says so, or Ctrl-C.
function main (options)
   options = options or {}
   if type(options) ~= "table" then
      error("engine.main: the argument must be a table such as { duration = 1 }, not a "..type(options), 2)
   end
   local duration, done = options.duration, options.done
   if duration and done then
      error("engine.main: `duration` and `done` exclude each other: which of them ends it?", 2)
   end
   if duration and type(duration) ~= "number" then
      error("engine.main: `duration` must be a number of seconds, not a "..type(duration), 2)
   end
   if done and type(done) ~= "function" then
      error("engine.main: `done` must be a function, not a "..type(done), 2)
   end
   local finish = duration and now() + duration or math.huge
   local interrupted
   settle(options.measure_latency ~= false)
   repeat
      if not options.no_timers then timer.run() end
      -- Once per breath would be often; the engine asks at each tick and whenever it is idle.
      interrupted = host.run(math.min(finish - now(), 0.1), done ~= nil, not options.no_timers)
      breaths.c = host.breaths()
   until interrupted or now() >= finish or (done and done())
   if instances.look then instances.look() end
   if not options.no_report then report(options.report) end
   if interrupted then error(host.interrupted, 0) end
end
