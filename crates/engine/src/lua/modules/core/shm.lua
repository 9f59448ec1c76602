-- Objects that other processes can map, by name: files below this process's folder in the run directory, where they go with it.
-- A name is one of this process's; `/PID/name` is one of another.

module(..., package.seeall)

local ffi = require("ffi")
local host = require("shortwire.host")

ffi.cdef "int munmap(void *place, size_t length);"

-- Folder of all processes, and the name of this one's there.
root = host.run_folder and host.run_folder:match("^(.*)/") or "/nonexistent"
local process = host.run_folder and host.run_folder:match("([^/]+)$") or ""

-- Beside what the engine itself publishes.
local OBJECTS = "shm/"

-- Address to size.
local sizes = {}

function pointer_to_number (pointer) return tonumber(ffi.cast("uintptr_t", ffi.cast("void *", pointer))) end

-- The path below `root`.
function resolve (name)
   if not name:match("^/") then return process.."/"..OBJECTS..name end
   local owner, rest = name:match("^/+([^/]+)/*(.*)$")
   if not owner then return "" end
   return owner.."/"..OBJECTS..rest
end

function path (name) return root.."/"..resolve(name) end

-- Makes a folder below `root`.
function mkdir (name)
   local problem = not host.run_folder and "this process has no run directory: set SHORTWIRE_RUN_DIR, or make /run/shortwire writable"
      or host.make_folder(root.."/"..name)
   if problem then error("shm: cannot make the folder "..name..": "..problem, 3) end
end

local function map (name, ctype, readonly, create, ...)
   ctype = ffi.typeof(ctype)
   local size, file = ffi.sizeof(ctype, ...), path(name)
   if create then mkdir(resolve(name):match("^(.*)/")) end
   local place, problem = host.map_file(file, size, create, readonly and true or false)
   if not place then error("shm: cannot open "..file..": "..problem, 3) end
   local pointer = ffi.cast("void *", place)
   sizes[pointer_to_number(pointer)] = size
   return ffi.cast(ffi.typeof("$ &", ctype), pointer)
end

-- An object of this C type; with a type of variable size, of so many elements. What was there keeps its content.
function create (name, ctype, ...) return map(name, ctype, false, true, ...) end
function open (name, ctype, readonly, ...) return map(name, ctype, readonly, false, ...) end
function exists (name) return host.exists(path(name)) end

function unmap (object)
   local number = pointer_to_number(object)
   local size = sizes[number]
   if not size then error("shm: this is not a mapped object", 2) end
   sizes[number] = nil
   -- A mapping has a byte at least.
   ffi.C.munmap(ffi.cast("void *", object), math.max(size, 1))
end

-- Removes an object, or a folder with all in it.
function unlink (name) return host.remove((path(name):gsub("/+$", ""))) end
function children (name) return host.children(path(name)) end

-- Another name for an object.
function alias (name, target)
   mkdir(resolve(name):match("^(.*)/"))
   local problem = host.symbolic_link(path(target), path(name))
   if problem then error("shm: cannot make "..name..": "..problem, 2) end
end

-- Modules by the ending of their objects' names: `create(name, ...)`, `open(name, readonly)`, perhaps `delete(name)`.
types = {}

function register (ending, module)
   if not module then error("shm: which module makes objects of type "..ending.."?", 2) end
   types[ending] = module
   return ending
end

-- Objects by `{ name = { module, what create gets ... } }`, in one folder.
function create_frame (folder, specs)
   local frame = { specs = specs, path = folder.."/" }
   for name, spec in pairs(specs) do
      if frame[name] ~= nil then error("shm: a frame has fields of its own: '"..name.."' is not free", 2) end
      frame[name] = spec[1].create(frame.path..name.."."..spec[1].type, unpack(spec, 2))
   end
   return frame
end

-- What another one made, to be read.
function open_frame (folder)
   local frame = { specs = {}, path = folder.."/", readonly = true }
   for _, file in ipairs(children(folder)) do
      local name, ending = file:match("^(.*)%.([^.]*)$")
      local module = types[ending]
      if module then
         frame[name] = module.open(frame.path..file, "readonly")
         frame.specs[name] = { module }
      end
   end
   return frame
end

function delete_frame (frame)
   for name, spec in pairs(frame.specs) do
      local module = spec[1]
      if rawget(module, "delete") then
         module.delete(frame.path..name.."."..module.type)
      else
         unmap(frame[name])
      end
   end
   if not frame.readonly then unlink(frame.path) end
end
