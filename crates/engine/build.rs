//! Builds LuaJIT for the feature `lua`, and embeds the parts of LuaJIT that are written in Lua
//! (`jit.dump`, `jit.p` ...).
#![allow(unsafe_code)]

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "lua")]
    luajit::build();
}

#[cfg(feature = "lua")]
mod luajit {
    use std::fmt::Write;
    use std::path::{Path, PathBuf};
    use std::{env, fs};

    pub fn build() {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        let shared = shared(&out);
        println!("cargo:rustc-link-search=native={}", shared.join("lib").display());
        // All of it: what mlua asks for stands behind this crate on the command line, and a linker that
        // goes through archives once (GNU ld) would have left that out.
        println!("cargo:rustc-link-lib=static:+whole-archive=luajit");
        println!("cargo:rerun-if-changed=src/lua/vmstate.c");
        cc::Build::new()
            .file("src/lua/vmstate.c")
            .include(shared.join("luajit-build/src"))
            .warnings(false)
            .compile("vmstate");
        println!("cargo:rerun-if-changed=src/lua/dynasm.c");
        if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
            cc::Build::new()
                .file("src/lua/dynasm.c")
                .include(shared.join("luajit-build/dynasm"))
                .warnings(false)
                .compile("dynasm");
        }
        embed(&shared.join("luajit-build/src/jit"), &out.join("jit_modules.rs"));
    }

    /// One build for all profiles and for what only checks the code: it takes longer than the
    /// crate, and is the same for all.
    fn shared(out: &Path) -> PathBuf {
        // OUT_DIR is TARGET/[TRIPLE/]PROFILE/build/PACKAGE/out.
        let target = out.ancestors().nth(4).expect("a target folder");
        let triple = env::var("TARGET").expect("cargo sets TARGET");
        let folder = target.join(format!("luajit-{}-52-{triple}", version()));
        fs::create_dir_all(&folder).expect("a writable target folder");
        // Another profile may be building it.
        let lock = fs::File::create(folder.join("lock")).expect("a writable target folder");
        lock.lock().expect("a file system with locks");
        let whole = folder.join("whole");
        if !whole.exists() {
            if let Some(jobs) = env::var_os("CARGO_MAKEFLAGS") {
                // SAFETY: a build script has one thread.
                unsafe { env::set_var("MAKEFLAGS", jobs) };
            }
            // Its assertions would slow every breath of a debug build, and abort on what is an
            // error otherwise.
            // As Snabb's: `#` and `pairs` ask metatables, which libraries count on.
            luajit_src::Build::new().debug(false).lua52compat(true).out_dir(&folder).build();
            fs::write(whole, "").expect("a writable target folder");
        }
        folder
    }

    /// The version of the crate that brings LuaJIT's sources, as Cargo.lock has it: another one is
    /// built anew.
    fn version() -> String {
        let lock = fs::read_to_string("../../Cargo.lock").unwrap_or_default();
        let package =
            lock.split("[[package]]").find(|package| package.contains("name = \"luajit-src\""));
        let version =
            package.and_then(|package| package.split("version = \"").nth(1)?.split('"').next());
        version.unwrap_or("unknown").to_string()
    }

    /// Writes a table of module names and sources. `vmdef` was made by LuaJIT's build and fits this
    /// very version only.
    fn embed(folder: &Path, to: &Path) {
        let mut table = String::from("&[\n");
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .expect("LuaJIT's own modules")
            .map(|entry| entry.expect("a readable folder").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "lua"))
            .collect();
        names.sort();
        for path in names {
            let name = path.file_stem().expect("a file name").to_string_lossy();
            // By its way from here: a checkout that is moved takes its target folder along.
            let way = way(to, &path);
            writeln!(table, "    (\"jit.{name}\", include_str!({way:?})),").expect("memory");
        }
        table.push_str("]\n");
        std::fs::write(to, table).expect("a writable OUT_DIR");
    }

    /// From the folder of one file to another file of the same target folder.
    fn way(from: &Path, to: &Path) -> PathBuf {
        let shared =
            from.ancestors().find(|folder| to.starts_with(folder)).expect("one target folder");
        let up =
            from.parent().expect("a folder").strip_prefix(shared).expect("below it").components();
        let down = to.strip_prefix(shared).expect("below it");
        up.map(|_| "..").collect::<PathBuf>().join(down)
    }
}
