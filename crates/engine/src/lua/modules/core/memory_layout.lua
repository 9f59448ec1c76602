-- The engine's own structures, as it declares them (crates/engine/src/{link,packet,pool}.rs), and its functions by address.
-- Cursors are declared signed: that spares the compiler conversions to double, and they wrap the same.

local ffi = require("ffi")
local host = require("shortwire.host")

ffi.cdef [[
struct packet {
  uint8_t *data;
  uint16_t length;
  uint16_t flags, checksum_start, checksum_offset;
  /* Behind the engine's 16 bytes: whether a script owns the packet. */
  int32_t held, unused[3];
};
struct packet_handle { uint64_t data, rest; };
struct counter { uint64_t c; };
struct link {
  int32_t read, write;
  struct counter before, txbytes, txdrop;
  struct packet_handle *ring;
};
struct link_stats { struct counter txpackets, txbytes, txdrop, rxpackets, rxbytes; };
struct packet_pool {
  uint64_t *free;
  uint64_t count, full, frees, freebytes;
  int64_t held;
};
struct session { uint64_t due; };
void *memmove(void *to, const void *from, size_t length);
]]

local uint64_t = ffi.typeof("uint64_t")

return {
   packet_t = ffi.typeof("struct packet *"),
   handle_t = ffi.typeof("struct packet_handle *"),
   link_t = ffi.typeof("struct link *"),
   counter_t = ffi.typeof("struct counter"),
   pool = ffi.cast("struct packet_pool *", host.pool),
   session = ffi.cast("struct session *", host.session),
   -- Makes sure that a free slot is at hand; false when all packets are in use.
   refill = ffi.cast("bool (*)(void)", host.refill),
   -- Gives free slots to other threads when the list is full.
   give_back = ffi.cast("void (*)(void)", host.give_back),
   release_link = ffi.cast("void (*)(void *)", host.release_link),
   forward = ffi.cast("uint32_t (*)(struct link *, struct link *, uint32_t)", host.forward),
   stats = ffi.cast("void (*)(struct link *, struct link_stats *)", host.stats),
   discard = ffi.cast("uint32_t (*)(struct link *)", host.discard),
   -- The first slot of the arena, and the view of its packet. Views stand in an array of their own: slots are so far apart
   -- that what lies at their start would meet in two sets of the first-level cache.
   ARENA = ffi.cast(uint64_t, host.arena),
   VIEWS = ffi.cast(uint64_t, host.views),
   SLOT = 2048, CONTROL = 64, MAX_LENGTH = 2048 - 64, RING = 1024, FAR = 2^30,
   HELD = 0x646c6568,
}
