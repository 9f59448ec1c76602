//! libibverbs and librdmacm in software: queue pairs, completion queues, memory regions with their keys and
//! bounds, and connection management, within one process and behind the very same structures and functions.
//! So everything above the libraries is tested where there is no RDMA. What the rules of verbs forbid fails
//! here as it does there: a wrong key breaks the connection, and a write waits for a receive.

use super::abi::{
    Api, CmEvent, CmId, CompChannel, ConnParam, Context, ContextOps, Cq, Device, EventChannel, Mr, Qp, QpInitAttr,
    RecvWr, SendWr, Sge, Wc, access, event, wc, wr,
};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;
use libc::sockaddr;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, Once, OnceLock};

/// As InfiniBand pads it.
const PRIVATE: usize = 56;
const INLINE_MAX: u32 = 64;

struct SoftCq {
    entries: VecDeque<Wc>,
    armed: bool,
    channel: usize,
}

/// The completion to be, immediate data, bytes, and where they go: address and key.
type Waiting = (Wc, Option<u32>, Vec<u8>, u64, u32);

struct SoftQp {
    cq: usize,
    peer: usize,
    receives: VecDeque<u64>,
    /// Requests that wait for a receive of the peer.
    waiting: VecDeque<Waiting>,
    broken: bool,
    depth: usize,
}

#[derive(Clone, Copy)]
struct SoftMr {
    addr: usize,
    len: usize,
    access: i32,
}

/// By the addresses of the structures that the callers hold.
#[derive(Default)]
struct World {
    cqs: HashMap<usize, SoftCq>,
    qps: HashMap<usize, SoftQp>,
    regions: HashMap<u32, SoftMr>,
    events: HashMap<usize, VecDeque<Box<Heard>>>,
    listeners: HashMap<u16, usize>,
    /// The other id of a connection.
    peers: HashMap<usize, usize>,
    next_key: u32,
}

#[repr(C)]
struct Heard {
    event: CmEvent,
    data: [u8; PRIVATE],
}

// SAFETY: pointers of one process, used under the lock of the world.
unsafe impl Send for World {}

fn world() -> MutexGuard<'static, World> {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    WORLD.get_or_init(Mutex::default).lock().expect("no panic while it is held")
}

fn context() -> *mut Context {
    static DEVICE: OnceLock<usize> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let device = Device { ops: [null_mut(); 2], node_type: 1, transport_type: 0 };
        let ops = ContextOps {
            before: [null_mut(); 11],
            poll_cq,
            req_notify_cq,
            between: [null_mut(); 12],
            post_send,
            post_recv,
        };
        Box::into_raw(Box::new(Context { device: Box::into_raw(Box::new(device)), ops })) as usize
    }) as *mut Context
}

fn signal(fd: RawFd) {
    // SAFETY: an eventfd of ours.
    let _ = rustix::io::write(unsafe { BorrowedFd::borrow_raw(fd) }, &1u64.to_ne_bytes());
}

/// Takes one signal back; false if there is none.
fn take(fd: RawFd) -> bool {
    // SAFETY: an eventfd of ours.
    rustix::io::read(unsafe { BorrowedFd::borrow_raw(fd) }, &mut [0u8; 8]).is_ok()
}

fn new_eventfd() -> RawFd {
    eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap().into_raw_fd()
}

impl World {
    fn complete(&mut self, cq: usize, completion: Wc) {
        let Some(queue) = self.cqs.get_mut(&cq) else { return };
        queue.entries.push_back(completion);
        if std::mem::take(&mut queue.armed) {
            // SAFETY: a channel outlives its queues.
            signal(unsafe { (*(queue.channel as *const CompChannel)).fd });
        }
    }

    fn is_within(&self, key: u32, addr: u64, len: usize, need: i32) -> bool {
        len == 0
            || self.regions.get(&key).is_some_and(|mr| {
                let offset = (addr as usize).checked_sub(mr.addr);
                mr.access & need != 0 && offset.is_some_and(|at| at <= mr.len && len <= mr.len - at)
            })
    }

    /// Both ends are of no use any more: what is posted is flushed.
    fn break_pair(&mut self, qp: usize) {
        let peer = self.qps.get(&qp).map_or(0, |qp| qp.peer);
        for end in [qp, peer] {
            let Some(state) = self.qps.get_mut(&end) else { continue };
            state.broken = true;
            let flushed: Vec<_> = state.waiting.drain(..).map(|w| w.0.wr_id).chain(state.receives.drain(..)).collect();
            let cq = state.cq;
            flushed
                .into_iter()
                .for_each(|wr_id| self.complete(cq, Wc { wr_id, status: wc::FLUSH_ERR, ..Wc::default() }));
        }
    }

    /// Carries out what `qp` has posted, as far as the peer has receives.
    fn carry_out(&mut self, qp: usize) {
        loop {
            let Some(state) = self.qps.get_mut(&qp) else { return };
            let (cq, peer) = (state.cq, state.peer);
            let Some((done, imm, bytes, addr, key)) = state.waiting.pop_front() else { return };
            if !self.is_within(key, addr, bytes.len(), access::REMOTE_WRITE) {
                self.complete(cq, Wc { status: wc::REM_ACCESS_ERR, ..done });
                return self.break_pair(qp);
            }
            let Some(target) = self.qps.get_mut(&peer) else { return };
            if let Some(imm) = imm {
                let Some(wr_id) = target.receives.pop_front() else {
                    if let Some(state) = self.qps.get_mut(&qp) {
                        state.waiting.push_front((done, Some(imm), bytes, addr, key));
                    }
                    return;
                };
                // SAFETY: within registered memory.
                unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
                let cq = target.cq;
                self.complete(cq, Wc { wr_id, imm_data: imm, byte_len: bytes.len() as u32, ..Wc::default() });
            } else {
                // SAFETY: as above.
                unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
            }
            self.complete(cq, done);
        }
    }

    fn tell(&mut self, id: usize, kind: i32, status: i32, listen: usize, data: &[u8]) {
        // SAFETY: ids live until they are destroyed, and then are not told of anything.
        let channel = unsafe { (*(id.max(1) as *const CmId)).channel };
        let to = if listen == 0 {
            channel
        } else {
            // SAFETY: as above.
            unsafe { (*(listen as *const CmId)).channel }
        };
        let mut padded = [0; PRIVATE];
        padded[..data.len()].copy_from_slice(data);
        // SAFETY: plain data.
        let conn: ConnParam = unsafe { core::mem::zeroed() };
        let event = CmEvent { id: id as *mut CmId, listen_id: listen as *mut CmId, event: kind, status, conn };
        let mut heard = Box::new(Heard { event, data: padded });
        if !data.is_empty() {
            heard.event.conn.private_data = heard.data.as_ptr().cast();
            heard.event.conn.private_data_len = PRIVATE as u8;
        }
        self.events.entry(to as usize).or_default().push_back(heard);
        // SAFETY: a channel lives as long as its ids.
        signal(unsafe { (*to).fd });
    }

    fn qp_of(id: usize) -> usize {
        // SAFETY: a live id.
        unsafe { (*(id as *const CmId)).qp as usize }
    }
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, count: c_int, out: *mut Wc) -> c_int {
    let mut world = world();
    let Some(queue) = world.cqs.get_mut(&(cq as usize)) else { return -1 };
    let n = queue.entries.len().min(count as usize);
    for (i, one) in queue.entries.drain(..n).enumerate() {
        // SAFETY: the caller has room for `count`.
        unsafe { out.add(i).write(one) };
    }
    n as c_int
}

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, _solicited: c_int) -> c_int {
    world().cqs.get_mut(&(cq as usize)).map_or(libc::EINVAL, |queue| {
        queue.armed = true;
        0
    })
}

unsafe extern "C" fn post_send(qp: *mut Qp, request: *mut SendWr, _bad: *mut *mut SendWr) -> c_int {
    // SAFETY: the caller's request and its list.
    let (request, list) = unsafe {
        let request = &*request;
        let list: &[Sge] = if request.num_sge == 0 {
            &[]
        } else {
            core::slice::from_raw_parts(request.sg_list, request.num_sge as usize)
        };
        (request, list)
    };
    let mut world = world();
    let inline = request.send_flags & wr::INLINE != 0;
    let total: u32 = list.iter().map(|sge| sge.length).sum();
    let known = |sge: &Sge| world.is_within(sge.lkey, sge.addr, sge.length as usize, access::LOCAL_WRITE);
    if (inline && total > INLINE_MAX) || (!inline && !list.iter().all(known)) {
        return libc::EINVAL;
    }
    let mut bytes = Vec::new();
    for sge in list {
        // SAFETY: the caller's bytes.
        bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) });
    }
    let imm = (request.opcode == wr::RDMA_WRITE_WITH_IMM).then_some(request.imm_data);
    let done = Wc { wr_id: request.wr_id, ..Wc::default() };
    let Some(state) = world.qps.get_mut(&(qp as usize)) else { return libc::EINVAL };
    if state.broken {
        let cq = state.cq;
        world.complete(cq, Wc { status: wc::FLUSH_ERR, ..done });
        return 0;
    }
    if state.waiting.len() >= state.depth {
        return libc::ENOMEM;
    }
    state.waiting.push_back((done, imm, bytes, request.remote_addr, request.rkey));
    world.carry_out(qp as usize);
    0
}

unsafe extern "C" fn post_recv(qp: *mut Qp, request: *mut RecvWr, _bad: *mut *mut RecvWr) -> c_int {
    let mut world = world();
    // SAFETY: the caller's request.
    let wr_id = unsafe { (*request).wr_id };
    let Some(state) = world.qps.get_mut(&(qp as usize)) else { return libc::EINVAL };
    if state.broken {
        let cq = state.cq;
        world.complete(cq, Wc { wr_id, status: wc::FLUSH_ERR, ..Wc::default() });
        return 0;
    }
    state.receives.push_back(wr_id);
    let peer = state.peer;
    world.carry_out(peer);
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    Box::into_raw(Box::new(CompChannel { context, fd: new_eventfd(), refcnt: 0 }))
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: from `create_comp_channel`, and its last use.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: ours.
    unsafe { rustix::io::close(channel.fd) };
    0
}

unsafe extern "C" fn create_cq(
    context: *mut Context,
    _n: c_int,
    _c: *mut c_void,
    channel: *mut CompChannel,
    _v: c_int,
) -> *mut Cq {
    let cq = Box::into_raw(Box::new(Cq { context }));
    world().cqs.insert(cq as usize, SoftCq { entries: VecDeque::new(), armed: false, channel: channel as usize });
    cq
}

unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    world().cqs.remove(&(cq as usize));
    // SAFETY: from `create_cq`, and its last use.
    drop(unsafe { Box::from_raw(cq) });
    0
}

unsafe extern "C" fn get_cq_event(channel: *mut CompChannel, _cq: *mut *mut Cq, _c: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's channel.
    if take(unsafe { (*channel).fd }) { 0 } else { -1 }
}

unsafe extern "C" fn ack_cq_events(_cq: *mut Cq, _n: c_uint) {}

unsafe extern "C" fn reg_mr(pd: *mut c_void, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    let mut world = world();
    world.next_key += 0x101;
    let key = world.next_key;
    world.regions.insert(key, SoftMr { addr: addr as usize, len: length, access });
    Box::into_raw(Box::new(Mr { context: context(), pd, addr, length, handle: 0, lkey: key, rkey: key }))
}

unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: from `reg_mr`, and its last use.
    let mr = unsafe { Box::from_raw(mr) };
    world().regions.remove(&mr.rkey);
    0
}

unsafe extern "C" fn create_event_channel() -> *mut EventChannel {
    Box::into_raw(Box::new(EventChannel { fd: new_eventfd() }))
}

unsafe extern "C" fn destroy_event_channel(channel: *mut EventChannel) {
    world().events.remove(&(channel as usize));
    // SAFETY: from `create_event_channel`, and its last use.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: ours.
    unsafe { rustix::io::close(channel.fd) };
}

fn new_id(channel: *mut EventChannel) -> *mut CmId {
    // SAFETY: all of it may be zero.
    let mut id: CmId = unsafe { core::mem::zeroed() };
    id.channel = channel;
    id.verbs = context();
    Box::into_raw(Box::new(id))
}

unsafe extern "C" fn create_id(channel: *mut EventChannel, id: *mut *mut CmId, _c: *mut c_void, _ps: c_int) -> c_int {
    // SAFETY: the caller's place.
    unsafe { id.write(new_id(channel)) };
    0
}

unsafe extern "C" fn destroy_id(id: *mut CmId) -> c_int {
    let mut world = world();
    world.listeners.retain(|_, listener| *listener != id as usize);
    if let Some(peer) = world.peers.remove(&(id as usize)) {
        world.peers.remove(&peer);
    }
    // SAFETY: from `new_id`, and its last use.
    drop(unsafe { Box::from_raw(id) });
    0
}

unsafe fn port(addr: *const sockaddr) -> u16 {
    // SAFETY: an address of IPv4 or IPv6, whose ports lie at the same place.
    u16::from_be(unsafe { (*addr.cast::<libc::sockaddr_in>()).sin_port })
}

unsafe extern "C" fn bind_addr(id: *mut CmId, addr: *const sockaddr) -> c_int {
    // SAFETY: the caller's id and address.
    unsafe { (&raw mut (*id).src).cast::<libc::sockaddr_in>().write(addr.cast::<libc::sockaddr_in>().read()) };
    0
}

unsafe extern "C" fn listen(id: *mut CmId, _backlog: c_int) -> c_int {
    // SAFETY: the caller's id.
    world().listeners.insert(unsafe { port((&raw const (*id).src).cast()) }, id as usize);
    0
}

unsafe extern "C" fn resolve_addr(id: *mut CmId, _src: *const sockaddr, dst: *const sockaddr, _t: c_int) -> c_int {
    // SAFETY: the caller's id and address.
    unsafe { (&raw mut (*id).dst).cast::<libc::sockaddr_in>().write(dst.cast::<libc::sockaddr_in>().read()) };
    world().tell(id as usize, event::ADDR_RESOLVED, 0, 0, &[]);
    0
}

unsafe extern "C" fn resolve_route(id: *mut CmId, _timeout: c_int) -> c_int {
    world().tell(id as usize, event::ROUTE_RESOLVED, 0, 0, &[]);
    0
}

unsafe extern "C" fn create_qp(id: *mut CmId, _pd: *mut c_void, attributes: *mut QpInitAttr) -> c_int {
    // SAFETY: the caller's.
    let attributes = unsafe { &mut *attributes };
    attributes.max_inline_data = attributes.max_inline_data.min(INLINE_MAX);
    let qp = Box::into_raw(Box::new(Qp { context: context(), qp_context: null_mut(), pd: core::ptr::dangling_mut() }));
    let state = SoftQp {
        cq: attributes.send_cq as usize,
        peer: 0,
        receives: VecDeque::new(),
        waiting: VecDeque::new(),
        broken: false,
        depth: attributes.max_send_wr as usize,
    };
    world().qps.insert(qp as usize, state);
    // SAFETY: the caller's id.
    unsafe { (*id).qp = qp };
    0
}

unsafe extern "C" fn destroy_qp(id: *mut CmId) {
    let mut world = world();
    let qp = World::qp_of(id as usize);
    world.break_pair(qp);
    world.qps.remove(&qp);
    if let Some(&peer) = world.peers.get(&(id as usize)) {
        world.tell(peer, event::DISCONNECTED, 0, 0, &[]);
    }
    // SAFETY: from `create_qp`, and its last use.
    drop(unsafe { Box::from_raw((*id).qp) });
    // SAFETY: the caller's id.
    unsafe { (*id).qp = null_mut() };
}

unsafe fn private_data<'a>(param: *const ConnParam) -> &'a [u8] {
    // SAFETY: the caller's parameters.
    unsafe { core::slice::from_raw_parts((*param).private_data.cast(), usize::from((*param).private_data_len)) }
}

unsafe extern "C" fn connect(id: *mut CmId, param: *mut ConnParam) -> c_int {
    let mut world = world();
    // SAFETY: the caller's id.
    let wanted = unsafe { port((&raw const (*id).dst).cast()) };
    match world.listeners.get(&wanted).copied() {
        None => world.tell(id as usize, event::REJECTED, -libc::ECONNREFUSED, 0, &[]),
        Some(listener) => {
            // SAFETY: a live listener.
            let request = new_id(unsafe { (*(listener as *mut CmId)).channel }) as usize;
            world.peers.insert(id as usize, request);
            world.peers.insert(request, id as usize);
            // SAFETY: the caller's parameters.
            let data = unsafe { private_data(param) };
            world.tell(request, event::CONNECT_REQUEST, 0, listener, data);
        }
    }
    0
}

unsafe extern "C" fn accept(id: *mut CmId, param: *mut ConnParam) -> c_int {
    let mut world = world();
    let Some(&peer) = world.peers.get(&(id as usize)) else { return -1 };
    let (a, b) = (World::qp_of(id as usize), World::qp_of(peer));
    for (from, to) in [(a, b), (b, a)] {
        world.qps.get_mut(&from).expect("made before it answers").peer = to;
    }
    // SAFETY: the caller's parameters.
    let data = unsafe { private_data(param) };
    world.tell(peer, event::ESTABLISHED, 0, 0, data);
    world.tell(id as usize, event::ESTABLISHED, 0, 0, &[]);
    0
}

unsafe extern "C" fn reject(id: *mut CmId, _data: *const c_void, _len: u8) -> c_int {
    let mut world = world();
    if let Some(&peer) = world.peers.get(&(id as usize)) {
        world.tell(peer, event::REJECTED, -libc::ECONNREFUSED, 0, &[]);
    }
    0
}

unsafe extern "C" fn disconnect(id: *mut CmId) -> c_int {
    let mut world = world();
    world.break_pair(World::qp_of(id as usize));
    if let Some(&peer) = world.peers.get(&(id as usize)) {
        world.tell(peer, event::DISCONNECTED, 0, 0, &[]);
    }
    world.tell(id as usize, event::DISCONNECTED, 0, 0, &[]);
    0
}

unsafe extern "C" fn get_cm_event(channel: *mut EventChannel, out: *mut *mut CmEvent) -> c_int {
    let mut world = world();
    let Some(heard) = world.events.get_mut(&(channel as usize)).and_then(VecDeque::pop_front) else { return -1 };
    // SAFETY: the caller's channel and place.
    unsafe {
        take((*channel).fd);
        out.write(Box::into_raw(heard).cast());
    }
    0
}

unsafe extern "C" fn ack_cm_event(event: *mut CmEvent) -> c_int {
    // SAFETY: from `get_cm_event`, and its last use.
    drop(unsafe { Box::from_raw(event.cast::<Heard>()) });
    0
}

unsafe extern "C" fn migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
    // SAFETY: the caller's id.
    unsafe { (*id).channel = channel };
    0
}

/// Tests must not meet each other's memory, so they take turns at connecting by ports of their own.
pub fn api() -> &'static Api {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(world()));
    &Api {
        ibv_create_comp_channel: create_comp_channel,
        ibv_destroy_comp_channel: destroy_comp_channel,
        ibv_create_cq: create_cq,
        ibv_destroy_cq: destroy_cq,
        ibv_get_cq_event: get_cq_event,
        ibv_ack_cq_events: ack_cq_events,
        ibv_reg_mr: reg_mr,
        ibv_dereg_mr: dereg_mr,
        rdma_create_event_channel: create_event_channel,
        rdma_destroy_event_channel: destroy_event_channel,
        rdma_create_id: create_id,
        rdma_destroy_id: destroy_id,
        rdma_bind_addr: bind_addr,
        rdma_listen: listen,
        rdma_resolve_addr: resolve_addr,
        rdma_resolve_route: resolve_route,
        rdma_create_qp: create_qp,
        rdma_destroy_qp: destroy_qp,
        rdma_connect: connect,
        rdma_accept: accept,
        rdma_reject: reject,
        rdma_disconnect: disconnect,
        rdma_get_cm_event: get_cm_event,
        rdma_ack_cm_event: ack_cm_event,
        rdma_migrate_id: migrate_id,
    }
}
