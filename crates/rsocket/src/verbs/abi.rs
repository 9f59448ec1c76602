//! The parts of libibverbs and librdmacm that are used here, as their headers (`infiniband/verbs.h`,
//! `rdma/rdma_cma.h`) declare them, and the table of their functions. Both libraries are opened at run time,
//! so that nothing depends on them where there is no RDMA. A test compares sizes and offsets with the headers.

use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::{sockaddr, sockaddr_storage};
use std::ffi::CStr;
use std::sync::OnceLock;

pub const PS_TCP: c_int = 0x0106;
pub const QPT_RC: c_int = 2;
pub const TRANSPORT_IWARP: c_int = 1;

pub mod access {
    pub const LOCAL_WRITE: i32 = 1;
    pub const REMOTE_WRITE: i32 = 2;
}

pub mod wr {
    pub const RDMA_WRITE: i32 = 0;
    pub const RDMA_WRITE_WITH_IMM: i32 = 1;
    pub const INLINE: u32 = 1 << 3;
}

/// Of a work completion.
pub mod wc {
    pub const SUCCESS: i32 = 0;
    pub const REM_ACCESS_ERR: i32 = 10;
    pub const FLUSH_ERR: i32 = 5;
}

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

#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
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
    /// Of the larger members of three unions, for other operations.
    pub rest: [u64; 9],
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
    ($($library:ident $name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of both libraries.
        pub struct Api { $(pub $name: unsafe extern "C" fn($($argument),*) -> $result),* }

        impl Api {
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
