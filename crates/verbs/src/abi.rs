//! The parts of libibverbs and librdmacm that are used here, as their headers
//! (`infiniband/verbs.h`, `rdma/rdma_cma.h`) declare them, and the tables of their functions. Both
//! libraries are opened at run time, so that nothing depends on them where there is no RDMA. Tests
//! compare sizes and offsets with the headers.
#![allow(unsafe_code)]
// Without libc nothing can be opened, and the tables are filled by the software alone.
#![cfg_attr(shortwire_raw, allow(dead_code))]

use core::ffi::CStr;
use core::ffi::{c_char, c_int, c_uint, c_void};
#[cfg(not(shortwire_raw))]
use core::ptr::null_mut;
use libc::sockaddr;
#[cfg(not(shortwire_raw))]
use std::sync::OnceLock;

mod addrinfo;
mod structs;

pub use addrinfo::{AddrInfo, PS_UDP, QPT_UD, rai};
pub use structs::*;

/// `RDMA_PS_TCP`: the port space of reliable connections.
pub const PS_TCP: c_int = 0x0106;
/// `IBV_QPT_RC`: a reliable connected queue pair.
pub const QPT_RC: c_int = 2;
/// `IBV_TRANSPORT_IB`: InfiniBand, and RoCE.
pub const TRANSPORT_IB: c_int = 0;
/// `IBV_TRANSPORT_IWARP`.
pub const TRANSPORT_IWARP: c_int = 1;

/// `enum ibv_access_flags`: what a memory region, or a queue pair, allows.
pub mod access {
    /// Its own adapter writes.
    pub const LOCAL_WRITE: i32 = 1;
    /// Peers write.
    pub const REMOTE_WRITE: i32 = 2;
    /// Peers read.
    pub const REMOTE_READ: i32 = 4;
    /// Peers change words atomically.
    pub const REMOTE_ATOMIC: i32 = 8;
}

/// Of a work request: `enum ibv_wr_opcode`, then `enum ibv_send_flags`.
pub mod wr {
    /// Writes to the peer's memory.
    pub const RDMA_WRITE: i32 = 0;
    /// Writes to the peer's memory, with a word that completes a receive of the peer's.
    pub const RDMA_WRITE_WITH_IMM: i32 = 1;
    /// Reads from the peer's memory.
    pub const RDMA_READ: i32 = 4;
    /// Adds to eight bytes there, and brings back what they were.
    pub const FETCH_AND_ADD: i32 = 6;
    /// It has a completion.
    pub const SIGNALED: u32 = 1 << 1;
    /// Its bytes are taken when it is posted.
    pub const INLINE: u32 = 1 << 3;
}

/// Of a work completion.
pub mod wc {
    /// Done.
    pub const SUCCESS: i32 = 0;
    /// Memory here is not registered, or not for that.
    pub const LOC_PROT_ERR: i32 = 4;
    /// Not carried out: the queue pair had failed before.
    pub const FLUSH_ERR: i32 = 5;
    /// The peer's adapter does not take such a request.
    pub const REM_INV_REQ_ERR: i32 = 9;
    /// Memory there is not registered, or not for that.
    pub const REM_ACCESS_ERR: i32 = 10;
    /// The peer does not answer.
    pub const RETRY_EXC_ERR: i32 = 12;
}

/// `enum ibv_qp_state`.
pub mod state {
    /// Has a port, and posts receives.
    pub const INIT: i32 = 1;
    /// Ready to receive: it knows its peer.
    pub const RTR: i32 = 2;
    /// Ready to send.
    pub const RTS: i32 = 3;
    /// Failed: all requests are flushed.
    pub const ERR: i32 = 6;
}

/// `enum ibv_qp_attr_mask`: which attributes a call gives.
pub mod mask {
    /// `qp_state`.
    pub const STATE: i32 = 1 << 0;
    /// `qp_access_flags`.
    pub const ACCESS_FLAGS: i32 = 1 << 3;
    /// `pkey_index`.
    pub const PKEY_INDEX: i32 = 1 << 4;
    /// `port_num`.
    pub const PORT: i32 = 1 << 5;
    /// `ah_attr`.
    pub const AV: i32 = 1 << 7;
    /// `path_mtu`.
    pub const PATH_MTU: i32 = 1 << 8;
    /// `timeout`.
    pub const TIMEOUT: i32 = 1 << 9;
    /// `retry_cnt`.
    pub const RETRY_CNT: i32 = 1 << 10;
    /// `rnr_retry`.
    pub const RNR_RETRY: i32 = 1 << 11;
    /// `rq_psn`.
    pub const RQ_PSN: i32 = 1 << 12;
    /// `max_rd_atomic`.
    pub const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    /// `min_rnr_timer`.
    pub const MIN_RNR_TIMER: i32 = 1 << 15;
    /// `sq_psn`.
    pub const SQ_PSN: i32 = 1 << 16;
    /// `max_dest_rd_atomic`.
    pub const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    /// `dest_qp_num`.
    pub const DEST_QPN: i32 = 1 << 20;
}

/// `IBV_PORT_ACTIVE`.
pub const PORT_ACTIVE: i32 = 4;
/// `enum ibv_mtu`: 1024 bytes.
pub const MTU_1024: i32 = 3;

/// `enum rdma_cm_event_type`.
pub mod event {
    /// The peer's address is known to the adapter.
    pub const ADDR_RESOLVED: i32 = 0;
    /// The peer's address cannot be found.
    pub const ADDR_ERROR: i32 = 1;
    /// There is a route to the peer.
    pub const ROUTE_RESOLVED: i32 = 2;
    /// There is no route to the peer.
    pub const ROUTE_ERROR: i32 = 3;
    /// A peer wants to connect.
    pub const CONNECT_REQUEST: i32 = 4;
    /// The peer does not answer.
    pub const UNREACHABLE: i32 = 7;
    /// The peer, or nobody at that port, refused.
    pub const REJECTED: i32 = 8;
    /// Connected.
    pub const ESTABLISHED: i32 = 9;
    /// The peer has disconnected.
    pub const DISCONNECTED: i32 = 10;
}

macro_rules! api {
    ($(#[$doc:meta])* $table:ident: $($library:ident $name:ident($($argument:ty),*) -> $result:ty;)*) => {
        $(#[$doc])*
        pub struct $table { $(
            #[doc = concat!("`", stringify!($name), "`, as the library's header declares and its manual describes it.")]
            pub $name: unsafe extern "C" fn($($argument),*) -> $result),* }

        impl $table {
            fn load(ibverbs: *mut c_void, rdmacm: *mut c_void) -> Option<Self> {
                Some(Self { $($name: {
                    let library = match stringify!($library) { "ibverbs" => ibverbs, _ => rdmacm };
                    let address = symbol(library, concat!(stringify!($name), "\0").as_bytes())?;
                    // SAFETY: the library's function of this name, whose type its header has.
                    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address) }
                }),* })
            }
        }
    };
}

api! {
    /// Functions of libibverbs for who manages queue pairs himself.
    Ibv:
    ibverbs ibv_get_device_list(*mut c_int) -> *mut *mut Device;
    ibverbs ibv_free_device_list(*mut *mut Device) -> ();
    ibverbs ibv_open_device(*mut Device) -> *mut Context;
    ibverbs ibv_close_device(*mut Context) -> c_int;
    ibverbs ibv_query_device(*mut Context, *mut DeviceAttr) -> c_int;
    ibverbs ibv_query_port(*mut Context, u8, *mut PortAttr) -> c_int;
    ibverbs ibv_query_gid(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int;
    ibverbs ibv_alloc_pd(*mut Context) -> *mut c_void;
    ibverbs ibv_dealloc_pd(*mut c_void) -> c_int;
    ibverbs ibv_reg_mr(*mut c_void, *mut c_void, usize, c_int) -> *mut Mr;
    ibverbs ibv_dereg_mr(*mut Mr) -> c_int;
    ibverbs ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibverbs ibv_destroy_cq(*mut Cq) -> c_int;
    ibverbs ibv_create_qp(*mut c_void, *mut QpInitAttr) -> *mut Qp;
    ibverbs ibv_modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibverbs ibv_destroy_qp(*mut Qp) -> c_int;
}

api! {
    /// The functions of both libraries that connections made by librdmacm need.
    Api:
    ibverbs ibv_create_comp_channel(*mut Context) -> *mut CompChannel;
    ibverbs ibv_destroy_comp_channel(*mut CompChannel) -> c_int;
    ibverbs ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibverbs ibv_destroy_cq(*mut Cq) -> c_int;
    ibverbs ibv_get_cq_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibverbs ibv_ack_cq_events(*mut Cq, c_uint) -> ();
    ibverbs ibv_reg_mr(*mut c_void, *mut c_void, usize, c_int) -> *mut Mr;
    ibverbs ibv_dereg_mr(*mut Mr) -> c_int;
    rdmacm rdma_create_event_channel() -> *mut EventChannel;
    rdmacm rdma_destroy_event_channel(*mut EventChannel) -> ();
    rdmacm rdma_create_id(*mut EventChannel, *mut *mut CmId, *mut c_void, c_int) -> c_int;
    rdmacm rdma_destroy_id(*mut CmId) -> c_int;
    rdmacm rdma_bind_addr(*mut CmId, *const sockaddr) -> c_int;
    rdmacm rdma_listen(*mut CmId, c_int) -> c_int;
    rdmacm rdma_resolve_addr(*mut CmId, *const sockaddr, *const sockaddr, c_int) -> c_int;
    rdmacm rdma_resolve_route(*mut CmId, c_int) -> c_int;
    rdmacm rdma_create_qp(*mut CmId, *mut c_void, *mut QpInitAttr) -> c_int;
    rdmacm rdma_destroy_qp(*mut CmId) -> ();
    rdmacm rdma_connect(*mut CmId, *mut ConnParam) -> c_int;
    rdmacm rdma_accept(*mut CmId, *mut ConnParam) -> c_int;
    rdmacm rdma_reject(*mut CmId, *const c_void, u8) -> c_int;
    rdmacm rdma_disconnect(*mut CmId) -> c_int;
    rdmacm rdma_get_cm_event(*mut EventChannel, *mut *mut CmEvent) -> c_int;
    rdmacm rdma_ack_cm_event(*mut CmEvent) -> c_int;
    rdmacm rdma_migrate_id(*mut CmId, *mut EventChannel) -> c_int;
}

api! {
    /// The functions of librdmacm that find addresses.
    Resolver:
    rdmacm rdma_getaddrinfo(*const c_char, *const c_char, *const AddrInfo, *mut *mut AddrInfo) -> c_int;
}

fn symbol(library: *mut c_void, name: &[u8]) -> Option<*mut c_void> {
    // SAFETY: an open library, and a name that ends with NUL. The default version is the one of the
    // header.
    let address = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
    (!address.is_null()).then_some(address)
}

fn open(name: &CStr) -> *mut c_void {
    // SAFETY: initialisers of system libraries.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
}

#[cfg(not(shortwire_raw))]
impl Api {
    /// The system's libraries; None if one of them, or a function, is missing.
    pub fn system() -> Option<&'static Self> {
        static SYSTEM: OnceLock<Option<Api>> = OnceLock::new();
        let load = || {
            let (ibverbs, rdmacm) = (open(c"libibverbs.so.1"), open(c"librdmacm.so.1"));
            if ibverbs.is_null() || rdmacm.is_null() { None } else { Api::load(ibverbs, rdmacm) }
        };
        SYSTEM.get_or_init(load).as_ref()
    }
}

#[cfg(not(shortwire_raw))]
impl Ibv {
    /// The system's library; None if it, or a function, is missing.
    pub fn system() -> Option<&'static Self> {
        static SYSTEM: OnceLock<Option<Ibv>> = OnceLock::new();
        let load = || {
            let library = open(c"libibverbs.so.1");
            if library.is_null() { None } else { Ibv::load(library, null_mut()) }
        };
        SYSTEM.get_or_init(load).as_ref()
    }
}

#[cfg(not(shortwire_raw))]
impl Resolver {
    /// The system's library; None if it is missing.
    pub fn system() -> Option<&'static Self> {
        static SYSTEM: OnceLock<Option<Resolver>> = OnceLock::new();
        let load = || {
            let library = open(c"librdmacm.so.1");
            if library.is_null() { None } else { Resolver::load(null_mut(), library) }
        };
        SYSTEM.get_or_init(load).as_ref()
    }
}

/// Without libc nothing can be loaded, and only the provider in software is left.
#[cfg(shortwire_raw)]
impl Api {
    /// None.
    pub fn system() -> Option<&'static Self> {
        None
    }
}

/// See there.
#[cfg(shortwire_raw)]
impl Ibv {
    /// None.
    pub fn system() -> Option<&'static Self> {
        None
    }
}
