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

array_copy = shallow

function deepcopy (value)
   if type(value) ~= "table" then return value end
   local copy = {}
   for key, item in pairs(value) do copy[deepcopy(key)] = deepcopy(item) end
   return setmetatable(copy, getmetatable(value))
end

-- Deep equality of tables; of cdata that of their bytes' values where these compare.
function equal (x, y)
   if type(x) ~= type(y) then return false end
   if type(x) ~= "table" then return x == y end
   if x == y then return true end
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

-- A table as text that `load_conf` reads.
function store_conf (name, value)
   local function write (item, indent)
      if type(item) ~= "table" then return type(item) == "string" and ("%q"):format(item) or tostring(item) end
      local lines = {}
      for i, element in ipairs(item) do lines[i] = indent.."  "..write(element, indent.."  ")..",\n" end
      for key, element in sorted(item) do
         lines[#lines + 1] = ("%s  [%q] = %s,\n"):format(indent, key, write(element, indent.."  "))
      end
      return "{\n"..table.concat(lines)..indent.."}"
   end
   writefile(name, "return "..write(value, "").."\n")
end

function basename (path) return path:match("([^/]+)/*$") or path end
function dirname (path) return path:match("^(.*[^/])/+[^/]*$") or (path:match("^/") and "/" or ".") end
function getenv (name) return os.getenv(name) end
function have_module (name) return package.loaded[name] ~= nil or package.preload[name] ~= nil
   or package.searchpath(name, package.path) ~= nil end

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

-- 1234567 as 1,234,567
function comma_value (number)
   local left, digits, right = tostring(number):match("^([^%d]*%d)(%d*)(.-)$")
   return left..digits:reverse():gsub("(%d%d%d)", "%1,"):reverse()..right:gsub("ULL$", "")
end

function hexdump (text)
   return (text:gsub(".", function (char) return ("%02X "):format(char:byte()) end):gsub(" $", ""))
end

-- Bytes from hexadecimal digits, `count` of them if given; blanks do not count.
function hexundump (text, count)
   local bytes = {}
   for digits in text:gmatch("%x%x") do
      if count and #bytes == count then break end
      bytes[#bytes + 1] = string.char(tonumber(digits, 16))
   end
   if count and #bytes < count then error("hexundump: only "..#bytes.." of "..count.." bytes in the text", 2) end
   return table.concat(bytes)
end

function random_bytes (count)
   local file = assert(io.open("/dev/urandom"))
   local text = file:read(count)
   file:close()
   return ffi.new("uint8_t[?]", count, text)
end

-- A bit field of `value`, or of `struct[name]`, or that with new content.
function bitfield (size, struct, member, offset, count, value)
   local field = type(struct) == "number" and struct or struct[member]
   local mask = bit.lshift(2 ^ count - 1, size - count - offset)
   local shift = size - count - offset
   local bits = size == 32 and field or (size == 16 and ntohs(field) or field)
   if value == nil then return bit.rshift(bit.band(bits, mask), shift) end
   local new = bit.bor(bit.band(bits, bit.bnot(mask)), bit.band(bit.lshift(value, shift), mask))
   struct[member] = size == 16 and htons(new) or new
end

-- A word with these bits set: `bits { enable = 25, eop = 24 }`.
function bits (places, base)
   local word = base or 0
   for _, place in pairs(places) do word = bit.bor(word, bit.lshift(1, place)) end
   return word
end

function bitset (value, n) return bit.band(value, bit.lshift(1, n)) ~= 0 end

if ffi.abi("le") then
   function htonl (word) return bit.bswap(word) end
   function htons (word) return bit.rshift(bit.bswap(word), 16) end
else
   function htonl (word) return bit.tobit(word) end
   function htons (word) return bit.band(word, 0xffff) end
end
ntohl, ntohs = htonl, htons

function align (value, size)
   return value % size == 0 and value or value + size - value % size
end

ffi.cdef "int usleep(unsigned int microseconds);"

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

-- The Internet checksum of some bytes (RFC 1071), in network byte order as a number.
function csum (pointer, length, initial)
   local bytes = ffi.cast("const uint8_t *", pointer)
   local sum = initial or 0
   for i = 0, length - 2, 2 do sum = sum + bytes[i] * 256 + bytes[i + 1] end
   if length % 2 == 1 then sum = sum + bytes[length - 1] * 256 end
   while sum > 0xffff do sum = sum % 0x10000 + math.floor(sum / 0x10000) end
   return 0xffff - sum
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
