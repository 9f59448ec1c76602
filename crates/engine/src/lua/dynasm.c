/* The encoder of DynASM, LuaJIT's assembler: it makes machine code of what modules in its language (.dasl) were translated to.
   modules/dasm.lua calls it. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define DASM_CHECKS
#include "dasm_proto.h"
#include "dasm_x86.h"
