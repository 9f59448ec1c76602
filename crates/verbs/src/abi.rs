//! The parts of libibverbs and librdmacm that are used here, as their headers (`infiniband/verbs.h`,
//! `rdma/rdma_cma.h`) declare them, and the tables of their functions. Both libraries are opened at run time,
//! so that nothing depends on them where there is no RDMA. Tests compare sizes and offsets with the headers.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;
use libc::{sockaddr, sockaddr_storage};
use std::ffi::CStr;
use std::sync::OnceLock;

pub const PS_TCP: c_int = 0x0106;
pub const QPT_RC: c_int = 2;
pub const TRANSPORT_IB: c_int = 0;
pub const TRANSPORT_IWARP: c_int = 1;

pub mod access {
    pub const LOCAL_WRITE: i32 = 1;
    pub const REMOTE_WRITE: i32 = 2;
    pub const REMOTE_READ: i32 = 4;
    pub const REMOTE_ATOMIC: i32 = 8;
}

pub mod wr {
    pub const RDMA_WRITE: i32 = 0;
    pub const RDMA_WRITE_WITH_IMM: i32 = 1;
    pub const RDMA_READ: i32 = 4;
    pub const FETCH_AND_ADD: i32 = 6;
    pub const SIGNALED: u32 = 1 << 1;
    pub const INLINE: u32 = 1 << 3;
}

/// Of a work completion.
pub mod wc {
    pub const SUCCESS: i32 = 0;
    pub const LOC_PROT_ERR: i32 = 4;
    pub const FLUSH_ERR: i32 = 5;
    pub const REM_INV_REQ_ERR: i32 = 9;
    pub const REM_ACCESS_ERR: i32 = 10;
    pub const RETRY_EXC_ERR: i32 = 12;
}

/// `enum ibv_qp_state`.
pub mod state {
    pub const INIT: i32 = 1;
    pub const RTR: i32 = 2;
    pub const RTS: i32 = 3;
    pub const ERR: i32 = 6;
}

/// `enum ibv_qp_attr_mask`: which attributes a call gives.
pub mod mask {
    pub const STATE: i32 = 1 << 0;
    pub const ACCESS_FLAGS: i32 = 1 << 3;
    pub const PKEY_INDEX: i32 = 1 << 4;
    pub const PORT: i32 = 1 << 5;
    pub const AV: i32 = 1 << 7;
    pub const PATH_MTU: i32 = 1 << 8;
    pub const TIMEOUT: i32 = 1 << 9;
    pub const RETRY_CNT: i32 = 1 << 10;
    pub const RNR_RETRY: i32 = 1 << 11;
    pub const RQ_PSN: i32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub const MIN_RNR_TIMER: i32 = 1 << 15;
    pub const SQ_PSN: i32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub const DEST_QPN: i32 = 1 << 20;
}

pub const PORT_ACTIVE: i32 = 4;
/// `enum ibv_mtu`: 1024 bytes.
pub const MTU_1024: i32 = 3;

/// `enum rdma_cm_event_type`.
pub mod event {
    pub const ADDR_RESOLVED: i32 = 0;
    pub const ADDR_ERROR: i32 = 1;
    pub const ROUTE_RESOLVED: i32 = 2;
    pub const ROUTE_ERROR: i32 = 3;
    pub const CONNECT_REQUEST: i32 = 4;
    pub const UNREACHABLE: i32 = 7;
    pub const REJECTED: i32 = 8;
    pub const ESTABLISHED: i32 = 9;
    pub const DISCONNECTED: i32 = 10;
}

/// `struct ibv_device`, as far as it is used.
#[repr(C)]
pub struct Device {
    pub ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
}

/// The beginning of `struct ibv_context`.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

/// `struct ibv_context_ops`: the calls of the data path, between others that are not used.
#[repr(C)]
pub struct ContextOps {
    pub before: [*mut c_void; 11],
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    pub between: [*mut c_void; 12],
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    pub after: [*mut c_void; 5],
}

/// The beginning of `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
}

/// `struct ibv_device_attr`, and room for what a newer library may add.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DeviceAttr {
    pub before: [u64; 12],
    pub vendor_id: u32,
    pub between: [u32; 16],
    pub atomic_cap: c_int,
    pub after: [u32; 30],
}

/// `struct ibv_port_attr`, and room for what a newer library may add.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub before: [u32; 4],
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub after: [u32; 16],
}

/// `struct ibv_ah_attr`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: [u32; 5],
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut c_void,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    /// Big endian.
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    /// The upper half of what an atomic operation adds, whose lower half is where others have the key.
    pub upper: u32,
    pub swap: u64,
    pub atomic_rkey: u32,
    /// Of the larger members of two unions, for other operations.
    pub rest: [u64; 7],
}

#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Big endian.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

#[repr(C)]
pub struct EventChannel {
    pub fd: c_int,
}

/// `struct rdma_cm_id` up to its addresses.
#[repr(C)]
pub struct CmId {
    pub verbs: *mut Context,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub src: sockaddr_storage,
    pub dst: sockaddr_storage,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: c_int,
    pub status: c_int,
    /// The member of the union that connections use.
    pub conn: ConnParam,
}

macro_rules! api {
    ($(#[$doc:meta])* $table:ident: $($library:ident $name:ident($($argument:ty),*) -> $result:ty;)*) => {
        $(#[$doc])*
        pub struct $table { $(pub $name: unsafe extern "C" fn($($argument),*) -> $result),* }

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

fn symbol(library: *mut c_void, name: &[u8]) -> Option<*mut c_void> {
    // SAFETY: an open library, and a name that ends with NUL. The default version is the one of the header.
    let address = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
    (!address.is_null()).then_some(address)
}

fn open(name: &CStr) -> *mut c_void {
    // SAFETY: initialisers of system libraries.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
}

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
