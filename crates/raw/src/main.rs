//! shortwire-raw: runs a program that has no libc of its own to be loaded into, or goes past it.
//!
//! It is a program without libc itself. It maps the other one as the kernel would (`load.rs`), puts a
//! jump in the place of each system call that may concern a connection (`patch.rs`) and jumps to the
//! program. Those calls then arrive at `entry.rs`, on a stack of ours, and are answered in `front.rs`
//! by the socket library. What is the machine's own is in `x86_64.rs` and `aarch64.rs`, and in the folders of these
//! names.
#![cfg_attr(shortwire_raw, no_std, no_main)]
#![allow(unsafe_code)]
// Names of system calls are those of libc.
#![allow(non_upper_case_globals)]

#[cfg(shortwire_raw)]
extern crate alloc;

#[cfg(shortwire_raw)]
#[path = "../../preload/src/alloc.rs"]
mod heap;

#[cfg(shortwire_raw)]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod arch;
#[cfg(shortwire_raw)]
mod begin;
#[cfg(shortwire_raw)]
mod call;
#[cfg(shortwire_raw)]
mod candidates;
#[cfg(shortwire_raw)]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/dispatch.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/dispatch.rs")]
mod dispatch;
#[cfg(shortwire_raw)]
mod entry;
#[cfg(shortwire_raw)]
mod exec;
#[cfg(shortwire_raw)]
mod front;
#[cfg(shortwire_raw)]
mod itself;
#[cfg(shortwire_raw)]
mod later;
#[cfg(shortwire_raw)]
mod libc_names;
#[cfg(shortwire_raw)]
mod load;
#[cfg(shortwire_raw)]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/memory.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/memory.rs")]
mod memory;
#[cfg(shortwire_raw)]
mod patch;
#[cfg(shortwire_raw)]
mod signals;
#[cfg(shortwire_raw)]
#[path = "../../preload/src/start.rs"]
mod start;

/// Built with libc, as checks of all crates together do, there is nothing to run.
#[cfg(not(shortwire_raw))]
fn main() {
    eprintln!("shortwire-raw: built with libc; see `make raw`");
    std::process::exit(1);
}
