//! What libraries written for Snabb take for granted, and these libraries themselves where their
//! sources are at hand: `SHORTWIRE_SNABB=DIR cargo test -p engine --test libraries -- --nocapture`.
#![cfg(feature = "lua")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::Options;
use engine::counters::RunDir;
use engine::lua::{Session, Settings};

/// A session with a run directory of its own.
fn session(folder: &Path) -> Session {
    let run_dir = RunDir::create(folder).expect("a writable folder");
    let engine = Options { run_dir: Some(Arc::new(run_dir)), ..Options::default() };
    Session::new(Settings { engine, ..Settings::default() }).expect("an interpreter")
}

fn runs(code: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if let Err(error) = session(folder.path()).run_code(code, &[]) {
        panic!("{error}");
    }
}

#[test]
fn classes_inherit_and_use_objects_again() {
    runs(
        r#"
        local Base = subClass()
        Base._name = "base"
        function Base:new (n)
           local o = Base:superClass().new(self)
           o.n = n
           return o
        end
        function Base:twice () return self.n * 2 end
        local Derived = subClass(Base)
        function Derived:twice () return Derived:superClass().twice(self) + 1 end
        local one = Derived:new(3)
        assert(one:twice() == 7 and one:name() == "base" and one:class() == Derived and not one._recycled)
        one:free()
        local other = Derived:new(5)
        assert(other == one and other._recycled and other:twice() == 11)
        assert(Derived:new(1) ~= other)
        assert(other:new(8) == other and other:twice() == 17)
        assert(not pcall(function () return require("lib.lua.class"):new() end))
        "#,
    );
}

#[test]
fn texts_are_split_at_patterns() {
    runs(
        r#"
        local function parts (text, pattern)
           local found = {}
           for part, separator in text:split(pattern) do found[#found + 1] = part.."|"..tostring(separator) end
           return table.concat(found, " ")
        end
        local function check (got, want) if got ~= want then error(got.." instead of "..want) end end
        check(parts("a, b,c", "%s*,%s*"), "a|,  b|, c|nil")
        check(parts("", ","), "|nil")
        check(parts(",", ","), "|, |nil")
        check(parts("10.0.0.1", "%."), "10|. 0|. 0|. 1|nil")
        check(parts("k=v;l=w", "(=)%w"), "k|= ;l|= |nil")
        check(parts("abc", ""), "a| b| c|nil")
        "#,
    );
}

#[test]
fn functions_of_c_are_there_and_compiled() {
    runs(
        r#"
        local ffi, C = require("ffi"), require("ffi").C
        local stopped, aborted = 0, 0
        jit.attach(function (what)
           if what == "stop" then stopped = stopped + 1 elseif what == "abort" then aborted = aborted + 1 end
        end, "trace")
        local bytes = ffi.new("uint8_t[64]")
        local last, sum = C.get_time_ns(), 0
        for i = 1, 10000 do
           local now = C.get_time_ns()
           assert(now >= last)
           last = now
           sum = sum + C.cksum_generic(bytes, 64, 1) + C.memcmp(bytes, bytes, 64)
        end
        jit.attach(function () end)
        assert(sum == 10000 * 0xfffe and stopped > 0 and aborted == 0)
        assert(math.abs(C.get_unix_time() - os.time()) < 3 and C.get_monotonic_time() > 0)
        assert(C.stat_mtime("/proc/self/nothing") == 0 and C.stat_mtime("/etc/passwd") > 0)
        C.sleep_ns(1) C.full_memory_barrier() C.nop() C.prefetch_for_read(nil)
        assert(not pcall(function () return C.no_such_function end))
        "#,
    );
}

#[test]
fn checksums_are_those_of_the_engine() {
    runs(
        r#"
        local ffi, lib, checksum = require("ffi"), require("core.lib"), require("lib.checksum")
        -- RFC 1071's example, its sum in parts, and an odd length.
        local data = lib.hexundump("0001f203f4f5f6f7", 8)
        assert(checksum.ipsum(data, 8, 0) == 0x220d and lib.csum(data, 8) == 0x220d)
        assert(checksum.ipsum(data, 8, 0x1234) == 0x0fd9)
        assert(lib.finish_csum(lib.update_csum(data:sub(5), 4, lib.update_csum(data, 4))) == 0x220d)
        assert(lib.csum("\1", 1) == 0xfeff)
        -- IPv4 and UDP, then a header of which a field changes.
        local text = "4500001c00000000401100000a0000010a000002".."0001000200080000"
        local p = ffi.new("uint8_t[28]", lib.hexundump(text, 28))
        local from, place = checksum.prepare_packet4(p, 28)
        assert(from == 20 and place == 6 and lib.csum(p, 20) == 0)
        local rest = lib.csum(p + 20, 8)
        ffi.cast("uint16_t *", p + 26)[0] = lib.htons(rest)
        assert(checksum.verify_packet(p, 28) == true)
        ffi.C.checksum_update_incremental_16(ffi.cast("uint16_t *", p + 26), ffi.cast("uint16_t *", p + 20), 0xabcd)
        assert(checksum.verify_packet(p, 28) == true and p[20] == 0xab)
        ffi.C.checksum_update_incremental_32(ffi.cast("uint16_t *", p + 10), ffi.cast("uint32_t *", p + 16), 0x01020304)
        assert(lib.csum(p, 20) == 0 and p[19] == 4 and checksum.verify_packet(p, 28) == false)
        p[0] = 0x46
        assert(checksum.verify_packet(p, 28) == false)
        p[0] = 0
        assert(checksum.verify_packet(p, 28) == nil)
        local six = ffi.new("uint8_t[48]", lib.hexundump("60000000"..("0008113f")..("00"):rep(32).."0001000200080000", 48))
        from, place = checksum.prepare_packet6(six, 48)
        assert(from == 40 and place == 6)
        ffi.cast("uint16_t *", six + 46)[0] = lib.htons(lib.csum(six + 40, 8))
        assert(checksum.verify_packet(six, 48) == true)
        "#,
    );
}

#[test]
fn sequence_numbers_are_followed_across_their_lower_half() {
    runs(
        r#"
        local ffi, C = require("ffi"), require("ffi").C
        local window, highest = ffi.new("uint8_t[16]"), 0xfffffffaULL
        local function come (low)
           local high = tonumber(C.check_seq_no(low, highest, window, 128))
           if high >= 0 then highest = C.track_seq_no(high, low, highest, window, 128) end
           return high
        end
        assert(come(0xfffffffb) == 0 and come(0xfffffffb) == -1)
        assert(come(3) == 1 and highest == 0x100000003ULL)
        -- Late ones of the lower half's end, once each.
        assert(come(0xfffffffd) == 0 and come(0xfffffffd) == -1 and come(2) == 1 and come(2) == -1)
        -- Far ahead nothing that was seen remains.
        assert(come(1000) == 1 and highest == 0x1000003e8ULL and come(999) == 1)
        "#,
    );
}

#[test]
fn objects_are_shared_by_name_and_go_with_the_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let session = session(folder.path());
    let made = session.run_code(
        r#"
        local ffi, shm, counter = require("ffi"), require("core.shm"), require("core.counter")
        local one = shm.create("group/object", "struct { int x, y; }")
        one.x = 42
        local other = shm.open("group/object", "struct { int x, y; }", "readonly")
        assert(one ~= other and other.x == 42)
        local array = shm.create("group/array", "struct { int n; uint64_t v[?]; }", 10)
        array.v[9] = 7
        assert(shm.open("group/array", "struct { int n; uint64_t v[?]; }", true, 10).v[9] == 7)
        local ok, problem = pcall(shm.open, "group/object", "uint64_t[100]")
        assert(not ok and problem:find("it has 8 bytes, where 800 are needed", 1, true), problem)
        assert(not pcall(shm.open, "group/nothing", "int"))
        table.sort(shm.children("group"))
        assert(#shm.children("group") == 2 and shm.exists("group/array"))
        shm.unmap(one)
        assert(not pcall(shm.unmap, one))
        assert(shm.unlink("group/object") and not shm.exists("group/object"))
        local frame = shm.create_frame("f", { drops = { counter, 5 } })
        counter.add(frame.drops, 2)
        assert(counter.read(frame.drops) == 7ULL and tostring(frame.drops) == "7")
        assert(shm.open_frame("f").drops.c == 7)
        shm.delete_frame(frame)
        assert(not shm.exists("f") and #shm.children("f") == 0)
        shm.alias("again", "group/array")
        assert(shm.open("again", "uint8_t[4]")[0] == 0)
        "#,
        &[],
    );
    if let Err(error) = made {
        panic!("{error}");
    }
    drop(session);
    let left = std::fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(left, 0);
}

#[test]
fn links_are_made_without_an_engine() {
    runs(
        r#"
        local l = link.new("test")
        for i = 1, link.max + 1 do link.transmit(l, packet.from_string(("x"):rep(i % 60))) end
        assert(link.stats(l).txdrop == 1 and link.nreadable(l) == link.max)
        local p = link.receive(l)
        assert(p.length == 1)
        packet.free(p)
        link.free(l, "test")
        assert(link.empty(l))
        l = nil
        collectgarbage()
        "#,
    );
}

/// An app with counters of a class, one that pushes per link, and one that comes again with
/// another argument.
#[test]
fn classes_keep_their_description_of_counters() {
    runs(
        r#"
        local counter, basic = require("core.counter"), require("apps.basic.basic_apps")
        local Work = { shm = { seen = { counter } } }
        function Work:new (step)
           return setmetatable({ step = step, push_link = {} }, { __index = Work })
        end
        function Work:link (direction, name)
           if direction == "output" then return end
           self.push_link[name] = function (self, from)
              while not link.empty(from) do
                 counter.add(self.shm.seen, self.step)
                 packet.free(link.receive(from))
              end
           end
        end
        local c = config.new()
        config.app(c, "source", basic.Source, 60)
        config.app(c, "work", Work, 1)
        config.link(c, "source.output -> work.input")
        assert(not pcall(config.app, c, "work", Work, 2))
        engine.configure(c)
        engine.main({ duration = 0.01, no_report = true })
        local seen = tonumber(engine.app_table.work.shm.seen.c)
        assert(seen > 0 and Work.shm.seen[1] == counter)
        -- A configuration that runs may be changed, and taken over again.
        config.app(c, "work", Work, 1000)
        engine.configure(c)
        engine.main({ duration = 0.01, no_report = true })
        assert(engine.app_table.work.shm.seen.c % 1000 == 0 and engine.app_table.work.shm.seen.c > 0)
        -- A description that only the object has, and an app of the engine's that says when it is done.
        local Own = {}
        function Own:new () return setmetatable({ shm = { seen = { counter, 7 } } }, { __index = Own }) end
        c = config.new()
        config.app(c, "own", Own)
        config.app(c, "source", basic.Source)
        engine.configure(c)
        local shm = require("core.shm")
        assert(engine.app_table.own.shm.seen.c == 7 and engine.app_table.source.done == false)
        assert(shm.exists("apps/own/seen.counter"))
        engine.stop()
        assert(not shm.exists("apps/own/seen.counter"))
        "#,
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
fn code_is_assembled_as_dynasm_translates_it() {
    // `mov eax, edi; add eax, imm32; ret`: 252 is in front of a byte that would be an action, 237 stands for an argument, 255 ends.
    runs(
        r#"
        local ffi, dasm = require("ffi"), require("dasm")
        local actions = ffi.new("const uint8_t[7]", { 137, 252, 248, 5, 237, 195, 255 })
        local state = dasm.new(actions)
        dasm.put(state, 0, 0xfffffffe)
        local code, size = state:build()
        assert(size == 8)
        local minus_two = ffi.cast("int (*)(int)", code)
        assert(minus_two(44) == 42)
        -- Written code cannot be changed, and states that made none say so.
        assert(not pcall(dasm.build, dasm.new(actions)))
        "#,
    );
}

#[test]
fn headers_and_texts_of_a_tree_are_modules() {
    let tree = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, text: &str| {
        let path = tree.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a writable folder");
        std::fs::write(path, text).expect("a writable folder");
    };
    let session = session(&tree.path().join("run"));
    let missing = session.search_in_snabb(tree.path()).expect_err("there is nothing yet");
    assert!(missing.to_string().contains("src/dynasm.lua"), "{missing}");
    file(
        "src/dynasm.lua",
        "return { loadfile = function (path) return function () return path end end }",
    );
    file(
        "src/lib/own.h",
        "#include <stdint.h>\n // an array\nenum { OWN_SIZE = 7 };\n  #define X\nstruct own { int a[OWN_SIZE]; };\n",
    );
    file("src/lib/own.events", "1,2|own: text\n");
    file("src/lib/a-model.yang", "module a-model {}");
    file("src/lib/code.dasl", "");
    file("lib/ljsyscall/syscall.lua", "loaded_first = true return {}");
    file("lib/pflua/src/pf.lua", "return loaded_first");
    session.search_in_snabb(tree.path()).expect("a tree");
    let code = r#"
        require("lib.own_h")
        assert(require("ffi").sizeof("struct own") == 28 and require("ffi").C.OWN_SIZE == 7)
        assert(require("lib.own_events") == "1,2|own: text\n" and require("lib.a_model_yang") == "module a-model {}")
        assert(require("lib.code"):match("src/lib/code%.dasl$"))
        assert(require("pf") == true)
        local ok, problem = pcall(require, "lib.nothing_h")
        assert(not ok and problem:find("src/lib/nothing.h", 1, true), problem)
        assert(require("core.lib").have_module("lib.own_h") and not require("core.lib").have_module("lib.nothing"))
    "#;
    if let Err(error) = session.run_code(code, &[]) {
        panic!("{error}");
    }
}

/// Modules of Snabb that need no hardware; those that are marked have a selftest that passes. What
/// the others lack is in doc/snsh.md.
const LIBRARIES: &str = include_str!("libraries.txt");

/// Run by `snabbs_own_libraries_run` in a process for each module.
#[test]
fn one_module() {
    let (Some(folder), Ok(module)) =
        (std::env::var_os("SHORTWIRE_SNABB"), std::env::var("SHORTWIRE_TEST_MODULE"))
    else {
        return;
    };
    let runs = tempfile::tempdir().expect("a temporary folder");
    let session = session(runs.path());
    session.search_in_snabb(Path::new(&folder)).expect("Snabb's sources");
    let code = format!(
        "local out = io.stdout out:setvbuf('no') local module = require('{module}') out:write('\\nloaded\\n') \
         module = type(module) == 'table' and module or package.loaded['{module}'] \
         if os.getenv('SHORTWIRE_TEST_SELFTEST') then module.selftest() out:write('\\npassed\\n') end"
    );
    if let Err(error) = session.run_code(&code, &[]) {
        panic!("{error}");
    }
}

#[test]
fn snabbs_own_libraries_run() {
    let Some(folder) = std::env::var_os("SHORTWIRE_SNABB").map(PathBuf::from) else {
        return println!("skipped: SHORTWIRE_SNABB names no folder of Snabb's sources");
    };
    let (mut loaded, mut passed, mut wrong) = (0, 0, Vec::new());
    for line in LIBRARIES.lines().filter(|line| !line.is_empty()) {
        let (module, has_selftest) = match line.strip_suffix(" selftest") {
            Some(module) => (module, true),
            None => (line, false),
        };
        let said = said_by(&folder, module, has_selftest);
        loaded += usize::from(said.contains("\nloaded\n"));
        passed += usize::from(said.contains("\npassed\n"));
        if !said.contains("\nloaded\n") || has_selftest && !said.contains("\npassed\n") {
            wrong.push(format!("{module}:\n{said}"));
        }
    }
    println!("{loaded} modules loaded, {passed} selftests passed");
    assert!(wrong.is_empty(), "{} of them wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// What a process of its own says that loads the module; it is ended when it takes minutes.
fn said_by(folder: &Path, module: &str, selftest: bool) -> String {
    let out = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    if selftest {
        command.env("SHORTWIRE_TEST_SELFTEST", "1");
    }
    let mut child = command
        .args(["one_module", "--exact", "--nocapture"])
        .env("SHORTWIRE_SNABB", folder)
        .env("SHORTWIRE_TEST_MODULE", module)
        .current_dir(folder.join("src"))
        .stdin(Stdio::null())
        .stdout(out.as_file().try_clone().expect("the file"))
        .stderr(out.as_file().try_clone().expect("the file"))
        .spawn()
        .expect("this test");
    let end = Instant::now() + Duration::from_secs(900);
    while child.try_wait().expect("a child").is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    String::from_utf8_lossy(&std::fs::read(out.path()).expect("the file")).into_owned()
}
