//! How the artefact is linked: by itself, with nothing of libc. An empty archive stands where libc
//! would be looked for, so that a name of libc that is still asked for ends the build.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    build_id::tell();
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_CFG_SHORTWIRE_RAW").is_none() {
        return;
    }
    let empty = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("empty");
    fs::create_dir_all(&empty).expect("a folder of cargo's");
    for name in ["c", "m", "rt", "pthread", "util", "dl", "gcc_s", "gcc", "gcc_eh"] {
        fs::write(empty.join(format!("lib{name}.a")), "!<arch>\n").expect("a file there");
    }
    println!("cargo:rustc-link-arg-bins=-L{}", empty.display());
    for arg in [
        "-nostartfiles",
        "-nostdlib",
        "-static-pie",
        "-Wl,-z,norelro",
        "-Wl,--gc-sections",
        "-Wl,--build-id",
    ] {
        println!("cargo:rustc-link-arg-bins={arg}");
    }
}
