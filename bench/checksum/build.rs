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
    println!("cargo::rustc-check-cfg=cfg(linux_source)");
    println!("cargo::rerun-if-env-changed=LINUX_SOURCE");
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
    if linux_source() {
        println!("cargo::rustc-cfg=linux_source");
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

/// The kernel's own routine, where `LINUX_SOURCE` names a tree of it: its licence, the GPL, is not
/// ours, so it is not shipped. With the flags that the kernel's code generation has, and headers of
/// our own in the place of those that it includes.
fn linux_source() -> bool {
    let Some(tree) = env::var_os("LINUX_SOURCE") else { return false };
    let file = PathBuf::from(tree).join("arch/x86/lib/csum-partial_64.c");
    if !file.exists() {
        println!("cargo::warning=LINUX_SOURCE: there is no {}", file.display());
        return false;
    }
    println!("cargo::rerun-if-changed={}", file.display());
    let mut build = cc::Build::new();
    build.opt_level(2).file(file).include("c/kernel").warnings(false);
    for flag in [
        "-std=gnu11",
        "-fno-strict-aliasing",
        "-fno-strict-overflow",
        "-mno-sse",
        "-mno-mmx",
        "-mno-sse2",
        "-mno-avx",
        "-mno-80387",
        "-mno-red-zone",
        "-falign-functions=16",
        "-fno-asynchronous-unwind-tables",
    ] {
        build.flag_if_supported(flag);
    }
    build.try_compile("linux_source").is_ok()
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
