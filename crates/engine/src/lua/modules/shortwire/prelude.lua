-- What libraries written for Snabb take for granted: `subClass`, `string.split`, C functions of its executable, and modules whose
-- sources are C headers or assembler. They find the libraries' own files by LUA_PATH, or by `snsh --snabb DIR`.

-- Runs when libraries are loaded, not when packets move.
jit.off(true, true)

local ffi = require("ffi")
local host = require("shortwire.host")

require("lib.lua.class")

-- The parts of a text between matches of a pattern: `for part, separator in text:split("%s*,%s*")`. With captures, these come
-- instead of the separator.
function string.split (text, pattern)
   local from, done = 1, false
   return function ()
      if done then return nil end
      local found = { text:find(pattern, from) }
      local first, last = found[1], found[2]
      -- An empty match separates the characters around it.
      if first and last < first then first, last = first + 1, first end
      if not first or first > #text and last >= #text and found[2] < found[1] then
         done = true
         return text:sub(from)
      end
      local part, separator = text:sub(from, first - 1), text:sub(first, last)
      from = last + 1
      if found[3] ~= nil then return part, unpack(found, 3) end
      return part, separator
   end
end

-- `ffi.C` with the functions that are not libc's.
local C = ffi.C
local parts = {}
for name, part in pairs(host.c_parts) do parts[name] = ffi.cast(part.type, part.address) end
for name, part in pairs(require("shortwire.mac_table")) do parts[name] = part end
parts.PACKET_PAYLOAD_SIZE = require("core.memory_layout").MAX_LENGTH
parts.LINK_RING_SIZE, parts.LINK_MAX_PACKETS = 1024, 1024
ffi.C = setmetatable(parts, { __index = C, __newindex = function (_, name, value) C[name] = value end })

-- Of libc, as libraries call them.
ffi.cdef [[
unsigned int sleep(unsigned int seconds);
int usleep(unsigned int microseconds);
unsigned int alarm(unsigned int seconds);
unsigned int ualarm(unsigned int microseconds, unsigned int interval);
void *memcpy(void *to, const void *from, size_t length);
void *memset(void *bytes, int value, size_t length);
int memcmp(const void *one, const void *other, size_t length);
int strncasecmp(const char *one, const char *other, size_t length);
char *strncpy(char *to, const char *from, size_t length);
void *malloc(size_t size);
void free(void *place);
ssize_t read(int fd, void *bytes, size_t length);
ssize_t write(int fd, const void *bytes, size_t length);
ssize_t pread(int fd, void *bytes, size_t length, int64_t offset);
ssize_t pwrite(int fd, const void *bytes, size_t length, int64_t offset);
int close(int fd);
int execv(const char *path, const char **words);
ssize_t readlink(const char *path, char *target, size_t length);
int inet_pton(int family, const char *text, void *address);
const char *inet_ntop(int family, const void *address, char *text, unsigned int length);
uint16_t htons(uint16_t number);
uint16_t ntohs(uint16_t number);
uint32_t htonl(uint32_t number);
uint32_t ntohl(uint32_t number);
]]

local function read (path)
   local file = assert(io.open(path))
   local text = file:read("*a")
   file:close()
   return text
end

-- Where a file of that ending is that belongs to a module, by the paths of modules.
local function find (module, ending)
   local paths = package.path:gsub("%.lua;", ending..";"):gsub("%.lua$", ending)
   return package.searchpath(module, paths)
end

-- `lib.checksum_h` and `lib.virtio.virtio.h` are C headers: they are declared.
local function header (name)
   local module = name:match("^(.*)[_.]h$")
   local path, problem = module and find(module, ".h"), nil
   if not module then return nil end
   if not path then
      path, problem = find(module, ".h")
      return problem
   end
   return function ()
      -- Lines of the preprocessor are the C compiler's.
      ffi.cdef((("\n"..read(path)):gsub("\n[ \t]*#[^\n]*", "\n")))
   end
end

-- `core.engine_events` and `lib.yang.ietf_yang_types_yang` are texts, the latter in `lib/yang/ietf-yang-types.yang`.
local function text (name)
   local module, ending = name:match("^(.*)_(%l+)$")
   if ending ~= "events" and ending ~= "yang" and ending ~= "inc" then return nil end
   local folder, file = module:match("^(.*%.)([^.]*)$")
   local path, problem = find(module, "."..ending)
   if not path and file then path = find(folder..file:gsub("_", "-"), "."..ending) end
   return path and function () return read(path) end or problem
end

-- A module in the language of DynASM. Its translator is a library that stands beside such modules.
local function assembler (name)
   local path, problem = find(name, ".dasl")
   if not path then return problem end
   return function (...)
      local chunk = require("dynasm").loadfile(path, { comment = false })
      return assert(chunk)(...)
   end
end

-- Snabb loads ljsyscall at its start, and pflua takes its declarations for granted.
local BEFORE = { ["pf"] = "syscall", ["pf.types"] = "syscall" }

local function before (name)
   if BEFORE[name] then require(BEFORE[name]) end
   return nil
end

table.insert(package.loaders, 2, before)
for _, loader in ipairs { header, text, assembler } do table.insert(package.loaders, loader) end
