//! Compiles the rivals that are written in C, where there is a compiler. Without one the program
//! builds all the same and says which rivals are absent.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const X86_RIVALS: &[&str] = &["linux", "vpp"];

fn main() {
    old_glibc::link(old_glibc::Product::Programs);
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
    let headers = dpdk_headers();
    if !headers.is_empty() {
        let mut build = cc::Build::new();
        // With AVX2, because DPDK's users build for their own processor.
        build
            .opt_level(3)
            .file("c/dpdk.c")
            .flag("-include")
            .flag("rte_config.h")
            .flag("-mavx2")
            .warnings(false);
        if build.includes(headers).try_compile("dpdk").is_ok() {
            println!("cargo::rustc-cfg=dpdk");
        }
    }
}

/// The directories of DPDK's headers: those that DPDK_INCLUDE lists, or the installed ones. Only
/// headers are needed: the routine is inline in them.
fn dpdk_headers() -> Vec<PathBuf> {
    if let Some(listed) = env::var_os("DPDK_INCLUDE") {
        return env::split_paths(&listed).collect();
    }
    let output = Command::new("pkg-config").args(["--cflags-only-I", "libdpdk"]).output();
    let flags =
        output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    flags.split_whitespace().filter_map(|flag| flag.strip_prefix("-I")).map(PathBuf::from).collect()
}
