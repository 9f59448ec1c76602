//! The modules that scripts find without any file: ours, and LuaJIT's own tools.

use mlua::{Function, Lua};

/// A module that libraries require, of which everything is there without it: C declarations of
/// what this engine declares itself, and a check of globals that is not for other people's scripts.
const NOTHING: &str = "";

/// Name and source. The file name, which messages and traces show, is the name with slashes.
const OURS: &[(&str, &str)] = &[
    ("core.app", include_str!("modules/core/app.lua")),
    ("core.config", include_str!("modules/core/config.lua")),
    ("core.clib_h", NOTHING),
    ("core.counter", include_str!("modules/core/counter.lua")),
    ("core.counter_h", NOTHING),
    ("core.lib", include_str!("modules/core/lib.lua")),
    ("core.lib_h", NOTHING),
    ("core.link", include_str!("modules/core/link.lua")),
    ("core.link_h", NOTHING),
    ("core.main", include_str!("modules/core/main.lua")),
    ("core.memory", include_str!("modules/core/memory.lua")),
    ("core.memory_h", NOTHING),
    ("core.memory_layout", include_str!("modules/core/memory_layout.lua")),
    ("core.packet", include_str!("modules/core/packet.lua")),
    ("core.packet_h", NOTHING),
    ("core.shm", include_str!("modules/core/shm.lua")),
    ("core.timer", include_str!("modules/core/timer.lua")),
    ("dasm", include_str!("modules/dasm.lua")),
    ("lib.checksum", include_str!("modules/lib/checksum.lua")),
    ("lib.lua.class", include_str!("modules/lib/lua/class.lua")),
    ("lib.lua.strict", NOTHING),
    ("shortwire.classes", include_str!("modules/shortwire/classes.lua")),
    ("shortwire.copies", include_str!("modules/shortwire/copies.lua")),
    ("shortwire.errors", include_str!("modules/shortwire/errors.lua")),
    ("shortwire.instances", include_str!("modules/shortwire/instances.lua")),
    ("shortwire.mac_table", include_str!("modules/shortwire/mac_table.lua")),
    ("shortwire.prelude", include_str!("modules/shortwire/prelude.lua")),
    ("shortwire.traces", include_str!("modules/shortwire/traces.lua")),
    ("apps.basic.basic_apps", include_str!("modules/apps/basic_apps.lua")),
    ("apps.intel.intel_app", include_str!("modules/apps/intel_app.lua")),
    ("apps.packet_filter.pcap_filter", include_str!("modules/apps/pcap_filter.lua")),
    ("apps.pcap.pcap", include_str!("modules/apps/pcap.lua")),
    ("apps.socket.raw", include_str!("modules/apps/raw.lua")),
    ("apps.socket.unix", include_str!("modules/apps/unix.lua")),
    ("apps.tap.tap", include_str!("modules/apps/tap.lua")),
    ("apps.xdp.xdp", include_str!("modules/apps/xdp.lua")),
];

/// Subcommands as the programs that scripts know; each is the module `program.lua`, which tells
/// them by name.
const PROGRAMS: &[&str] = &[
    "program.loadtest.loadtest",
    "program.packetblaster.packetblaster",
    "program.packetblaster.replay.replay",
    "program.packetblaster.synth.synth",
    "program.ps.ps",
    "program.snsh.snsh",
    "program.top.top",
];

/// `jit.dump`, `jit.p`, `jit.vmdef` and so on, from the sources of the very LuaJIT that is linked.
const LUAJIT: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/jit_modules.rs"));

/// Parsed when first required, so that a script pays for what it uses.
const PRELOAD: &str = "local name, file, source = ...
package.preload[name] = function (...) return assert(loadstring(source, '@'..file))(...) end";

pub fn install(lua: &Lua) -> mlua::Result<()> {
    let preload: Function = lua.load(PRELOAD).set_name("=preload").into_function()?;
    let programs = PROGRAMS.iter().map(|name| (*name, include_str!("modules/program.lua")));
    for (name, source) in OURS.iter().chain(LUAJIT).copied().chain(programs) {
        preload.call::<()>((name, format!("{}.lua", name.replace('.', "/")), source))?;
    }
    Ok(())
}
