/* Where LuaJIT keeps what it is doing: the number of the running trace, or the complement of a state. A sampler reads it. */
#include "lj_obj.h"

const volatile int32_t *shortwire_vmstate(lua_State *L) { return &G(L)->vmstate; }
