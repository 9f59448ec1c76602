//! The functions of libibverbs: queues, requests, completions, memory.
#![allow(unsafe_code)]

use super::super::abi::{
    CompChannel, Context, ContextOps, Cq, Device, Mr, Qp, RecvWr, SendWr, Sge, Wc, access, wc, wr,
};
use super::world::{INLINE_MAX, SoftCq, SoftMr, new_eventfd, take, world};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;
use std::collections::VecDeque;
use std::sync::OnceLock;

/// The one device.
pub fn context() -> *mut Context {
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
            after: [null_mut(); 5],
        };
        let (cmd_fd, async_fd) = (-1, -1);
        Box::into_raw(Box::new(Context {
            device: Box::into_raw(Box::new(device)),
            ops,
            cmd_fd,
            async_fd,
        })) as usize
    }) as *mut Context
}

pub unsafe extern "C" fn poll_cq(cq: *mut Cq, count: c_int, out: *mut Wc) -> c_int {
    let mut world = world();
    let Some(queue) = world.cqs.get_mut(&(cq as usize)) else { return -1 };
    let n = queue.entries.len().min(count as usize);
    for (i, one) in queue.entries.drain(..n).enumerate() {
        // SAFETY: the caller has room for `count`.
        unsafe { out.add(i).write(one) };
    }
    n as c_int
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut Cq, _solicited: c_int) -> c_int {
    world().cqs.get_mut(&(cq as usize)).map_or(libc::EINVAL, |queue| {
        queue.armed = true;
        0
    })
}

pub unsafe extern "C" fn post_send(
    qp: *mut Qp,
    request: *mut SendWr,
    _bad: *mut *mut SendWr,
) -> c_int {
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
    let known =
        |sge: &Sge| world.is_within(sge.lkey, sge.addr, sge.length as usize, access::LOCAL_WRITE);
    if (inline && total > INLINE_MAX) || (!inline && !list.iter().all(known)) {
        return libc::EINVAL;
    }
    let mut bytes = Vec::new();
    for sge in list {
        // SAFETY: the caller's bytes.
        bytes.extend_from_slice(unsafe {
            core::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize)
        });
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

pub unsafe extern "C" fn post_recv(
    qp: *mut Qp,
    request: *mut RecvWr,
    _bad: *mut *mut RecvWr,
) -> c_int {
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

pub unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    Box::into_raw(Box::new(CompChannel { context, fd: new_eventfd(), refcnt: 0 }))
}

pub unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: from `create_comp_channel`, and its last use.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: ours.
    unsafe { rustix::io::close(channel.fd) };
    0
}

pub unsafe extern "C" fn create_cq(
    context: *mut Context,
    _n: c_int,
    _c: *mut c_void,
    channel: *mut CompChannel,
    _v: c_int,
) -> *mut Cq {
    let cq = Box::into_raw(Box::new(Cq { context }));
    world().cqs.insert(
        cq as usize,
        SoftCq { entries: VecDeque::new(), armed: false, channel: channel as usize },
    );
    cq
}

pub unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    world().cqs.remove(&(cq as usize));
    // SAFETY: from `create_cq`, and its last use.
    drop(unsafe { Box::from_raw(cq) });
    0
}

pub unsafe extern "C" fn get_cq_event(
    channel: *mut CompChannel,
    _cq: *mut *mut Cq,
    _c: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's channel.
    if take(unsafe { (*channel).fd }) { 0 } else { -1 }
}

pub unsafe extern "C" fn ack_cq_events(_cq: *mut Cq, _n: c_uint) {}

pub unsafe extern "C" fn reg_mr(
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    let mut world = world();
    world.next_key += 0x101;
    let key = world.next_key;
    world.regions.insert(key, SoftMr { addr: addr as usize, len: length, access });
    Box::into_raw(Box::new(Mr {
        context: context(),
        pd,
        addr,
        length,
        handle: 0,
        lkey: key,
        rkey: key,
    }))
}

pub unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: from `reg_mr`, and its last use.
    let mr = unsafe { Box::from_raw(mr) };
    world().regions.remove(&mr.rkey);
    0
}
