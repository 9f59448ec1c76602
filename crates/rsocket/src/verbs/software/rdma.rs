//! The functions of librdmacm: identifiers, addresses, connections and their events.
#![allow(unsafe_code)]

use super::super::abi::{CmEvent, CmId, ConnParam, EventChannel, Qp, QpInitAttr, event};
use super::ibv::context;
use super::world::{Heard, INLINE_MAX, SoftQp, World, new_eventfd, take, world};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU16, Ordering};
use libc::sockaddr;
use std::collections::VecDeque;

pub unsafe extern "C" fn create_event_channel() -> *mut EventChannel {
    Box::into_raw(Box::new(EventChannel { fd: new_eventfd() }))
}

pub unsafe extern "C" fn destroy_event_channel(channel: *mut EventChannel) {
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

pub unsafe extern "C" fn create_id(
    channel: *mut EventChannel,
    id: *mut *mut CmId,
    _c: *mut c_void,
    _ps: c_int,
) -> c_int {
    // SAFETY: the caller's place.
    unsafe { id.write(new_id(channel)) };
    0
}

pub unsafe extern "C" fn destroy_id(id: *mut CmId) -> c_int {
    let mut world = world();
    world.listeners.retain(|_, listener| *listener != id as usize);
    world.refuse_requests(id as usize);
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

/// A port that nobody has asked for.
fn free_port() -> u16 {
    static FREE: AtomicU16 = AtomicU16::new(40_000);
    FREE.fetch_add(1, Ordering::Relaxed).to_be()
}

pub unsafe extern "C" fn bind_addr(id: *mut CmId, addr: *const sockaddr) -> c_int {
    // SAFETY: the caller's address.
    let mut name = unsafe { addr.cast::<libc::sockaddr_in>().read() };
    if name.sin_port == 0 {
        name.sin_port = free_port();
    }
    // SAFETY: the caller's id.
    unsafe { (&raw mut (*id).src).cast::<libc::sockaddr_in>().write(name) };
    0
}

pub unsafe extern "C" fn listen(id: *mut CmId, _backlog: c_int) -> c_int {
    // SAFETY: the caller's id.
    world().listeners.insert(unsafe { port((&raw const (*id).src).cast()) }, id as usize);
    0
}

pub unsafe extern "C" fn resolve_addr(
    id: *mut CmId,
    _src: *const sockaddr,
    dst: *const sockaddr,
    _t: c_int,
) -> c_int {
    // SAFETY: the caller's id and address.
    unsafe {
        (&raw mut (*id).dst)
            .cast::<libc::sockaddr_in>()
            .write(dst.cast::<libc::sockaddr_in>().read())
    };
    world().tell(id as usize, event::ADDR_RESOLVED, 0, 0, &[]);
    0
}

pub unsafe extern "C" fn resolve_route(id: *mut CmId, _timeout: c_int) -> c_int {
    world().tell(id as usize, event::ROUTE_RESOLVED, 0, 0, &[]);
    0
}

pub unsafe extern "C" fn create_qp(
    id: *mut CmId,
    _pd: *mut c_void,
    attributes: *mut QpInitAttr,
) -> c_int {
    // SAFETY: the caller's.
    let attributes = unsafe { &mut *attributes };
    attributes.max_inline_data = attributes.max_inline_data.min(INLINE_MAX);
    // SAFETY: pointers and numbers, which may all be zero.
    let mut new: Qp = unsafe { core::mem::zeroed() };
    (new.context, new.pd) = (context(), core::ptr::dangling_mut());
    let qp = Box::into_raw(Box::new(new));
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

pub unsafe extern "C" fn destroy_qp(id: *mut CmId) {
    let mut world = world();
    world.remove_qp(World::qp_of(id as usize));
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
    unsafe {
        core::slice::from_raw_parts(
            (*param).private_data.cast(),
            usize::from((*param).private_data_len),
        )
    }
}

pub unsafe extern "C" fn connect(id: *mut CmId, param: *mut ConnParam) -> c_int {
    let mut world = world();
    // SAFETY: the caller's id.
    let wanted = unsafe { port((&raw const (*id).dst).cast()) };
    match world.listeners.get(&wanted).copied() {
        None => world.tell(id as usize, event::REJECTED, -libc::ECONNREFUSED, 0, &[]),
        Some(listener) => {
            // SAFETY: a live listener.
            let request = new_id(unsafe { (*(listener as *mut CmId)).channel });
            // SAFETY: the caller's id.
            let mut name = unsafe { (&raw const (*id).dst).cast::<libc::sockaddr_in>().read() };
            // SAFETY: just made.
            unsafe { (&raw mut (*request).src).cast::<libc::sockaddr_in>().write(name) };
            name.sin_port = free_port();
            // SAFETY: as above.
            unsafe { (&raw mut (*request).dst).cast::<libc::sockaddr_in>().write(name) };
            let request = request as usize;
            world.peers.insert(id as usize, request);
            world.peers.insert(request, id as usize);
            // SAFETY: the caller's parameters.
            let data = unsafe { private_data(param) };
            world.tell(request, event::CONNECT_REQUEST, 0, listener, data);
        }
    }
    0
}

pub unsafe extern "C" fn accept(id: *mut CmId, param: *mut ConnParam) -> c_int {
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

pub unsafe extern "C" fn reject(id: *mut CmId, _data: *const c_void, _len: u8) -> c_int {
    let mut world = world();
    if let Some(&peer) = world.peers.get(&(id as usize)) {
        world.tell(peer, event::REJECTED, -libc::ECONNREFUSED, 0, &[]);
    }
    0
}

pub unsafe extern "C" fn disconnect(id: *mut CmId) -> c_int {
    let mut world = world();
    world.break_pair(World::qp_of(id as usize));
    if let Some(&peer) = world.peers.get(&(id as usize)) {
        world.tell(peer, event::DISCONNECTED, 0, 0, &[]);
    }
    world.tell(id as usize, event::DISCONNECTED, 0, 0, &[]);
    0
}

pub unsafe extern "C" fn get_cm_event(channel: *mut EventChannel, out: *mut *mut CmEvent) -> c_int {
    let mut world = world();
    let Some(heard) = world.events.get_mut(&(channel as usize)).and_then(VecDeque::pop_front)
    else {
        return -1;
    };
    // SAFETY: the caller's channel and place.
    unsafe {
        take((*channel).fd);
        out.write(Box::into_raw(heard).cast());
    }
    0
}

pub unsafe extern "C" fn ack_cm_event(event: *mut CmEvent) -> c_int {
    // SAFETY: from `get_cm_event`, and its last use.
    drop(unsafe { Box::from_raw(event.cast::<Heard>()) });
    0
}

pub unsafe extern "C" fn migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
    // SAFETY: the caller's id.
    unsafe { (*id).channel = channel };
    0
}
