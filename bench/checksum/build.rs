//! Compiles the rivals that are written in C, where there is a compiler. Without one the program builds all the same and
//! says which rivals are absent.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const X86_RIVALS: &[&str] = &["linux", "vpp"];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(c_rivals)");
    println!("cargo::rustc-check-cfg=cfg(dpdk)");
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-env-changed=DPDK_INCLUDE");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return;
    }
    let mut build = cc::Build::new();
    build.opt_level(3).warnings(true).extra_warnings(true);
    for rival in X86_RIVALS {
        build.file(format!("c/{rival}.c"));
    }
    if build.try_compile("rivals").is_ok() {
        println!("cargo::rustc-cfg=c_rivals");
    } else {
        println!("cargo::warning=no working C compiler: the Linux and VPP rivals are left out");
        return;
    }
    if let Some(include) = dpdk_headers() {
        let mut build = cc::Build::new();
        build.opt_level(3).file("c/dpdk.c").include(&include).flag("-include").flag("rte_config.h").warnings(false);
        if build.try_compile("dpdk").is_ok() {
            println!("cargo::rustc-cfg=dpdk");
        }
    }
}

/// Only headers are needed: the routine is inline in them.
fn dpdk_headers() -> Option<PathBuf> {
    let named = env::var_os("DPDK_INCLUDE").map(PathBuf::from);
    let installed = || {
        let output = Command::new("pkg-config").args(["--variable=includedir", "libdpdk"]).output().ok()?;
        let directory = String::from_utf8(output.stdout).ok()?;
        (!directory.trim().is_empty()).then(|| Path::new(directory.trim()).join("dpdk"))
    };
    let places = [named, installed(), Some("/usr/include/dpdk".into())];
    places.into_iter().flatten().find(|directory| directory.join("rte_ip.h").is_file())
}
