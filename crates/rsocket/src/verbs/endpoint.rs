//! One end of a reliable connection: queue pair, completion queue and memory regions.
#![allow(unsafe_code)]

use super::abi::{
    Api, CmEvent, CmId, CompChannel, ContextOps, Cq, EventChannel, Mr, Qp, QpInitAttr, RecvWr,
    SendWr, Sge, Wc,
};
use super::abi::{QPT_RC, TRANSPORT_IWARP, access, event, wc, wr};
use super::{check, last_error, readable};
use crate::provider::{Completion, Endpoint, Lane, PostError, Region, Remote};
use crate::stream::{CONTROL, Config};
use crate::table;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd};
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use shm::Errno;
use std::sync::Mutex;

/// Most that is taken with the request, whatever more the device could.
const INLINE: usize = 256;
/// Entries of a request: the send buffer wraps once.
const PIECES: usize = 2;
const BATCH: usize = 32;
/// Marks the completions of receives, which have no id.
const RECV: u64 = 1 << 63;

pub struct VerbsEndpoint {
    api: &'static Api,
    id: *mut CmId,
    channel: *mut EventChannel,
    comp: *mut CompChannel,
    cq: *mut Cq,
    region: Region,
    memory: *mut Mr,
    /// The memory that sends are staged in.
    lent: AtomicPtr<Mr>,
    inline: usize,
    /// Readable when the channel of completions or that of the connection is, or `wake`.
    ready: RawFd,
    wake: RawFd,
    gone: AtomicBool,
    disconnected: AtomicBool,
    unacknowledged: AtomicU32,
    /// Events of the connection are taken by one thread at a time.
    events: Mutex<()>,
    exposed: Mutex<Vec<(u32, usize)>>,
}

// SAFETY: the libraries may be called by any thread; the pointers live until `close`.
unsafe impl Sync for VerbsEndpoint {}
// SAFETY: as above.
unsafe impl Send for VerbsEndpoint {}

impl VerbsEndpoint {
    /// All receives are posted. `ready` is an epoll set that has the events of the connection
    /// already.
    ///
    /// # Safety
    /// The id has found its device; it, its channel and the set live until [`Self::tear_down`].
    pub unsafe fn create(
        api: &'static Api,
        id: *mut CmId,
        channel: *mut EventChannel,
        ready: RawFd,
        config: &Config,
        inline: u16,
    ) -> Result<Self, Errno> {
        // SAFETY: an id with a device, by the contract; so in this function.
        let context = unsafe { (*id).verbs };
        // SAFETY: an open device's context.
        let device = unsafe { (*context).device };
        // SAFETY: the device that was opened.
        if unsafe { (*device).transport_type } == TRANSPORT_IWARP {
            // It has no immediate data, without which there is no stream.
            return Err(Errno::OPNOTSUPP);
        }
        let mut this = Self {
            api,
            id,
            channel,
            comp: null_mut(),
            cq: null_mut(),
            region: Region { ptr: null_mut(), len: config.memory(), addr: 0, key: 0 },
            memory: null_mut(),
            lent: AtomicPtr::default(),
            inline: 0,
            ready,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into_raw_fd(),
            gone: AtomicBool::new(false),
            disconnected: AtomicBool::new(false),
            unacknowledged: AtomicU32::new(0),
            events: Mutex::new(()),
            exposed: Mutex::new(Vec::new()),
        };
        match this.set_up(config, inline) {
            Ok(()) => Ok(this),
            Err(e) => {
                this.tear_down();
                Err(e)
            }
        }
    }

    fn set_up(&mut self, config: &Config, inline: u16) -> Result<(), Errno> {
        // SAFETY: as in `create`; so below.
        let context = unsafe { (*self.id).verbs };
        // SAFETY: an open device.
        self.comp = not_null(unsafe { (self.api.ibv_create_comp_channel)(context) })?;
        // SAFETY: just made.
        let comp = unsafe { (*self.comp).fd };
        // SAFETY: open as long as the channel.
        let comp = unsafe { BorrowedFd::borrow_raw(comp) };
        rustix::fs::fcntl_setfl(comp, rustix::fs::OFlags::NONBLOCK)?;
        // SAFETY: the caller's epoll set.
        let ready = unsafe { BorrowedFd::borrow_raw(self.ready) };
        epoll::add(ready, comp, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        epoll::add(ready, self.wake(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        let receives = u32::from(config.rq) + CONTROL;
        let entries = i32::from(config.sq) + receives as i32;
        // SAFETY: an open device and our channel.
        self.cq = not_null(unsafe {
            (self.api.ibv_create_cq)(context, entries, null_mut(), self.comp, 0)
        })?;
        let mut attributes = QpInitAttr {
            qp_context: null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: null_mut(),
            max_send_wr: config.sq.into(),
            max_recv_wr: receives,
            max_send_sge: PIECES as u32,
            max_recv_sge: 1,
            max_inline_data: u32::from(inline).min(INLINE as u32),
            qp_type: QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: initialised; the device's own protection domain.
        check(unsafe { (self.api.rdma_create_qp)(self.id, null_mut(), &mut attributes) })?;
        self.inline = (attributes.max_inline_data as usize).min(INLINE);
        let ptr = table::map(self.region.len)?;
        self.region = Region { ptr, addr: ptr as u64, ..self.region };
        self.memory =
            self.register(ptr, self.region.len, access::LOCAL_WRITE | access::REMOTE_WRITE)?;
        // SAFETY: just registered.
        self.region.key = unsafe { (*self.memory).rkey };
        self.receive(receives)
    }

    /// Its queue pair, which is there from `set_up` to `tear_down`.
    fn qp(&self) -> *mut Qp {
        // SAFETY: our id.
        unsafe { (*self.id).qp }
    }

    /// The device's calls of the data path.
    fn calls(&self) -> &ContextOps {
        // SAFETY: an id with a device.
        let context = unsafe { (*self.id).verbs };
        // SAFETY: that of an open device.
        unsafe { &(*context).ops }
    }

    fn register(&self, ptr: *mut u8, len: usize, access: i32) -> Result<*mut Mr, Errno> {
        // SAFETY: the queue pair is there.
        let pd = unsafe { (*self.qp()).pd };
        // SAFETY: the caller's memory; what is not mapped is refused by the kernel.
        not_null(unsafe { (self.api.ibv_reg_mr)(pd, ptr.cast(), len, access) })
    }

    fn receive(&self, count: u32) -> Result<(), Errno> {
        let (qp, post_recv) = (self.qp(), self.calls().post_recv);
        for _ in 0..count {
            let mut request =
                RecvWr { wr_id: RECV, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
            let mut bad = null_mut();
            // SAFETY: a receive without memory, for writes with immediate data.
            let error = unsafe { post_recv(qp, &mut request, &mut bad) };
            if error != 0 {
                return Err(Errno::from_raw_os_error(error));
            }
        }
        Ok(())
    }

    fn wake(&self) -> BorrowedFd<'_> {
        // SAFETY: open until `tear_down`.
        unsafe { BorrowedFd::borrow_raw(self.wake) }
    }

    /// Takes events of the connection.
    fn hear(&self) {
        let Ok(_one) = self.events.try_lock() else { return };
        // SAFETY: the channel lives as long as the endpoint.
        while readable(unsafe { (*self.channel).fd }) {
            let mut heard: *mut CmEvent = null_mut();
            // SAFETY: our channel.
            if unsafe { (self.api.rdma_get_cm_event)(self.channel, &mut heard) } != 0 {
                return;
            }
            // SAFETY: an event, until it is acknowledged.
            if unsafe { (*heard).event } != event::ESTABLISHED {
                self.gone.store(true, Ordering::Release);
                // Stays readable: whoever waits from now on is told at once.
                let _ = rustix::io::write(self.wake(), &1u64.to_ne_bytes());
            }
            // SAFETY: as above.
            unsafe { (self.api.rdma_ack_cm_event)(heard) };
        }
    }

    fn completion(&self, one: &Wc) -> Option<Completion> {
        if one.status != wc::SUCCESS && one.status != wc::FLUSH_ERR {
            // The peer is not there any more, or has not the memory that it told of.
            self.gone.store(true, Ordering::Release);
        }
        match (one.wr_id & RECV != 0, one.status) {
            (true, wc::SUCCESS) => Some(Completion::Recv(u32::from_be(one.imm_data))),
            (true, _) => None,
            (false, status) => {
                Some(Completion::Sent { id: one.wr_id as u32, ok: status == wc::SUCCESS })
            }
        }
    }

    /// Ends the connection and gives back what it was made of, but for its id.
    pub fn tear_down(&self) {
        let api = self.api;
        // Each is null or ours, and used here for the last time, in the order that the libraries
        // ask for.
        if !self.qp().is_null() {
            // SAFETY: ours, and its last use.
            unsafe { (api.rdma_destroy_qp)(self.id) };
        }
        if !self.cq.is_null() {
            // SAFETY: ours; so many events were taken.
            unsafe {
                (api.ibv_ack_cq_events)(self.cq, self.unacknowledged.swap(0, Ordering::Relaxed))
            };
            // SAFETY: ours, and its last use.
            unsafe { (api.ibv_destroy_cq)(self.cq) };
        }
        let exposed =
            self.exposed.lock().map(|mut list| core::mem::take(&mut *list)).unwrap_or_default();
        let regions = exposed.into_iter().map(|(_, mr)| mr as *mut Mr);
        for mr in regions.chain([self.memory, self.lent.swap(null_mut(), Ordering::Relaxed)]) {
            if !mr.is_null() {
                // SAFETY: ours, and its last use.
                unsafe { (api.ibv_dereg_mr)(mr) };
            }
        }
        if !self.comp.is_null() {
            // SAFETY: ours, and its last use.
            unsafe { (api.ibv_destroy_comp_channel)(self.comp) };
        }
        // SAFETY: ours, and its last use.
        unsafe { rustix::io::close(self.wake) };
        if !self.region.ptr.is_null() {
            // SAFETY: ours, and nobody writes to it any more.
            let _ = unsafe { rustix::mm::munmap(self.region.ptr.cast(), self.region.len) };
        }
    }
}

fn not_null<T>(ptr: *mut T) -> Result<*mut T, Errno> {
    if ptr.is_null() { Err(last_error()) } else { Ok(ptr) }
}

impl Endpoint for VerbsEndpoint {
    fn inline_limit(&self) -> usize {
        self.inline
    }

    fn synchronous(&self) -> bool {
        false
    }

    fn memory(&self) -> Region {
        self.region
    }

    fn lend(&self, ptr: *mut u8, len: usize) -> Result<(), Errno> {
        self.lent.store(self.register(ptr, len, access::LOCAL_WRITE)?, Ordering::Release);
        Ok(())
    }

    fn post_recv(&self, count: u32) {
        if self.receive(count).is_err() {
            self.gone.store(true, Ordering::Release);
        }
    }

    unsafe fn post_write(
        &self,
        _lane: Lane,
        pieces: &[(*const u8, usize)],
        to: Remote,
        imm: Option<u32>,
        id: u32,
    ) -> Result<(), PostError> {
        let total: usize = pieces.iter().map(|p| p.1).sum();
        let mut inline = [0u8; INLINE];
        let mut list = [Sge::default(); PIECES];
        let mut count = 0;
        let is_inline = total <= self.inline;
        if is_inline && total != 0 {
            let mut at = 0;
            for (ptr, len) in pieces {
                // SAFETY: readable by the contract; all of them fit, as their sum does.
                unsafe {
                    core::ptr::copy_nonoverlapping(*ptr, inline.as_mut_ptr().wrapping_add(at), *len)
                };
                at += len;
            }
            list[0] = Sge { addr: inline.as_ptr() as u64, length: total as u32, lkey: 0 };
            count = 1;
        } else {
            // SAFETY: null, or the region that was lent.
            let lkey =
                unsafe { self.lent.load(Ordering::Acquire).as_ref() }.map_or(0, |mr| mr.lkey);
            for (ptr, len) in pieces.iter().filter(|p| p.1 != 0) {
                let entry = list.get_mut(count).ok_or(PostError::Access)?;
                *entry = Sge { addr: *ptr as u64, length: *len as u32, lkey };
                count += 1;
            }
        }
        let mut request = SendWr {
            wr_id: id.into(),
            next: null_mut(),
            sg_list: if count == 0 { null_mut() } else { list.as_mut_ptr() },
            num_sge: count as i32,
            opcode: if imm.is_some() { wr::RDMA_WRITE_WITH_IMM } else { wr::RDMA_WRITE },
            send_flags: if is_inline && total != 0 { wr::INLINE } else { 0 },
            imm_data: imm.unwrap_or(0).to_be(),
            // Also without bytes: some emulations look at the key of every write.
            remote_addr: to.addr,
            rkey: to.key,
            upper: 0,
            swap: 0,
            atomic_rkey: 0,
            rest: [0; 7],
        };
        let mut bad = null_mut();
        let post_send = self.calls().post_send;
        // SAFETY: the queue pair lives until `tear_down`; the bytes stay by the contract, or are
        // taken inline.
        let error = unsafe { post_send(self.qp(), &mut request, &mut bad) };
        match error {
            0 => Ok(()),
            libc::ENOMEM | libc::EAGAIN => Err(PostError::Full),
            _ => Err(PostError::Gone),
        }
    }

    fn poll_cq(&self, out: &mut [Completion]) -> usize {
        let mut done = 0;
        let mut batch = [Wc::default(); BATCH];
        let poll_cq = self.calls().poll_cq;
        while done < out.len() {
            let room = (out.len() - done).min(BATCH);
            // SAFETY: room for as many as are asked for.
            let n = unsafe { poll_cq(self.cq, room as i32, batch.as_mut_ptr()) };
            let Ok(n @ 1..) = usize::try_from(n) else { break };
            for completion in batch[..n.min(room)].iter().filter_map(|one| self.completion(one)) {
                out[done] = completion;
                done += 1;
            }
        }
        done
    }

    fn request_event(&self) {
        let req_notify_cq = self.calls().req_notify_cq;
        // SAFETY: our queue.
        unsafe { req_notify_cq(self.cq, 0) };
    }

    fn await_event(&self) -> Result<(), Errno> {
        // SAFETY: open as long as the socket is.
        let ready = unsafe { BorrowedFd::borrow_raw(self.ready) };
        rustix::event::poll(&mut [PollFd::new(&ready, PollFlags::IN)], None).map(drop)
    }

    fn take_event(&self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: our channel, which does not wait.
        while unsafe { (self.api.ibv_get_cq_event)(self.comp, &mut cq, &mut context) } == 0 {
            self.unacknowledged.fetch_add(1, Ordering::Relaxed);
        }
        self.hear();
    }

    fn event_fd(&self) -> RawFd {
        self.ready
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn probe(&self) {
        self.hear();
    }

    fn expose(&self, ptr: *mut u8, len: usize) -> Result<Region, Errno> {
        if len == 0 || ptr.is_null() || (ptr as usize).checked_add(len).is_none() {
            return Err(Errno::INVAL);
        }
        let mr = self.register(ptr, len, access::LOCAL_WRITE | access::REMOTE_WRITE)?;
        // SAFETY: just registered.
        let key = unsafe { (*mr).rkey };
        self.exposed.lock().map_err(|_| Errno::AGAIN)?.push((key, mr as usize));
        Ok(Region { ptr, len, addr: ptr as u64, key })
    }

    fn conceal(&self, region: Region) {
        let Ok(mut exposed) = self.exposed.lock() else { return };
        if let Some(at) = exposed.iter().position(|entry| entry.0 == region.key) {
            let (_, mr) = exposed.swap_remove(at);
            // SAFETY: ours, and its last use.
            unsafe { (self.api.ibv_dereg_mr)(mr as *mut Mr) };
        }
    }

    fn disconnect(&self) {
        self.gone.store(true, Ordering::Release);
        if !self.disconnected.swap(true, Ordering::AcqRel) {
            // SAFETY: our id. The peer may have been first, which is an error without meaning.
            unsafe { (self.api.rdma_disconnect)(self.id) };
            let _ = rustix::io::write(self.wake(), &1u64.to_ne_bytes());
        }
    }
}
