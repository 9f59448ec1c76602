-- What scripts and apps use besides: arguments, bytes, numbers, files, time.

module(..., package.seeall)

local ffi = require("ffi")
local bit = require("bit")
local host = require("shortwire.host")

local type, pairs, error, assert = _G.type, _G.pairs, _G.error, _G.assert

-- Pairs of a table with names as keys, in the order of the names.
function sorted (t)
   local names = {}
   for name in pairs(t) do
      if type(name) == "string" then names[#names + 1] = name end
   end
   table.sort(names)
   local i = 0
   return function ()
      i = i + 1
      return names[i], t[names[i]]
   end
end

-- Used when a network changes: traces of it would only hide those that matter.
jit.off(sorted, true)

function shallow (t)
   local copy = {}
   for key, value in pairs(t) do copy[key] = value end
   return copy
end

function array_copy (array)
   local copy = {}
   for i = 1, #array do copy[i] = array[i] end
   return copy
end

function deepcopy (value)
   if type(value) ~= "table" then return value end
   local copy = {}
   for key, item in pairs(value) do copy[deepcopy(key)] = deepcopy(item) end
   return setmetatable(copy, getmetatable(value))
end

-- Deep equality of tables; of cdata of one type that of their bytes.
function equal (x, y)
   if type(x) ~= type(y) then return false end
   if x == y then return true end
   if type(x) == "cdata" then
      local size = ffi.sizeof(x)
      return ffi.typeof(x) == ffi.typeof(y) and size == ffi.sizeof(y) and ffi.string(x, size) == ffi.string(y, size)
   end
   if type(x) ~= "table" then return false end
   for key, value in pairs(x) do
      if not equal(value, y[key]) then return false end
   end
   for key in pairs(y) do
      if x[key] == nil then return false end
   end
   return true
end

-- Checks `arg` against `{ key = { required = true } or { default = value } }` and fills defaults in.
function parse (arg, schema)
   local result = {}
   arg = arg == nil and {} or arg
   if type(arg) ~= "table" then error("the argument must be a table, not a "..type(arg), 0) end
   for key, rule in sorted(schema) do
      if rule.required and arg[key] == nil then error("missing required parameter '"..key.."'", 0) end
   end
   for key, value in pairs(arg) do
      if not schema[key] then error("unrecognized parameter '"..tostring(key).."'", 0) end
      result[key] = value
   end
   for key, rule in pairs(schema) do
      if result[key] == nil then result[key] = rule.default end
   end
   return result
end

-- The value of an expression, such as a table in a string.
function load_string (text)
   local chunk, problem = loadstring("return "..text)
   if not chunk then error("cannot read '"..text.."': "..problem, 0) end
   return chunk()
end

function readfile (name, what)
   local file = assert(io.open(name))
   local content = file:read(what or "*a")
   file:close()
   return content
end

function writefile (name, value)
   local file = assert(io.open(name, "w"))
   assert(file:write(value))
   assert(file:close())
end

function firstline (name) return readfile(name, "*l") end

function can_read (name)
   local file = io.open(name)
   if file then file:close() end
   return file ~= nil
end

function can_write (name)
   local file = io.open(name, "a")
   if file then file:close() end
   return file ~= nil
end

function load_conf (name) return load_string(readfile(name):gsub("^%s*return%s", "")) end

-- A value as text that `load_string` reads.
function print_object (value, stream)
   local function write (item, indent)
      if type(item) ~= "table" then return type(item) == "string" and ("%q"):format(item) or tostring(item) end
      local lines = {}
      for i, element in ipairs(item) do lines[i] = indent.."  "..write(element, indent.."  ")..",\n" end
      for key, element in sorted(item) do
         lines[#lines + 1] = ("%s  [%q] = %s,\n"):format(indent, key, write(element, indent.."  "))
      end
      return "{\n"..table.concat(lines)..indent.."}"
   end
   stream = stream or io.stdout
   stream:write(write(value, ""), "\n")
end

-- As text that `load_conf` reads.
function store_conf (name, value)
   local file = assert(io.open(name, "w"))
   file:write("return ")
   print_object(value, file)
   assert(file:close())
end

function basename (path) return path:match("([^/]+)/*$") or path end
function dirname (path) return path:match("^(.*[^/])/+[^/]*$") or (path:match("^/") and "/" or ".") end
-- Nil also if it is empty.
function getenv (name)
   local value = os.getenv(name)
   return value ~= "" and value or nil
end

function have_module (name)
   if package.loaded[name] then return true end
   for _, loader in ipairs(package.loaders) do
      if type(loader(name)) == "function" then return true end
   end
   return false
end

-- What a shell command prints, read as `what` says.
function readcmd (command, what)
   local pipe = assert(io.popen(command))
   local text = pipe:read(what or "*a")
   pipe:close()
   return text
end

-- The process becomes another program, whose words begin with its name; what it has open stays open if it asked for that. Comes back
-- with a sentence only where the system refuses.
function execv (path, words)
   local list = ffi.new("const char *[?]", #words + 1)
   for i, word in ipairs(words) do list[i - 1] = word end
   ffi.C.execv(path, list)
   return nil, "cannot run "..path..": error "..ffi.errno()
end

-- The first name in a folder.
function firstfile (folder)
   local names = host.children(folder)
   table.sort(names)
   return names[1]
end

-- Where a symbolic link leads; nil and the number of the error if it is none.
function readlink (path)
   local target = ffi.new("char[?]", 4096)
   local length = ffi.C.readlink(path, target, 4096)
   if length < 0 then return nil, ffi.errno() end
   return ffi.string(target, length)
end

-- Whether the kernel has a network interface of that name.
function is_iface (name) return can_read("/sys/class/net/"..name.."/ifindex") end

function root_check (message)
   if can_write("/proc/self/oom_score_adj") and readfile("/proc/self/status"):match("Uid:%s+%d+%s+0%s") then return end
   print(message or "error: must run as root")
   os.exit(1)
end

-- Handles options by `actions`, as lib.lua.alt_getopt finds them; gives the other arguments.
function dogetopt (arguments, actions, short, long)
   local names, rest, values = require("lib.lua.alt_getopt").get_ordered_opts(arguments, short, long)
   for i, name in ipairs(names) do
      if not actions[name] then error("unimplemented option: "..name) end
      actions[name](values[i])
   end
   return { unpack(arguments, rest) }
end

-- The parts of a string between matches of a pattern.
function split (pattern, text)
   local parts, from = {}, 1
   while true do
      local first, last = text:find(pattern, from)
      if not first or last < first then break end
      parts[#parts + 1] = text:sub(from, first - 1)
      from = last + 1
   end
   parts[#parts + 1] = text:sub(from)
   return parts
end

-- 1234567 as 1,234,567; also of 64 bits.
function comma_value (number)
   if number ~= number then return "NaN" end
   local left, digits, right = tostring(number):gsub("U?LL$", ""):match("^([^%d]*%d)(%d*)(.-)$")
   return left..digits:reverse():gsub("(%d%d%d)", "%1,"):reverse()..right
end

function hexdump (text)
   return (text:gsub(".", function (char) return ("%02X "):format(char:byte()) end):gsub(" $", ""))
end

-- Bytes from hexadecimal digits, `count` of them if given; blanks do not count. Too few are an error, with that sentence if there
-- is one; with `false` zeros follow.
function hexundump (text, count, problem)
   local bytes = {}
   for digits in text:gmatch("%x%x") do
      if count and #bytes == count then break end
      bytes[#bytes + 1] = string.char(tonumber(digits, 16))
   end
   if count and #bytes < count then
      if problem ~= false then
         error(problem or "hexundump: only "..#bytes.." of "..count.." bytes in the text", 2)
      end
      bytes[#bytes + 1] = ("\0"):rep(count - #bytes)
   end
   return table.concat(bytes)
end

-- An array of bytes as a type of its own per length: one of variable length cannot become a field such as `uint8_t mac[6]`.
local array_types = {}
local function bytes_of (count)
   array_types[count] = array_types[count] or ffi.typeof("uint8_t[$]", count)
   return ffi.new(array_types[count])
end

function random_bytes (count)
   local file = assert(io.open("/dev/urandom"))
   local text = count > 0 and file:read(count) or ""
   file:close()
   local bytes = bytes_of(count)
   -- Not as its initializer, with which LuaJIT writes a zero behind an array of variable length.
   ffi.copy(bytes, text, count)
   return bytes
end

function random_data (length) return ffi.string(random_bytes(length), length) end

-- From `math.random` instead of the system with a seed, so that the same comes again.
function randomseed (seed)
   seed = tonumber(seed)
   if seed then
      function random_bytes (count)
         local bytes = bytes_of(count)
         for i = 0, count - 1 do bytes[i] = math.random(0, 255) end
         return bytes
      end
   else
      seed = ffi.cast("uint32_t *", random_bytes(4))[0]
   end
   math.randomseed(seed)
   return seed
end

-- Letters, digits, '-' and '_', with so many bits of chance.
function random_printable_string (entropy)
   local letters = {}
   for i, char in ipairs { random_data(math.ceil((entropy or 160) / 6)):byte(1, -1) } do
      letters[i] = ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"):sub(char % 64 + 1, char % 64 + 1)
   end
   return table.concat(letters)
end

-- A bit field of `struct[member]`, which is in network byte order, or that with new content. Bits count from the upper end.
function bitfield (size, struct, member, offset, count, value)
   local swap = size == 16 and ntohs or size == 32 and ntohl
   local word = swap and swap(struct[member]) or struct[member]
   local shift = size - count - offset
   local mask = bit.lshift(2 ^ count - 1, shift)
   if value == nil then return bit.rshift(bit.band(word, mask), shift) end
   word = bit.bor(bit.band(word, bit.bnot(mask)), bit.band(bit.lshift(value, shift), mask))
   struct[member] = swap and swap(word) or word
end

-- A word with these bits set: `bits { enable = 25, eop = 24 }`.
function bits (places, base)
   local word = base or 0
   for _, place in pairs(places) do word = bit.bor(word, bit.lshift(1, place)) end
   return word
end

function bitset (value, n) return bit.band(value, bit.lshift(1, n)) ~= 0 end

if ffi.abi("le") then
   function htonl (word) return (tonumber(ffi.cast("uint32_t", bit.bswap(word)))) end
   function htons (word) return bit.rshift(bit.bswap(word), 16) end
else
   function htonl (word) return word end
   function htons (word) return bit.band(word, 0xffff) end
end
ntohl, ntohs = htonl, htons

function align (value, size)
   return value % size == 0 and value or value + size - value % size
end

-- Asks until the condition holds; false after so many attempts. The interval is in microseconds.
function waitfor (condition, attempts, interval)
   attempts = attempts or math.huge
   repeat
      if condition() then return true end
      ffi.C.usleep(interval or 100)
      attempts = attempts - 1
   until attempts <= 0
   return false
end

-- As `waitfor`, and says so; an error if it takes too long.
function waitfor2 (name, condition, attempts, interval)
   io.write("Waiting for "..name.."...")
   io.flush()
   if not waitfor(condition, attempts, interval) then error("timeout waiting for "..name, 2) end
   print(" ok")
end

function yesno (flag) return flag and "yes" or "no" end

-- A function that is true at most every `seconds`.
function throttle (seconds)
   local deadline = host.monotonic() / 1e9
   return function ()
      local now = host.monotonic() / 1e9
      if now < deadline then return false end
      deadline = now + seconds
      return true
   end
end

-- A function that is true once `seconds` have passed.
function timeout (seconds)
   local deadline = host.monotonic() / 1e9 + seconds
   return function () return host.monotonic() / 1e9 >= deadline end
end

function timer (seconds, mode)
   local deadline = host.monotonic() / 1e9 + seconds
   return function ()
      local now = host.monotonic() / 1e9
      if now < deadline then return false end
      if mode == "repeating" then deadline = deadline + seconds end
      return true
   end
end

function set (...)
   local members = {}
   for _, member in ipairs { ... } do members[member] = true end
   return members
end

-- The Internet checksum of some bytes (RFC 1071), as a number in the byte order of the machine.
function csum (pointer, length, initial) return ffi.C.cksum_generic(pointer, length, initial or 0) end

-- In parts: a sum that begins with 0, and what it is a checksum of at the end. A part before another one has an even length.
function update_csum (pointer, length, sum)
   return (sum or 0) + 0xffff - ffi.C.cksum_generic(pointer, length, 0)
end

function finish_csum (sum)
   sum = tonumber(sum)
   while sum > 0xffff do sum = sum % 0x10000 + math.floor(sum / 0x10000) end
   return 0xffff - sum
end

-- No load or store is moved across by the compiler.
function compiler_barrier () ffi.C.nop() end

-- Room for a value of that C type, which stays as long as the process.
function malloc (ctype)
   ctype = ffi.typeof(ctype)
   return ffi.cast(ffi.typeof("$ *", ctype), require("core.memory").dma_alloc(ffi.sizeof(ctype)))
end

-- An array that checks its indices. One type per element type: a new one for each array would be a trap for the compiler.
local checked = {}
function bounds_checked (element, base, offset, size)
   element = ffi.typeof(element)
   local id = tonumber(element)
   if not checked[id] then
      local function check (array, index)
         if index < 0 or index >= array.size then error("index "..tonumber(index).." is out of bounds", 3) end
      end
      checked[id] = ffi.metatype(ffi.typeof("struct { $ *base; uint32_t size; }", element), {
         __index = function (array, index)
            check(array, index)
            return array.base[index]
         end,
         __newindex = function (array, index, value)
            check(array, index)
            array.base[index] = value
         end,
      })
   end
   local pointer = ffi.typeof("$ *", element)
   return checked[id](ffi.cast(pointer, ffi.cast("uint8_t *", base) + (offset or 0)), size)
end
