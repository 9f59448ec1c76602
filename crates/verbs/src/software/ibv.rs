//! The functions of libibverbs: device, memory, queues, states. Requests are in `post.rs`.
#![allow(unsafe_code)]

use super::adapter::{Adapter, Address, Looked, MOST_PAIRS, MOST_REGIONS, Pair};
use super::post::{self, Completions};
use crate::abi::{
    CompChannel, Context, ContextOps, Cq, Device, DeviceAttr, Mr, PortAttr, Qp, QpAttr, QpInitAttr,
    RecvWr,
};
use crate::abi::{MTU_1024, PORT_ACTIVE, QPT_RC, TRANSPORT_IB, mask, state};
use crate::far;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::*;

/// Nobody's.
const VENDOR: u32 = 0xfe_ffff;
/// Most that is taken with a request.
pub const INLINE_MAX: u32 = 256;

/// Of an adapter that nobody knows yet.
pub fn set_up(adapter: &Adapter) {
    let device = Device { ops: [null_mut(); 2], node_type: 1, transport_type: TRANSPORT_IB };
    let ops = ContextOps {
        before: [null_mut(); 11],
        poll_cq: post::poll_cq,
        req_notify_cq,
        between: [null_mut(); 12],
        post_send: post::post_send,
        post_recv,
        after: [null_mut(); 5],
    };
    // SAFETY: a cell that nobody else looks at yet.
    unsafe { adapter.device.get().write(device) };
    let context = Context { device: adapter.device.get(), ops, cmd_fd: -1, async_fd: -1 };
    // SAFETY: a cell that nobody else looks at yet.
    unsafe { adapter.context.get().write(context) };
}

/// Who waits for completions polls: they are there when a post returns.
unsafe extern "C" fn req_notify_cq(_cq: *mut Cq, _solicited: c_int) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn post_recv(
    _qp: *mut Qp,
    _request: *mut RecvWr,
    _bad: *mut *mut RecvWr,
) -> c_int {
    libc::EOPNOTSUPP
}

fn fail<T>(errno: c_int) -> *mut T {
    // SAFETY: it has no obligation.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: this thread's errno.
    unsafe { *place = errno };
    null_mut()
}

pub unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut Device {
    struct List([*mut Device; 2]);
    // SAFETY: addresses, compared by nobody and written by nobody.
    unsafe impl Sync for List {}
    // What it points to names the device and nothing more: there is one.
    static DEVICE: u64 = 0;
    static LIST: List = List([(&raw const DEVICE).cast_mut().cast(), null_mut()]);
    if !count.is_null() {
        // SAFETY: the caller's place.
        unsafe { count.write(1) };
    }
    LIST.0.as_ptr().cast_mut()
}

pub unsafe extern "C" fn free_device_list(_list: *mut *mut Device) {}

pub unsafe extern "C" fn open_device(_device: *mut Device) -> *mut Context {
    Adapter::get().map_or_else(|| fail(libc::ENOMEM), |adapter| adapter.context.get())
}

pub unsafe extern "C" fn close_device(_context: *mut Context) -> c_int {
    0
}

pub unsafe extern "C" fn query_device(_context: *mut Context, out: *mut DeviceAttr) -> c_int {
    // SAFETY: the caller's place.
    unsafe { out.write(DeviceAttr { vendor_id: VENDOR, ..DeviceAttr::default() }) };
    0
}

pub unsafe extern "C" fn query_port(
    _context: *mut Context,
    _port: u8,
    out: *mut PortAttr,
) -> c_int {
    let attributes = PortAttr {
        state: PORT_ACTIVE,
        max_mtu: MTU_1024,
        active_mtu: MTU_1024,
        gid_tbl_len: 1,
        ..PortAttr::default()
    };
    // SAFETY: the caller's place.
    unsafe { out.write(attributes) };
    0
}

pub unsafe extern "C" fn query_gid(
    _context: *mut Context,
    _port: u8,
    index: c_int,
    out: *mut [u8; 16],
) -> c_int {
    let Some(adapter) = Adapter::get().filter(|_| index == 0) else { return -1 };
    // SAFETY: the caller's place.
    unsafe { out.write(adapter.address().gid()) };
    0
}

pub unsafe extern "C" fn alloc_pd(context: *mut Context) -> *mut c_void {
    // One protects as much as several: keys are each process's own.
    context.cast()
}

pub unsafe extern "C" fn dealloc_pd(_pd: *mut c_void) -> c_int {
    0
}

pub unsafe extern "C" fn reg_mr(
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    let Some(adapter) = Adapter::get() else { return fail(libc::ENOMEM) };
    let Ok(_guard) = adapter.lock.lock() else { return fail(libc::EDEADLK) };
    let free = adapter.regions.iter().position(|region| region.key.load(Relaxed) == 0);
    let Some(index) = free else { return fail(libc::ENOMEM) };
    let key = adapter.number(index, MOST_REGIONS, 32);
    let region = &adapter.regions[index];
    region.addr.store(addr as u64, Relaxed);
    region.len.store(length as u64, Relaxed);
    region.access.store(access as u32, Relaxed);
    let mr = Mr {
        context: adapter.context.get(),
        pd,
        addr,
        length,
        handle: index as u32,
        lkey: key,
        rkey: key,
    };
    let place = adapter.mrs[index].get();
    // SAFETY: the cell of a region that nobody has.
    unsafe { place.write(mr) };
    region.key.store(key, Release);
    place
}

pub unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    let Some(adapter) = Adapter::get() else { return libc::EINVAL };
    // SAFETY: the caller's region.
    let index = unsafe { (*mr).handle } as usize % MOST_REGIONS;
    adapter.regions[index].key.store(0, Release);
    0
}

pub unsafe extern "C" fn create_cq(
    context: *mut Context,
    _entries: c_int,
    _user: *mut c_void,
    channel: *mut CompChannel,
    _vector: c_int,
) -> *mut Cq {
    let Some(adapter) = Adapter::get().filter(|_| channel.is_null()) else {
        return fail(libc::EOPNOTSUPP);
    };
    let Ok(_guard) = adapter.lock.lock() else { return fail(libc::EDEADLK) };
    let free = adapter.cqs.iter().find(|cq| cq.take(context));
    free.map_or_else(|| fail(libc::ENOMEM), Completions::as_cq)
}

pub unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: made by `create_cq`.
    unsafe { Completions::of(cq) }.leave();
    0
}

pub unsafe extern "C" fn create_qp(pd: *mut c_void, attributes: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the caller's.
    let attributes = unsafe { &mut *attributes };
    let Some(adapter) = Adapter::get().filter(|_| attributes.qp_type == QPT_RC) else {
        return fail(libc::EOPNOTSUPP);
    };
    let Ok(_guard) = adapter.lock.lock() else { return fail(libc::EDEADLK) };
    let free = adapter.pairs.iter().position(|pair| pair.qpn.load(Relaxed) == 0);
    let Some(index) = free else { return fail(libc::ENOMEM) };
    attributes.max_inline_data = attributes.max_inline_data.min(INLINE_MAX);
    let (pair, soft) = (&adapter.pairs[index], &adapter.qps[index]);
    let qpn = adapter.number(index, MOST_PAIRS, 24);
    let qp = Qp {
        context: adapter.context.get(),
        qp_context: attributes.qp_context,
        pd,
        send_cq: attributes.send_cq,
        recv_cq: attributes.recv_cq,
        srq: attributes.srq,
        handle: index as u32,
        qp_num: qpn,
    };
    // SAFETY: a cell of a pair that nobody has.
    unsafe { soft.qp.get().write(qp) };
    // SAFETY: a cell of a pair that nobody has.
    unsafe { soft.far.get().write((Address::default(), 0)) };
    // SAFETY: a lock that nobody has.
    unsafe { soft.lock.reset() };
    soft.all_signaled.store(u32::from(attributes.sq_sig_all != 0), Relaxed);
    for word in [&pair.state, &pair.dest_qpn, &pair.psn] {
        word.store(0, Relaxed);
    }
    pair.qpn.store(qpn, Release);
    soft.qp.get()
}

pub unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    let Some(adapter) = Adapter::get() else { return libc::EINVAL };
    // SAFETY: the caller's queue pair.
    adapter.pair(unsafe { (*qp).qp_num }).qpn.store(0, Release);
    0
}

pub unsafe extern "C" fn modify_qp(qp: *mut Qp, attributes: *mut QpAttr, given: c_int) -> c_int {
    let Some(adapter) = Adapter::get() else { return libc::EINVAL };
    // SAFETY: the caller's queue pair.
    let qpn = unsafe { (*qp).qp_num };
    // SAFETY: the caller's attributes.
    let attributes = unsafe { &*attributes };
    let pair = adapter.pair(qpn);
    let before = pair.state.load(Relaxed) as i32;
    let allowed = match attributes.qp_state {
        state::INIT => before == 0,
        state::RTR => {
            before == state::INIT
                && given & (mask::AV | mask::DEST_QPN) == mask::AV | mask::DEST_QPN
        }
        state::RTS => before == state::RTR,
        state::ERR => true,
        _ => false,
    };
    if !allowed || given & mask::STATE == 0 {
        return libc::EINVAL;
    }
    if given & mask::SQ_PSN != 0 {
        pair.psn.store(attributes.sq_psn, Relaxed);
    }
    if attributes.qp_state == state::RTR
        && let Err(errno) = connect(adapter, qpn, pair, attributes)
    {
        return errno;
    }
    pair.state.store(attributes.qp_state as u32, Release);
    0
}

/// Finds the adapter that the GID leads to, and a queue pair there with that number.
fn connect(adapter: &Adapter, qpn: u32, pair: &Pair, attributes: &QpAttr) -> Result<(), c_int> {
    let there = Address::of(attributes.ah_attr.dgid).ok_or(libc::EINVAL)?;
    let dest = attributes.dest_qp_num;
    let seen = look(there, dest, 0).map_err(|e| e.raw_os_error())?;
    if seen.proof == 0 || seen.pair[0] != dest {
        return Err(libc::EHOSTUNREACH);
    }
    pair.dest_qpn.store(dest, Relaxed);
    let soft = &adapter.qps[qpn as usize % MOST_PAIRS];
    let Ok(_guard) = soft.lock.lock() else { return Err(libc::EDEADLK) };
    // SAFETY: the lock is held.
    unsafe { soft.far.get().write((there, seen.proof)) };
    Ok(())
}

/// Reads what an adapter says of a queue pair and of a key.
pub fn look(there: Address, qpn: u32, key: u32) -> Result<Looked, shm::Errno> {
    let mut seen = Looked::default();
    let remote = Looked::places(there.base, qpn, key).map(|(addr, len)| far::piece(addr, len));
    far::gather(there.pid, &remote, &mut seen)?;
    Ok(seen)
}
