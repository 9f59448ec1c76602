//! Builds LuaJIT for the feature `lua`, and embeds the parts of LuaJIT that are written in Lua (`jit.dump`, `jit.p` ...).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "lua")]
    luajit::build();
}

#[cfg(feature = "lua")]
mod luajit {
    use std::fmt::Write;
    use std::path::{Path, PathBuf};

    pub fn build() {
        // Its assertions would slow every breath of a debug build, and abort on what is an error otherwise.
        luajit_src::Build::new().debug(false).build().print_cargo_metadata();
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        println!("cargo:rerun-if-changed=src/lua/vmstate.c");
        cc::Build::new()
            .file("src/lua/vmstate.c")
            .include(out.join("luajit-build/src"))
            .warnings(false)
            .compile("vmstate");
        embed(&out.join("luajit-build/src/jit"), &out.join("jit_modules.rs"));
    }

    /// Writes a table of module names and sources. `vmdef` was made by LuaJIT's build and fits this very version only.
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
            let way = path.strip_prefix(to.parent().expect("a folder")).expect("a part of OUT_DIR");
            writeln!(table, "    (\"jit.{name}\", include_str!({way:?})),").expect("memory");
        }
        table.push_str("]\n");
        std::fs::write(to, table).expect("a writable OUT_DIR");
    }
}
