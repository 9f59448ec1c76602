-- What the compiler did with a script: every trace, how it is entered and left, what it checks, and what was given up.
--
-- `start()` before the script, `facts()` after it. Names of events, fields and instructions are those of LuaJIT's own
-- tools (jit.dump). The callbacks are not compiled themselves, and only run when a trace is made, given up, or left
-- towards the interpreter.

-- The observer must not be seen.
jit.off(true, true)

local ffi = require("ffi")
local bit = require("bit")
local jutil = require("jit.util")
local vmdef = require("jit.vmdef")
local host = require("shortwire.host")
local copies = require("shortwire.copies")
local instances = require("shortwire.instances")
local classes = require("shortwire.classes")

local M = {}

-- As it is before it is watched.
local typeof = ffi.typeof

local traces, current, aborts, flushes = {}, {}, {}, 0
-- Number of a ctype to the place that made it, and how many that place made.
local made_at = {}
local fields = {}

local function position (func, pc)
   local info = jutil.funcinfo(func, pc)
   local source = info.source and info.source:gsub("^[@=]", "") or "[builtin]"
   return source, info.currentline or info.linedefined or 0, copies.owner[info.proto]
end

local function opcode (ot) return (vmdef.irnames:sub(6 * bit.rshift(ot, 8) + 1, 6 * bit.rshift(ot, 8) + 6):gsub("%s+$", "")) end

-- What a loaded value is called in the source: the key of a table, or nothing.
local function key_of (tr, ref)
   if ref < 0 then return nil end
   local _, ot, from = jutil.traceir(tr, ref)
   local op = opcode(ot)
   if op ~= "HLOAD" and op ~= "ALOAD" then return nil end
   if from < 0 then return nil end
   local _, key_ot, _, key = jutil.traceir(tr, from)
   local key_op = opcode(key_ot)
   if key_op ~= "HREFK" and key_op ~= "HREF" or key >= 0 then return nil end
   local constant = jutil.tracek(tr, key)
   return type(constant) == "string" and constant or nil
end

-- The exit that a failing guard takes: the last snapshot before it.
local function exit_at (tr, ref, exits)
   local exit = 0
   for i = 0, exits - 1 do
      local snapshot = jutil.tracesnap(tr, i)
      if not snapshot or snapshot[0] > ref then break end
      exit = i
   end
   return exit
end

local CTYPEID
for i = 0, 100 do
   if vmdef.irfield[i] == "cdata.ctypeid" then CTYPEID = i end
end

-- The guards on types of cdata: which value must be of which type, else which exit.
local function guards_of (tr, info)
   local guards = {}
   for ref = 1, info.nins do
      local _, ot, op1, op2 = jutil.traceir(tr, ref)
      if opcode(ot) == "EQ" and op1 > 0 and op2 < 0 then
         local _, load_ot, object, field = jutil.traceir(tr, op1)
         if opcode(load_ot) == "FLOAD" and field == CTYPEID then
            guards[#guards + 1] = {
               ctype = (jutil.tracek(tr, op2)), field = key_of(tr, object),
               exit = exit_at(tr, ref, info.nexit),
            }
         end
      end
   end
   return guards
end

-- The bytecodes of the recording under way, each with the first instruction of the intermediate representation that is made
-- from it or later.
local steps = {}
local recorded = ffi.cast("const uint32_t *", host.recorded)
local FIRST = 0x8000

local function on_record (tr, func, pc)
   if pc >= 0 then steps[#steps + 1] = { ref = recorded[0] - FIRST, func = func, pc = pc } end
end

-- The line from which an instruction was made.
local function step_of (ref)
   local low, high = 1, #steps
   while low < high do
      local middle = math.ceil((low + high) / 2)
      if steps[middle].ref <= ref then low = middle else high = middle - 1 end
   end
   return steps[low]
end

-- Instructions that ask for memory, in LuaJIT's names, and for what.
local ALLOCATES = {
   TNEW = "a table", TDUP = "a table", CNEW = "a value of a C type", CNEWI = "a boxed number of a C type",
   SNEW = "a string", XSNEW = "a string", BUFSTR = "a string", TOSTR = "a string",
}
-- The same for bytecodes, which is all there is of code that was not compiled. (A call's result is not seen there.)
local MAKES = { TNEW = "a table", TDUP = "a table", CAT = "a string", FNEW = "a closure" }

local allocations, scanned = {}, {}

local function allocation (what, trace, func, pc)
   local file, line, app = position(func, pc)
   local key = table.concat({ file, line, what, app or "", trace or 0 }, "\0")
   allocations[key] = { file = file, line = line, app = app, what = what, trace = trace }
end

-- What a trace asks memory for each time that it runs: what the compiler could do without is marked as sunk, and what stands
-- only in front of the loop happens once.
local function allocations_of (tr, trace, info)
   local found, again, loop = {}, {}, nil
   for ref = 1, info.nins do
      local _, ot, _, _, registers = jutil.traceir(tr, ref)
      local op = opcode(ot)
      local register = bit.band(registers or 0, 255)
      local sunk = register == 253 or register == 254
      if op == "LOOP" then
         loop = ref
      elseif ALLOCATES[op] and not sunk then
         if loop then again[op] = true else found[#found + 1] = { ref = ref, op = op } end
      end
   end
   for _, one in ipairs(found) do
      local step = step_of(one.ref)
      if step and (not loop or again[one.op]) then allocation(ALLOCATES[one.op], trace.id, step.func, step.pc) end
   end
end

-- The lines of a function that stays in the interpreter which make something.
local function scan (func)
   local info = jutil.funcinfo(func)
   if not info.proto or scanned[info.proto] then return end
   scanned[info.proto] = true
   for pc = 1, info.bytecodes - 1 do
      local instruction = jutil.funcbc(func, pc)
      if not instruction then break end
      local op = bit.band(instruction, 255)
      local what = MAKES[(vmdef.bcnames:sub(6 * op + 1, 6 * op + 6):gsub("%s+$", ""))]
      if what then allocation(what, nil, func, pc) end
   end
end

local function on_start (tr, func, pc, parent, exit)
   local file, line, app = position(func, pc)
   local parent_trace = parent and current[parent]
   steps = {}
   current[tr] = {
      number = tr, file = file, line = line, app = app or parent_trace and parent_trace.app,
      parent = parent and parent_trace and parent_trace.id or nil, exit = exit,
      exits = {}, guards = {}, samples = 0,
   }
end

local function on_stop (tr)
   local trace, info = current[tr], jutil.traceinfo(tr)
   if not trace or not info then return end
   traces[#traces + 1] = trace
   trace.id = #traces
   trace.link_kind, trace.instructions, trace.nexits = info.linktype, info.nins, info.nexit
   trace.link = info.link ~= tr and current[info.link] and current[info.link].id or nil
   trace.looping = info.link == tr and info.linktype == "loop"
   local code = jutil.tracemc(tr)
   trace.bytes = code and #code or 0
   trace.guards = guards_of(tr, info)
   allocations_of(tr, trace, info)
   local last = steps[#steps]
   if last then trace.end_file, trace.end_line = position(last.func, last.pc) end
   steps = {}
end

local function reason (code, info)
   if type(code) ~= "number" then return tostring(code) end
   local text = vmdef.traceerr[code] or "error "..code
   if type(info) == "function" then
      local called = jutil.funcinfo(info)
      info = called.loc or called.ffid and vmdef.ffnames[called.ffid] or "a C function"
   elseif text == "NYI: bytecode %s" then
      info = vmdef.bcnames:sub(6 * info + 1, 6 * info + 6):gsub("%s+$", "")
   end
   return (text:format(info))
end

local function on_abort (tr, func, pc, code, info)
   local file, line, app = position(func, pc)
   local start = current[tr]
   local why = reason(code, info)
   local key = table.concat({ file, line, why, app or "", start and start.file or "", start and start.line or 0 }, "\0")
   local abort = aborts[key]
   if not abort then
      abort = { file = file, line = line, reason = why, app = app, count = 0,
                from_file = start and start.file, from_line = start and start.line }
      aborts[key] = abort
   end
   abort.count = abort.count + 1
   if why:find("^NYI") then scan(func) end
   steps = {}
   current[tr] = nil
end

-- Samples of what is no trace.
M.states = {}

-- Samples so far belong to the traces so far: numbers are given out again after a flush.
local function settle_samples ()
   for number, count in pairs(host.samples()) do
      local trace = number > 0 and current[number]
      if trace then
         trace.samples = trace.samples + count
      else
         M.states[number] = (M.states[number] or 0) + count
      end
   end
end

local function on_trace (what, tr, func, pc, a, b)
   if what == "start" then
      on_start(tr, func, pc, a, b)
   elseif what == "stop" then
      on_stop(tr)
   elseif what == "abort" then
      on_abort(tr, func, pc, a, b)
   elseif what == "flush" then
      settle_samples()
      current, flushes = {}, flushes + 1
   end
end

local function on_exit (tr, exit)
   local trace = current[tr]
   if trace then trace.exits[exit] = (trace.exits[exit] or 0) + 1 end
end

-- Remembers which line made which ctype. Only what is new counts: asking again for a known one is harmless, and asking for
-- that of a value makes none. `ffi.new` and `ffi.cast` are left alone: they are in loops, and would not be compiled.
local function watch_ctypes ()
   local known = tonumber(ffi.typeof("struct { char x; }"))
   local function watch (name)
      local original = ffi[name]
      ffi[name] = function (declaration, ...)
         local before = known
         local result = original(declaration, ...)
         local id = type(declaration) == "string" and tonumber(result)
         if id and id > before then
            known = id
            local info = debug.getinfo(2, "Sl")
            made_at[id] = { place = info.short_src..":"..info.currentline, call = "ffi."..name }
         end
         return result
      end
   end
   watch("typeof")
   watch("metatype")
end

local SKIP = { input = true, output = true, shm = true }

local function each_cdata (object, path, depth, seen, call)
   if seen[object] or depth == 0 then return end
   seen[object] = true
   for key, value in pairs(object) do
      if type(key) == "string" and not (path == "" and SKIP[key]) then
         local name = path == "" and key or path.."."..key
         if type(value) == "cdata" then
            call(name, typeof(value))
         elseif type(value) == "table" then
            each_cdata(value, name, depth - 1, seen, call)
         end
      end
   end
end

-- The ctypes of what instances hold, by class and field.
function M.look ()
   for _, spec in pairs(instances.specs) do
      if type(spec.object) == "table" then
         local class = classes.name(spec.class)
         each_cdata(spec.object, "", 4, {}, function (name, ctype)
            local key = class.."\0"..name
            local field = fields[key] or { class = class, name = name, apps = {} }
            fields[key] = field
            local id = tonumber(ctype)
            local made = made_at[id] or {}
            field.apps[spec.name] = { ctype = id, type_name = tostring(ctype):match("^ctype<(.*)>$"),
                                      place = made.place, call = made.call }
         end)
      end
   end
end

function M.start ()
   watch_ctypes()
   instances.look = M.look
   jit.attach(on_trace, "trace")
   jit.attach(on_record, "record")
   jit.attach(on_exit, "texit")
end

local function exits_of (trace)
   local list = {}
   for exit, count in pairs(trace.exits) do list[#list + 1] = { exit = exit, count = count } end
   table.sort(list, function (a, b) return a.exit < b.exit end)
   return list
end

local function values (t)
   local list = {}
   for _, value in pairs(t) do list[#list + 1] = value end
   return list
end

-- Everything, as plain tables.
function M.facts ()
   jit.attach(on_trace)
   jit.attach(on_record)
   jit.attach(on_exit)
   M.look()
   settle_samples()
   for _, trace in ipairs(traces) do
      trace.exits = exits_of(trace)
      for _, guard in ipairs(trace.guards) do
         local made = made_at[guard.ctype]
         guard.place, guard.call = made and made.place, made and made.call
      end
   end
   local names = {}
   for _, field in pairs(fields) do
      local apps = {}
      for app, what in pairs(field.apps) do
         what.app = app
         apps[#apps + 1] = what
      end
      table.sort(apps, function (a, b) return a.app < b.app end)
      names[#names + 1] = { class = field.class, name = field.name, apps = apps }
   end
   -- The complements of LuaJIT's states (lj_obj.h): interpreter, C, collector, exit, recorder, optimizer, assembler.
   local function state (n) return M.states[-1 - n] or 0 end
   return {
      traces = traces, aborts = values(aborts), fields = names, allocations = values(allocations), flushes = flushes,
      interpreter = state(0), engine = state(1), collector = state(2), exiting = state(3),
      compiler = state(4) + state(5) + state(6), shared = instances.shared,
   }
end

return M
