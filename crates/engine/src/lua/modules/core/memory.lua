-- Memory that is not the collector's. Cards are driven by the engine's own apps, so that scripts need no addresses for them.

module(..., package.seeall)

local ffi = require("ffi")
local lib = require("core.lib")

ffi.cdef "int posix_memalign(void **place, size_t alignment, size_t size);"

function get_huge_page_size ()
   local size = lib.readfile("/proc/meminfo"):match("Hugepagesize: +(%d+) kB")
   return size and tonumber(size) * 1024 or 2097152
end

base_page_size = 4096
huge_page_size = get_huge_page_size()

-- `size` bytes of zeros at a multiple of `alignment`; they stay as long as the process.
function dma_alloc (size, alignment)
   local place = ffi.new("void *[1]")
   if ffi.C.posix_memalign(place, math.max(alignment or 128, 8), math.max(size, 1)) ~= 0 then
      error("no memory for "..size.." bytes", 2)
   end
   ffi.fill(place[0], size)
   return ffi.cast("char *", place[0])
end

function virtual_to_physical ()
   error("scripts of this engine have no addresses for cards: `shortwire snsh --apps` lists its own drivers", 2)
end

-- A huge page more: here the system's administrator provides them.
function reserve_new_page () end
