//! libibverbs in software, for processes of one machine that has no RDMA: reliable connected queue
//! pairs, completion queues and memory regions with their keys and bounds, behind the very same
//! structures and functions.
//!
//! The wire is the kernel's copy between processes ([`crate::far`]), for which both need each
//! other's rights of ptrace. A write is carried out by the thread that posts it, and is in the
//! peer's memory when the post returns: only then there is its completion. The peer takes no part
//! in it. What a remote adapter would look at the poster does, in memory that the peer publishes
//! (`adapter`): whether the queue pair is there and connected to this one, and whether the key
//! opens that memory for that. What the rules of verbs forbid fails as it does in hardware: the
//! request with an error, and all behind it are flushed.
//!
//! Two-sided operations and immediate data are not provided; `ibv` says which functions there are.
//! Nothing is allocated but the adapter, once for each process.

mod adapter;
mod ibv;
mod post;

use crate::abi::Ibv;

pub use adapter::{MOST_PAIRS, MOST_REGIONS};

/// Its functions, as the system's library has them.
pub fn api() -> &'static Ibv {
    &Ibv {
        ibv_get_device_list: ibv::get_device_list,
        ibv_free_device_list: ibv::free_device_list,
        ibv_open_device: ibv::open_device,
        ibv_close_device: ibv::close_device,
        ibv_query_device: ibv::query_device,
        ibv_query_port: ibv::query_port,
        ibv_query_gid: ibv::query_gid,
        ibv_alloc_pd: ibv::alloc_pd,
        ibv_dealloc_pd: ibv::dealloc_pd,
        ibv_reg_mr: ibv::reg_mr,
        ibv_dereg_mr: ibv::dereg_mr,
        ibv_create_cq: ibv::create_cq,
        ibv_destroy_cq: ibv::destroy_cq,
        ibv_create_qp: ibv::create_qp,
        ibv_modify_qp: ibv::modify_qp,
        ibv_destroy_qp: ibv::destroy_qp,
    }
}

/// A GID that the process `pid` told, as it is here: that process may know itself by another
/// number, in a PID namespace of its own. Anything else is left as it is.
pub fn seen_from_here(gid: [u8; 16], pid: i32) -> [u8; 16] {
    adapter::Address::of(gid).map_or(gid, |there| adapter::Address { pid, ..there }.gid())
}
