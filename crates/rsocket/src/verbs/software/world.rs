//! What there is of a software RDMA, and the rules by which it moves.
#![allow(unsafe_code)]

use super::super::abi::{CmEvent, CmId, CompChannel, ConnParam, Wc, access, event, wc};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// As InfiniBand pads it.
pub const PRIVATE: usize = 56;
pub const INLINE_MAX: u32 = 64;

pub struct SoftCq {
    pub entries: VecDeque<Wc>,
    pub armed: bool,
    pub channel: usize,
}

/// The completion to be, immediate data, bytes, and where they go: address and key.
pub type Waiting = (Wc, Option<u32>, Vec<u8>, u64, u32);

pub struct SoftQp {
    pub cq: usize,
    pub peer: usize,
    pub receives: VecDeque<u64>,
    /// Requests that wait for a receive of the peer.
    pub waiting: VecDeque<Waiting>,
    pub broken: bool,
    pub depth: usize,
}

#[derive(Clone, Copy)]
pub struct SoftMr {
    pub addr: usize,
    pub len: usize,
    pub access: i32,
}

/// By the addresses of the structures that the callers hold.
#[derive(Default)]
pub struct World {
    pub cqs: HashMap<usize, SoftCq>,
    pub qps: HashMap<usize, SoftQp>,
    pub regions: HashMap<u32, SoftMr>,
    pub events: HashMap<usize, VecDeque<Box<Heard>>>,
    pub listeners: HashMap<u16, usize>,
    /// The other id of a connection.
    pub peers: HashMap<usize, usize>,
    pub next_key: u32,
}

#[repr(C)]
pub struct Heard {
    pub event: CmEvent,
    pub data: [u8; PRIVATE],
}

// SAFETY: pointers of one process, used under the lock of the world.
unsafe impl Send for World {}

pub fn world() -> MutexGuard<'static, World> {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    WORLD.get_or_init(Mutex::default).lock().expect("no panic while it is held")
}

pub fn signal(fd: RawFd) {
    // SAFETY: an eventfd of ours.
    let _ = rustix::io::write(unsafe { BorrowedFd::borrow_raw(fd) }, &1u64.to_ne_bytes());
}

/// Takes one signal back; false if there is none.
pub fn take(fd: RawFd) -> bool {
    // SAFETY: an eventfd of ours.
    rustix::io::read(unsafe { BorrowedFd::borrow_raw(fd) }, &mut [0u8; 8]).is_ok()
}

pub fn new_eventfd() -> RawFd {
    eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
        .unwrap()
        .into_raw_fd()
}

impl World {
    pub fn complete(&mut self, cq: usize, completion: Wc) {
        let Some(queue) = self.cqs.get_mut(&cq) else { return };
        queue.entries.push_back(completion);
        if std::mem::take(&mut queue.armed) {
            // SAFETY: a channel outlives its queues.
            signal(unsafe { (*(queue.channel as *const CompChannel)).fd });
        }
    }

    pub fn is_within(&self, key: u32, addr: u64, len: usize, need: i32) -> bool {
        len == 0
            || self.regions.get(&key).is_some_and(|mr| {
                let offset = (addr as usize).checked_sub(mr.addr);
                mr.access & need != 0 && offset.is_some_and(|at| at <= mr.len && len <= mr.len - at)
            })
    }

    /// Both ends are of no use any more: what is posted is flushed.
    pub fn break_pair(&mut self, qp: usize) {
        let peer = self.qps.get(&qp).map_or(0, |qp| qp.peer);
        for end in [qp, peer] {
            let Some(state) = self.qps.get_mut(&end) else { continue };
            state.broken = true;
            let flushed: Vec<_> = state
                .waiting
                .drain(..)
                .map(|w| w.0.wr_id)
                .chain(state.receives.drain(..))
                .collect();
            let cq = state.cq;
            flushed.into_iter().for_each(|wr_id| {
                self.complete(cq, Wc { wr_id, status: wc::FLUSH_ERR, ..Wc::default() })
            });
        }
    }

    /// Takes `qp` away. Its address will be that of another, with which its peer has nothing to do.
    pub fn remove_qp(&mut self, qp: usize) {
        self.break_pair(qp);
        if let Some(gone) = self.qps.remove(&qp)
            && let Some(peer) = self.qps.get_mut(&gone.peer)
        {
            peer.peer = 0;
        }
    }

    /// Carries out what `qp` has posted, as far as the peer has receives.
    pub fn carry_out(&mut self, qp: usize) {
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
                unsafe {
                    core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len())
                };
                let cq = target.cq;
                self.complete(
                    cq,
                    Wc { wr_id, imm_data: imm, byte_len: bytes.len() as u32, ..Wc::default() },
                );
            } else {
                // SAFETY: as above.
                unsafe {
                    core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len())
                };
            }
            self.complete(cq, done);
        }
    }

    pub fn tell(&mut self, id: usize, kind: i32, status: i32, listen: usize, data: &[u8]) {
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
        let event = CmEvent {
            id: id as *mut CmId,
            listen_id: listen as *mut CmId,
            event: kind,
            status,
            conn,
        };
        let mut heard = Box::new(Heard { event, data: padded });
        if !data.is_empty() {
            heard.event.conn.private_data = heard.data.as_ptr().cast();
            heard.event.conn.private_data_len = PRIVATE as u8;
        }
        self.events.entry(to as usize).or_default().push_back(heard);
        // SAFETY: a channel lives as long as its ids.
        signal(unsafe { (*to).fd });
    }

    /// A listener goes: who waits for its answer is refused.
    pub fn refuse_requests(&mut self, listener: usize) {
        let all = self.events.values().flatten();
        let requests: Vec<usize> = all
            .filter(|heard| heard.event.listen_id as usize == listener)
            .map(|heard| heard.event.id as usize)
            .collect();
        for request in requests {
            if let Some(peer) = self.peers.remove(&request) {
                self.peers.remove(&peer);
                self.tell(peer, event::REJECTED, -libc::ECONNREFUSED, 0, &[]);
            }
        }
    }

    pub fn qp_of(id: usize) -> usize {
        // SAFETY: a live id.
        unsafe { (*(id as *const CmId)).qp as usize }
    }
}
