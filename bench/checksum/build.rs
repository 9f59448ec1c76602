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
    let machine = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    if machine == "x86_64" {
        let mut build = cc::Build::new();
        build.opt_level(3).warnings(true).extra_warnings(true);
        for rival in X86_RIVALS {
            build.file(format!("c/{rival}.c"));
        }
        if build.try_compile("rivals").is_err() {
            println!("cargo::warning=no working C compiler: rivals in C are left out");
            return;
        }
        println!("cargo::rustc-cfg=c_rivals");
    }
    if linux_source(&machine) {
        println!("cargo::rustc-cfg=linux_source");
    }
    let headers = dpdk_headers();
    if !headers.is_empty() {
        let mut build = cc::Build::new();
        build.opt_level(3).file("c/dpdk.c").flag("-include").flag("rte_config.h").warnings(false);
        // Because DPDK's users build for their own processor.
        build.flag_if_supported(if machine == "x86_64" { "-mavx2" } else { "-march=armv8-a+crc" });
        if build.includes(headers).try_compile("dpdk").is_ok() {
            println!("cargo::rustc-cfg=dpdk");
        }
    }
}

/// The kernel's own routine, where `LINUX_SOURCE` names a tree of it: its licence, the GPL, is not
/// ours, so it is not shipped. With the flags that the kernel's code generation has, and headers of
/// our own in the place of those that it includes.
fn linux_source(machine: &str) -> bool {
    let Some(tree) = env::var_os("LINUX_SOURCE") else { return false };
    let file = match machine {
        "x86_64" => "arch/x86/lib/csum-partial_64.c",
        "aarch64" => "arch/arm64/lib/csum.c",
        _ => return false,
    };
    let file = PathBuf::from(tree).join(file);
    if !file.exists() {
        println!("cargo::warning=LINUX_SOURCE: there is no {}", file.display());
        return false;
    }
    println!("cargo::rerun-if-changed={}", file.display());
    let mut build = cc::Build::new();
    build.opt_level(2).file(file).include("c/kernel").warnings(false);
    let of_machine: &[&str] = match machine {
        "x86_64" => &[
            "-mno-sse",
            "-mno-mmx",
            "-mno-sse2",
            "-mno-avx",
            "-mno-80387",
            "-mno-red-zone",
            "-falign-functions=16",
        ],
        _ => &["-mgeneral-regs-only"],
    };
    let of_all = [
        "-std=gnu11",
        "-fno-strict-aliasing",
        "-fno-strict-overflow",
        "-fno-asynchronous-unwind-tables",
    ];
    for flag in of_all.iter().chain(of_machine) {
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
    // Installed are those of this machine.
    if env::var("HOST") != env::var("TARGET") {
        return Vec::new();
    }
    let output = Command::new("pkg-config").args(["--cflags-only-I", "libdpdk"]).output();
    let flags =
        output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    flags.split_whitespace().filter_map(|flag| flag.strip_prefix("-I")).map(PathBuf::from).collect()
}
