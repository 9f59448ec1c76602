/* Where LuaJIT keeps what it is doing: the number of the running trace, or the complement of a state. A sampler reads it. */
#include "lj_obj.h"
#include "lj_jit.h"
#include "lj_dispatch.h"

const volatile int32_t *shortwire_vmstate(lua_State *L) { return &G(L)->vmstate; }

/* The end of the intermediate representation of the trace that is being recorded. Read at each bytecode, it tells which
   instructions come from which line. */
const uint32_t *shortwire_recorded(lua_State *L) { return &L2J(L)->cur.nins; }

/* Of a prototype of a function: traces may go on into it again, after the compiler has given up to begin one there. What was told
   not to be compiled stays so. A C function of Lua's, which does nothing for other values. */
int shortwire_open_to_traces(lua_State *L)
{
  if (L->base < L->top && tvisproto(L->base)) {
    GCproto *pt = protoV(L->base);
    BCIns *head = proto_bc(pt);
    if (bc_op(*head) == BC_IFUNCF && !(pt->flags & PROTO_NOJIT)) setbc_op(head, BC_FUNCF);
  }
  return 0;
}
