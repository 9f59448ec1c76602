-- A network as a plain value: `config.app(c, name, class, arg)`, `config.link(c, "a.output -> b.input")`. Nothing happens
-- until `engine.configure(c)`.

module(..., package.seeall)

-- Runs when a network changes, not when packets move: traces of it would only hide those that matter.
jit.off(true, true)

local lib = require("core.lib")
local classes = require("shortwire.classes")

-- Those that engine.configure has taken over: there an app of the same name is a new version, elsewhere a mistake.
applied = setmetatable({}, { __mode = "k" })

function new ()
   return { apps = {}, links = {} }
end

local function check_config (c, fn)
   if type(c) ~= "table" or type(c.apps) ~= "table" or type(c.links) ~= "table" then
      error("config."..fn..": the first argument must be a configuration, as config.new() makes it, not a "..type(c), 3)
   end
end

-- Adds an app. `class` is what a module of apps exports, or the name of one of the engine's own kinds. `arg` is what its
-- `new` gets; a string with a Lua table in it is read if the class has a schema.
function app (c, name, class, arg)
   check_config(c, "app")
   if type(name) ~= "string" or not name:match("^[%w_]+$") then
      error("config.app: '"..tostring(name).."' is not a name of an app: letters, digits and '_' make one", 2)
   end
   if c.apps[name] and not applied[c] then
      error("config.app: there is an app named '"..name.."' already", 2)
   end
   if type(class) == "string" then class = classes.native(class) end
   if type(class) ~= "table" then
      error("config.app: app '"..name.."': the class is "..(class == nil and "nil: does the module export that name?"
            or "a "..type(class)..", where a table with a function `new` is needed"), 2)
   end
   if not class.kind and type(class.new) ~= "function" then
      error("config.app: app '"..name.."': the class has no function `new`", 2)
   end
   if class.config then
      local ok, parsed = pcall(parse_app_arg, arg, class.config)
      if not ok then
         error("config.app: app '"..name.."' ("..classes.name(class).."): "..tostring(parsed), 2)
      end
      arg = parsed
   end
   c.apps[name] = { class = class, arg = arg }
end

-- Checks an argument against a schema, `{ key = { required = true } or { default = value } }`, and fills the defaults in.
function parse_app_arg (arg, schema)
   if type(arg) == "string" then arg = lib.load_string(arg) end
   if arg ~= nil and type(arg) ~= "table" then
      error("the argument must be a table, not a "..type(arg), 0)
   end
   return lib.parse(arg, schema)
end

-- Adds a link. The same link twice is one link.
function link (c, spec)
   check_config(c, "link")
   c.links[canonical_link(spec)] = true
end

function parse_link (spec)
   local from, output, to, input = tostring(spec):match("^%s*([%w_]+)%s*%.%s*([%w_]+)%s*%->%s*([%w_]+)%s*%.%s*([%w_]+)%s*$")
   if not from then
      error("'"..tostring(spec).."' is not a link: write \"app.output -> app.input\"", 0)
   end
   return from, output, to, input
end

function format_link (from, output, to, input)
   return ("%s.%s -> %s.%s"):format(from, output, to, input)
end

function canonical_link (spec)
   return format_link(parse_link(spec))
end

-- The network in the language of Graphviz: `dot -Tsvg`.
function graphviz (c)
   check_config(c, "graphviz")
   local lines = { "digraph network {", "  rankdir=LR; node [shape=box];" }
   local function add (...) lines[#lines + 1] = string.format(...) end
   for name, app in lib.sorted(c.apps) do add("  %s [label=\"%s\\n%s\"];", name, name, classes.name(app.class)) end
   for spec in lib.sorted(c.links) do
      local from, output, to, input = parse_link(spec)
      add("  %s -> %s [taillabel=\"%s\", headlabel=\"%s\"];", from, to, output, input)
   end
   return table.concat(lines, "\n").."\n}\n"
end
