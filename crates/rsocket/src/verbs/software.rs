//! libibverbs and librdmacm in software: queue pairs, completion queues, memory regions with their
//! keys and bounds, and connection management, within one process and behind the very same
//! structures and functions. So everything above the libraries is tested where there is no RDMA.
//! What the rules of verbs forbid fails here as it does there: a wrong key breaks the connection,
//! and a write waits for a receive.
//!
//! [`world`] keeps what there is and its rules, [`ibv`] and [`rdma`] are the functions of the two
//! libraries. Tests share the world, and meet by ports of their own.

mod ibv;
mod rdma;
mod world;

use super::abi::Api;
use std::cell::Cell;

thread_local! {
    static CHOSEN: Cell<bool> = const { Cell::new(false) };
}

/// What this thread opens meanwhile goes over these functions.
pub fn chosen<T>(open: impl FnOnce() -> T) -> T {
    CHOSEN.set(true);
    let made = open();
    CHOSEN.set(false);
    made
}

/// Whether this thread is inside [`chosen`].
pub fn is_chosen() -> bool {
    CHOSEN.get()
}

/// Its functions, as the system's libraries have them.
pub fn api() -> &'static Api {
    &Api {
        ibv_create_comp_channel: ibv::create_comp_channel,
        ibv_destroy_comp_channel: ibv::destroy_comp_channel,
        ibv_create_cq: ibv::create_cq,
        ibv_destroy_cq: ibv::destroy_cq,
        ibv_get_cq_event: ibv::get_cq_event,
        ibv_ack_cq_events: ibv::ack_cq_events,
        ibv_reg_mr: ibv::reg_mr,
        ibv_dereg_mr: ibv::dereg_mr,
        rdma_create_event_channel: rdma::create_event_channel,
        rdma_destroy_event_channel: rdma::destroy_event_channel,
        rdma_create_id: rdma::create_id,
        rdma_destroy_id: rdma::destroy_id,
        rdma_bind_addr: rdma::bind_addr,
        rdma_listen: rdma::listen,
        rdma_resolve_addr: rdma::resolve_addr,
        rdma_resolve_route: rdma::resolve_route,
        rdma_create_qp: rdma::create_qp,
        rdma_destroy_qp: rdma::destroy_qp,
        rdma_connect: rdma::connect,
        rdma_accept: rdma::accept,
        rdma_reject: rdma::reject,
        rdma_disconnect: rdma::disconnect,
        rdma_get_cm_event: rdma::get_cm_event,
        rdma_ack_cm_event: rdma::ack_cm_event,
        rdma_migrate_id: rdma::migrate_id,
    }
}
