//! SMC-D for user space: the CLC handshake, link groups, and connections that leave TCP for shared
//! memory.
//!
//! `meet` upgrades a connection, `conn` moves its bytes, `group` owns the memory, `table` is what
//! processes share that have connections in common and `shortwire ss` reads, `census` its list of
//! link groups. Nothing here waits, and no system call goes through libc: the crate runs inside the
//! hooks of a preloaded library.
#![cfg_attr(shortwire_raw, no_std)]
#![cfg(not(loom))]
#![deny(missing_docs)]
#![deny(clippy::multiple_unsafe_ops_per_block)]

extern crate alloc;

pub mod bar;
pub mod broker;
pub mod census;
pub mod channel;
pub mod clc;
pub mod config;
pub mod conn;
pub mod device;
pub mod directory;
pub mod group;
mod hash;
pub mod hidden;
pub mod home;
pub mod inet;
pub mod kept;
pub mod kind;
pub mod log;
pub mod meet;
mod memory;
pub mod off;
mod owner;
pub mod pnet;
pub mod policy;
mod proof;
pub mod quota;
pub mod reason;
pub mod release;
pub mod run_dir;
pub mod setting;
pub mod stats;
pub mod sys;
#[allow(clippy::multiple_unsafe_ops_per_block)]
pub mod table;
pub mod trace;
pub mod user;
pub mod witness;

/// The application wants the number of a descriptor of ours: it gets another one, and whoever keeps
/// it is told. The new number, if it was one of ours.
pub fn give_way(fd: i32) -> Option<i32> {
    let now = hidden::give_way(fd)?;
    table::moved_fd(fd, now);
    quota::moved_fd(fd, now);
    bar::moved_fd(fd, now);
    group::lanes::moved_fd(fd, now);
    conn::bells::moved_fd(fd, now);
    kind::VERBS.moved_fd(fd, now);
    Some(now)
}

/// In the parent of a fork.
pub fn after_fork_parent() {
    group::after_fork_parent();
}

/// In a fork child, by its only thread, before anything else of this crate: it is another peer,
/// with devices and groups of its own. Of the descriptors it keeps those of the table, and that of
/// a bar that inherited connections use.
pub fn after_fork_child() {
    hidden::after_fork_child(|fd| table::hidden_fds().any(|own| own == fd) || bar::keeps(fd));
    group::after_fork_child();
    conn::bells::after_fork_child();
    conn::after_fork_child();
}
