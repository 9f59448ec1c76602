//! SMC-D for user space: the CLC handshake, link groups, and connections that leave TCP for shared memory.
//!
//! `meet` upgrades a connection, `conn` moves its bytes, `group` owns the memory, `table` is what other processes of
//! the family share and `shortwire ss` reads, `census` its list of link groups. Nothing here waits, and no system call goes through libc: the crate runs
//! inside the hooks of a preloaded library.

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
pub mod hidden;
pub mod inet;
pub mod meet;
mod memory;
pub mod pnet;
pub mod quota;
pub mod reason;
pub mod setting;
pub mod stats;
pub mod sys;
pub mod table;
pub mod trace;
pub mod witness;
