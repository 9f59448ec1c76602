//! Structures of libibverbs and librdmacm, as far as they are used.

use core::ffi::{c_int, c_uint, c_void};

use libc::sockaddr_storage;

/// `struct ibv_device`, as far as it is used.
#[repr(C)]
pub struct Device {
    /// Not used here.
    pub ops: [*mut c_void; 2],
    /// `enum ibv_node_type`.
    pub node_type: c_int,
    /// One of `TRANSPORT_*`, or others.
    pub transport_type: c_int,
}

/// The beginning of `struct ibv_context`.
#[repr(C)]
pub struct Context {
    /// The adapter that was opened.
    pub device: *mut Device,
    /// Calls of the data path.
    pub ops: ContextOps,
    /// Descriptor of the kernel's verbs device.
    pub cmd_fd: c_int,
    /// Descriptor on which the kernel tells of events.
    pub async_fd: c_int,
}

/// `struct ibv_context_ops`: the calls of the data path, between others that are not used.
#[repr(C)]
pub struct ContextOps {
    /// Not used here.
    pub before: [*mut c_void; 11],
    /// Takes up to so many completions; how many, negative on errors.
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    /// Asks for an event at the next completion (1: the next that a peer solicits); 0 or an errno.
    pub req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    /// Not used here.
    pub between: [*mut c_void; 12],
    /// Posts a chain of requests; 0 or an errno, with the request that it is about.
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    /// Posts a chain of receives; 0 or an errno, with the receive that it is about.
    pub post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    /// Not used here.
    pub after: [*mut c_void; 5],
}

/// The beginning of `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    /// Its adapter.
    pub context: *mut Context,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct CompChannel {
    /// Its adapter.
    pub context: *mut Context,
    /// Readable when there is an event.
    pub fd: c_int,
    /// Completion queues that tell by it.
    pub refcnt: c_int,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    /// Its adapter.
    pub context: *mut Context,
    /// The user's own.
    pub qp_context: *mut c_void,
    /// Its protection domain.
    pub pd: *mut c_void,
    /// Where its requests complete.
    pub send_cq: *mut Cq,
    /// Where its receives complete.
    pub recv_cq: *mut Cq,
    /// A queue of receives that it shares; null.
    pub srq: *mut c_void,
    /// The kernel's number of it.
    pub handle: u32,
    /// Its number on the wire, 24 bits.
    pub qp_num: u32,
}

/// `struct ibv_device_attr`, and room for what a newer library may add.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DeviceAttr {
    /// Not used here.
    pub before: [u64; 12],
    /// The maker's number, 24 bits.
    pub vendor_id: u32,
    /// Not used here.
    pub between: [u32; 16],
    /// `enum ibv_atomic_cap`: 0, it has no atomic operations.
    pub atomic_cap: c_int,
    /// Not used here.
    pub after: [u32; 30],
}

/// `struct ibv_port_attr`, and room for what a newer library may add.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PortAttr {
    /// `PORT_ACTIVE`, or others.
    pub state: c_int,
    /// `enum ibv_mtu`: the most that it can.
    pub max_mtu: c_int,
    /// `enum ibv_mtu`: what is in use.
    pub active_mtu: c_int,
    /// Places in its table of GIDs.
    pub gid_tbl_len: c_int,
    /// Not used here.
    pub before: [u32; 4],
    /// Places in its table of partition keys.
    pub pkey_tbl_len: u16,
    /// Its address within an InfiniBand subnet; 0 with RoCE.
    pub lid: u16,
    /// Not used here.
    pub after: [u32; 16],
}

/// `struct ibv_ah_attr`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    /// The peer's GID.
    pub dgid: [u8; 16],
    /// Of IPv6 headers.
    pub flow_label: u32,
    /// Place of our GID in the port's table.
    pub sgid_index: u8,
    /// Routers that a packet may pass.
    pub hop_limit: u8,
    /// Of IPv6 headers.
    pub traffic_class: u8,
    /// The peer's LID.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Added to our LID.
    pub src_path_bits: u8,
    /// Limit of its rate, 0: none.
    pub static_rate: u8,
    /// 1: the GID counts.
    pub is_global: u8,
    /// Port of the adapter, from 1.
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    /// The state to go to, one of `state`.
    pub qp_state: c_int,
    /// The state it is taken to be in.
    pub cur_qp_state: c_int,
    /// `enum ibv_mtu`.
    pub path_mtu: c_int,
    /// Of an alternate path.
    pub path_mig_state: c_int,
    /// Of datagrams.
    pub qkey: u32,
    /// Number of the first packet that comes, 24 bits.
    pub rq_psn: u32,
    /// Number of the first packet that goes, 24 bits.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// What the peer may do, of `access`.
    pub qp_access_flags: c_uint,
    /// `struct ibv_qp_cap`.
    pub cap: [u32; 5],
    /// Where the peer is.
    pub ah_attr: AhAttr,
    /// Where else it is.
    pub alt_ah_attr: AhAttr,
    /// Place of the partition key in the port's table.
    pub pkey_index: u16,
    /// The same on the alternate path.
    pub alt_pkey_index: u16,
    /// Whether an event tells that sends are drained.
    pub en_sqd_async_notify: u8,
    /// Whether sends are being drained.
    pub sq_draining: u8,
    /// Reads and atomic operations under way from here.
    pub max_rd_atomic: u8,
    /// Reads and atomic operations under way from the peer.
    pub max_dest_rd_atomic: u8,
    /// How long a peer waits for a receive, as a code.
    pub min_rnr_timer: u8,
    /// Port of the adapter, from 1.
    pub port_num: u8,
    /// Wait for an answer: 4.096 us times two to this power, 0: for ever.
    pub timeout: u8,
    /// Times that a packet without an answer is sent again, up to 7.
    pub retry_cnt: u8,
    /// Times for one that met no receive; 7: for ever.
    pub rnr_retry: u8,
    /// Port of the alternate path.
    pub alt_port_num: u8,
    /// As `timeout`, on the alternate path.
    pub alt_timeout: u8,
    /// Kbit/s, 0: none.
    pub rate_limit: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    /// Its adapter.
    pub context: *mut Context,
    /// Its protection domain.
    pub pd: *mut c_void,
    /// Its first byte.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// The kernel's number of it.
    pub handle: u32,
    /// Key for requests of ours.
    pub lkey: u32,
    /// Key for requests of peers.
    pub rkey: u32,
}

/// `struct ibv_sge`: a piece of memory here.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Sge {
    /// Its first byte.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key of the region that it lies in.
    pub lkey: u32,
}

/// `struct ibv_send_wr`, with the members of its unions that RDMA and atomic operations use.
#[repr(C)]
pub struct SendWr {
    /// The user's own, for the completion.
    pub wr_id: u64,
    /// The next of the chain, or null.
    pub next: *mut SendWr,
    /// Memory here.
    pub sg_list: *mut Sge,
    /// Pieces of it.
    pub num_sge: c_int,
    /// One of `wr`.
    pub opcode: c_int,
    /// Flags of `wr`.
    pub send_flags: c_uint,
    /// Big endian.
    pub imm_data: u32,
    /// Where at the peer.
    pub remote_addr: u64,
    /// The key to that, for all but atomic operations.
    pub rkey: u32,
    /// The upper half of what an atomic operation adds, whose lower half is where others have the
    /// key.
    pub upper: u32,
    /// Of compare and swap.
    pub swap: u64,
    /// The key to it, for atomic operations.
    pub atomic_rkey: u32,
    /// Of the larger members of two unions, for other operations.
    pub rest: [u64; 7],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct RecvWr {
    /// The user's own, for the completion.
    pub wr_id: u64,
    /// The next of the chain, or null.
    pub next: *mut RecvWr,
    /// Memory here.
    pub sg_list: *mut Sge,
    /// Pieces of it.
    pub num_sge: c_int,
}

/// `struct ibv_wc`: a completion.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    /// That of the request.
    pub wr_id: u64,
    /// One of `wc`.
    pub status: c_int,
    /// `enum ibv_wc_opcode`; not set after an error.
    pub opcode: c_int,
    /// The maker's own code of an error.
    pub vendor_err: u32,
    /// Bytes that came.
    pub byte_len: u32,
    /// Big endian.
    pub imm_data: u32,
    /// Queue pair that it belongs to.
    pub qp_num: u32,
    /// Queue pair that a datagram came from.
    pub src_qp: u32,
    /// `enum ibv_wc_flags`.
    pub wc_flags: c_uint,
    /// Of datagrams.
    pub pkey_index: u16,
    /// Of datagrams.
    pub slid: u16,
    /// Of datagrams.
    pub sl: u8,
    /// Of datagrams.
    pub dlid_path_bits: u8,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInitAttr {
    /// The user's own.
    pub qp_context: *mut c_void,
    /// Where its requests are to complete.
    pub send_cq: *mut Cq,
    /// Where its receives are to complete.
    pub recv_cq: *mut Cq,
    /// A queue of receives to share; null.
    pub srq: *mut c_void,
    /// Requests under way, at most.
    pub max_send_wr: u32,
    /// Receives posted, at most.
    pub max_recv_wr: u32,
    /// Pieces of a request, at most.
    pub max_send_sge: u32,
    /// Pieces of a receive, at most.
    pub max_recv_sge: u32,
    /// Bytes of a request that is `wr::INLINE`, at most.
    pub max_inline_data: u32,
    /// `QPT_RC`.
    pub qp_type: c_int,
    /// 1: every request has a completion.
    pub sq_sig_all: c_int,
}

/// `struct rdma_event_channel`.
#[repr(C)]
pub struct EventChannel {
    /// Readable when there is an event.
    pub fd: c_int,
}

/// `struct rdma_cm_id` up to its addresses.
#[repr(C)]
pub struct CmId {
    /// The adapter, once one was found.
    pub verbs: *mut Context,
    /// Where its events come.
    pub channel: *mut EventChannel,
    /// The user's own.
    pub context: *mut c_void,
    /// Its queue pair, or null.
    pub qp: *mut Qp,
    /// Our address.
    pub src: sockaddr_storage,
    /// The peer's.
    pub dst: sockaddr_storage,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConnParam {
    /// Bytes for the peer.
    pub private_data: *const c_void,
    /// How many.
    pub private_data_len: u8,
    /// Reads and atomic operations that we take from the peer at a time.
    pub responder_resources: u8,
    /// Those that we have under way.
    pub initiator_depth: u8,
    /// 1: the hardware has some.
    pub flow_control: u8,
    /// As `QpAttr::retry_cnt`.
    pub retry_count: u8,
    /// As `QpAttr::rnr_retry`.
    pub rnr_retry_count: u8,
    /// Not used where librdmacm makes the queue pair.
    pub srq: u8,
    /// Not used where librdmacm makes the queue pair.
    pub qp_num: u32,
}

/// `struct rdma_cm_event`, up to what connections use.
#[repr(C)]
pub struct CmEvent {
    /// What it is about.
    pub id: *mut CmId,
    /// For a request: what listens there.
    pub listen_id: *mut CmId,
    /// One of `event`.
    pub event: c_int,
    /// 0, or a negative errno, or the reason of a refusal.
    pub status: c_int,
    /// The member of the union that connections use.
    pub conn: ConnParam,
}
