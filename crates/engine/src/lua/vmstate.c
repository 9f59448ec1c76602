/* Where LuaJIT keeps what it is doing: the number of the running trace, or the complement of a state. A sampler reads it. */
#include "lj_obj.h"
#include "lj_jit.h"
#include "lj_dispatch.h"

const volatile int32_t *shortwire_vmstate(lua_State *L) { return &G(L)->vmstate; }

/* The end of the intermediate representation of the trace that is being recorded. Read at each bytecode, it tells which
   instructions come from which line. */
const uint32_t *shortwire_recorded(lua_State *L) { return &L2J(L)->cur.nins; }
