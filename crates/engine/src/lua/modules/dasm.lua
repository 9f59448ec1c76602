-- Machine code from modules in the language of DynASM (.dasl): what their translation calls. The encoder is LuaJIT's own.

local ffi = require("ffi")
local bit = require("bit")
local address = require("shortwire.host").dynasm
if not address.init then
   error("code for this processor is not assembled: "..jit.arch.." instead of x64")
end

-- The version of actions, as the translation checks it.
local M = { _VERSION = 10400 }

ffi.cdef [[
typedef struct { struct dasm_State *state; } shortwire_dasm;
void *mmap(void *place, size_t length, int access, int flags, int fd, long offset);
int mprotect(void *place, size_t length, int access);
]]

local function entry (name, prototype) return ffi.cast(prototype, address[name]) end
local init = entry("init", "void (*)(shortwire_dasm *, int)")
local free = entry("free", "void (*)(shortwire_dasm *)")
local setupglobal = entry("setupglobal", "void (*)(shortwire_dasm *, void **, unsigned)")
local growpc = entry("growpc", "void (*)(shortwire_dasm *, unsigned)")
local setup = entry("setup", "void (*)(shortwire_dasm *, const void *)")
local put = entry("put", "void (*)(shortwire_dasm *, int, ...)")
local link = entry("link", "int (*)(shortwire_dasm *, size_t *)")
local encode = entry("encode", "int (*)(shortwire_dasm *, void *)")
local getpclabel = entry("getpclabel", "int (*)(shortwire_dasm *, unsigned)")
local checkstep = entry("checkstep", "int (*)(shortwire_dasm *, int)")

-- The upper byte of a status (dasm_proto.h).
local PROBLEMS = {
   [0x01] = "out of memory", [0x02] = "steps in the wrong order", [0x03] = "another section was expected",
   [0x11] = "an immediate value is out of range", [0x12] = "too many sections", [0x13] = "too many global labels",
   [0x14] = "too many labels by number", [0x15] = "no such register", [0x21] = "a label is not defined",
   [0x22] = "a label by number is not defined",
}

local function check (status)
   if status == 0 then return end
   local what = PROBLEMS[bit.rshift(status, 24)] or "an unknown problem"
   error(("cannot assemble: %s (status 0x%08x)"):format(what, bit.band(status, 0xffffffff)), 3)
end

local int = ffi.typeof("int")

-- Arguments are all of 32 bits; the numbers among them may be unsigned.
local function words (first, ...)
   if first == nil then return end
   return ffi.cast(int, type(first) == "number" and bit.tobit(first) or first), words(...)
end

function M.put (state, position, ...) put(state, position, words(...)) end
function M.growpc (state, count) growpc(state, count) end
function M.checkstep (state, section) check(checkstep(state, section or -1)) end

function M.link (state)
   local size = ffi.new("size_t[1]")
   check(link(state, size))
   return tonumber(size[0])
end

function M.encode (state, buffer) check(encode(state, buffer)) end

-- Where a label by number is: an offset, or with the code's address a pointer.
function M.getpclabel (state, label, code)
   local offset = getpclabel(state, label)
   return code and ffi.cast("void *", ffi.cast("uint8_t *", code) + offset) or offset
end

-- PROT_READ, PROT_WRITE, PROT_EXEC; MAP_PRIVATE and MAP_ANONYMOUS.
local READ, WRITE, EXEC, PRIVATE = 1, 2, 4, 0x22

-- The code and its size. It is never writable and executable at once, and stays as long as the process.
function M.build (state)
   M.checkstep(state)
   local size = M.link(state)
   if size == 0 then error("cannot assemble: there is no code", 2) end
   local code = ffi.C.mmap(nil, size, READ + WRITE, PRIVATE, -1, 0)
   if ffi.cast("intptr_t", code) == -1 then error("no memory for "..size.." bytes of code", 2) end
   M.encode(state, code)
   if ffi.C.mprotect(code, size, READ + EXEC) ~= 0 then error("the system does not let code be made at run time", 2) end
   return code, size
end

-- A state for the actions of a module, and the array of its global labels.
function M.new (actions, externals, sections, count, _, globals)
   if externals and #externals > 0 then error("code that calls C functions by name is not assembled", 2) end
   count = count or 256
   globals = globals or ffi.new("void *[?]", count)
   local state = ffi.new("shortwire_dasm")
   init(state, sections or 1)
   setupglobal(state, globals, count)
   setup(state, actions)
   -- The encoder keeps addresses of both.
   local kept = { actions, globals }
   ffi.gc(state, function (gone)
      free(gone)
      kept = nil
   end)
   return state, globals
end

-- Addresses of global labels by name.
function M.globals (globals, names)
   local found = {}
   for i = 0, #names do
      if globals[i] ~= nil then found[names[i]] = globals[i] end
   end
   return found
end

-- The instructions as text.
function M.dump (code, size, out)
   require("jit.dis_"..jit.arch).disass(ffi.string(code, size), tonumber(ffi.cast("uintptr_t", code)), out)
end

ffi.metatype("shortwire_dasm", { __index = M })

return M
