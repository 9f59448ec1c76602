//! A link: the reliable connected queue pair of a link group, its completion queue, and the memory
//! that goes with them.
//!
//! Every request is waited for. Whoever arms a doorbell looks at its own memory after the word is
//! in the peer's, which only the completion tells; so no thread of ours has to be there for
//! completions, and the queue never holds more than one chain. A signal handler must not come
//! between a post and its completion (the library takes locks that know nothing of handlers), so
//! signals wait that long.
#![allow(unsafe_code)]

mod places;

use super::adapter::{Adapter, last_error};
use super::{End, Memory, WORDS};
use crate::{Errno, RegisterError};
use ::verbs::abi::{
    ContextOps, Cq, PortAttr, Qp, QpAttr, QpInitAttr, SendWr, Sge, Wc, access, mask, state, wc, wr,
};
use ::verbs::far::{Piece, piece};
use ::verbs::software;
use core::ptr::null_mut;
use places::{BYTES, IMAGES_AT, Places, SIGNALS, SIGNALS_AT, TOLD, staged};
pub use places::{CHAIN, IMAGES, STAGE};
use rustix::fd::IntoRawFd;
use rustix::process::Pid;
use shm::{Retired, Segment};

/// 4.096 us * 2^14: 67 ms until a packet is sent again, six times: to soft-RoCE the seventh is one
/// of endlessly many, and a peer that is gone would be waited for for good. Where the kernel
/// emulates RDMA a busy machine takes long to answer, and whoever does not answer in time loses its
/// connections.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 6;
const HOPS: u8 = 64;

pub struct Inner {
    adapter: Adapter,
    pid: Pid,
    qp: *mut Qp,
    cq: *mut Cq,
    segment: Segment,
    stage: Memory,
    images: Memory,
    signals: Memory,
    psn: u32,
    pub peer: Option<End>,
    /// Its process.
    of: i32,
    /// The peer has connected too. Before that a request would be waited for in vain.
    met: bool,
    broken: bool,
    image_places: Places,
    signal_places: Places,
}

impl Inner {
    /// A queue pair in its first state.
    pub fn create(adapter: Adapter) -> Result<Self, Errno> {
        let segment = Segment::create(c"shortwire-link", BYTES)?;
        let at = |offset| segment.base().wrapping_add(offset);
        let mut made: [Option<Memory>; 3] = [None; 3];
        let parts = [
            (0, IMAGES_AT, access::LOCAL_WRITE),
            (IMAGES_AT, IMAGES, access::LOCAL_WRITE | access::REMOTE_READ),
            (SIGNALS_AT, SIGNALS, adapter.writable()),
        ];
        let mut failed = None;
        for (memory, (offset, len, access)) in made.iter_mut().zip(parts) {
            match adapter.register(at(offset), len, access) {
                Ok(new) => *memory = Some(new),
                Err(e) => failed = Some(e),
            }
        }
        let queues = if failed.is_none() { queues(&adapter) } else { Err(Errno::NOMEM) };
        match (made, queues) {
            ([Some(stage), Some(images), Some(signals)], Ok((qp, cq))) => {
                let psn = crate::loopback::random::words()[0] as u32 & 0xff_ffff;
                let mut inner = Self {
                    adapter,
                    pid: rustix::process::getpid(),
                    qp,
                    cq,
                    segment,
                    stage,
                    images,
                    signals,
                    psn,
                    peer: None,
                    of: 0,
                    met: false,
                    broken: false,
                    image_places: Places::EMPTY,
                    signal_places: Places::EMPTY,
                };
                inner.segment.close_fd();
                match inner.init() {
                    Ok(()) => Ok(inner),
                    Err(e) => {
                        inner.end().unmap();
                        Err(e)
                    }
                }
            }
            (made, queues) => {
                made.into_iter().flatten().for_each(Memory::end);
                Err(failed.or(queues.err()).unwrap_or(Errno::NOMEM))
            }
        }
    }

    /// The memory's addresses stay readable, as zeros.
    pub fn end(self) -> Retired {
        // SAFETY: ours, and its last use.
        unsafe { (self.adapter.api.ibv_destroy_qp)(self.qp) };
        // SAFETY: ours, and its last use: the pair that completed there is gone.
        unsafe { (self.adapter.api.ibv_destroy_cq)(self.cq) };
        [self.stage, self.images, self.signals].into_iter().for_each(Memory::end);
        self.segment.retire()
    }

    fn modify(&self, attributes: &mut QpAttr, given: i32) -> Result<(), Errno> {
        // SAFETY: our queue pair.
        match unsafe { (self.adapter.api.ibv_modify_qp)(self.qp, attributes, given | mask::STATE) }
        {
            0 => Ok(()),
            // Libraries differ in whether the errno is what they return.
            e if e > 0 => Err(Errno::from_raw_os_error(e)),
            _ => Err(last_error()),
        }
    }

    fn init(&self) -> Result<(), Errno> {
        let mut attributes = QpAttr {
            qp_state: state::INIT,
            qp_access_flags: self.adapter.writable() as u32,
            port_num: self.adapter.port,
            ..QpAttr::default()
        };
        self.modify(&mut attributes, mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)
    }

    /// What the peer must know.
    pub fn own_end(&self) -> End {
        End {
            gid: self.adapter.gid,
            // SAFETY: our queue pair.
            qpn: unsafe { (*self.qp).qp_num },
            psn: self.psn,
            lid: self.adapter.lid,
            mtu: self.adapter.mtu as u16,
            images_at: self.segment.base() as u64 + IMAGES_AT as u64,
            images: self.images.rkey,
            signals: self.signals.rkey,
        }
    }

    /// Connects to the peer, which is the process `pid`. Once.
    pub fn connect(&mut self, peer: End, pid: i32) -> Result<(), Errno> {
        if self.peer.is_some() {
            return Err(Errno::ISCONN);
        }
        let mut to = QpAttr {
            qp_state: state::RTR,
            path_mtu: self.adapter.mtu.min(i32::from(peer.mtu)).max(1),
            dest_qp_num: peer.qpn & 0xff_ffff,
            rq_psn: peer.psn & 0xff_ffff,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ..QpAttr::default()
        };
        to.ah_attr.dgid = software::seen_from_here(peer.gid, pid);
        (to.ah_attr.is_global, to.ah_attr.sgid_index, to.ah_attr.hop_limit) =
            (1, self.adapter.gid_index, HOPS);
        (to.ah_attr.dlid, to.ah_attr.port_num) = (peer.lid, self.adapter.port);
        let given = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        self.modify(&mut to, given | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER)?;
        let mut ready = QpAttr {
            qp_state: state::RTS,
            sq_psn: self.psn,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            max_rd_atomic: 1,
            ..QpAttr::default()
        };
        let given = mask::SQ_PSN
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::MAX_QP_RD_ATOMIC;
        self.modify(&mut ready, given)?;
        (self.peer, self.of) = (Some(peer), pid);
        Ok(())
    }

    /// The peer is there, as it has shown. From now on there are requests.
    pub fn meet(&mut self) {
        self.met = self.peer.is_some();
    }

    /// Whether the peer, which has connected, is there: reads of it what it lets be read.
    pub fn probe(&mut self) -> Result<(), Errno> {
        let peer = self.peer.ok_or(Errno::NOTCONN)?;
        self.met = true;
        self.read(peer.images, peer.images_at, &mut [0; 8])
    }

    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// [`WORDS`] zeroed bytes that the peer may read.
    pub fn take_image(&mut self) -> Option<*mut u8> {
        let place = self.image_places.take()?;
        let image = self.segment.base().wrapping_add(IMAGES_AT + place * WORDS);
        for words in [image, image.wrapping_add(TOLD - IMAGES_AT)] {
            // SAFETY: within the segment, and nobody's.
            unsafe { words.write_bytes(0, WORDS) };
        }
        Some(image)
    }

    pub fn drop_image(&mut self, image: *mut u8) {
        let offset = (image as usize).wrapping_sub(self.segment.base() as usize + IMAGES_AT);
        self.image_places.give_back(offset / WORDS);
    }

    /// A word that the peer counts its signals in.
    pub fn take_signal(&mut self) -> Result<*mut u8, RegisterError> {
        let place = self.signal_places.take().ok_or(RegisterError::NoSpace)?;
        Ok(self.segment.base().wrapping_add(SIGNALS_AT + place * 8))
    }

    pub fn drop_signal(&mut self, signal: *mut u8) {
        let offset = (signal as usize).wrapping_sub(self.segment.base() as usize + SIGNALS_AT);
        self.signal_places.give_back(offset / 8);
    }

    /// Gathers `here`, of at most [`STAGE`] bytes, and writes it to the pieces there, in order.
    /// Words of 8 bytes of an image arrive whole.
    ///
    /// # Safety
    /// `here` is readable.
    pub unsafe fn write(
        &mut self,
        key: u32,
        here: &[Piece],
        there: &[Piece],
    ) -> Result<usize, Errno> {
        let total = |pieces: &[Piece]| pieces.iter().map(|piece| piece.iov_len).sum::<usize>();
        let (len, base) = (total(here), self.segment.base());
        if len > STAGE || total(there) != len || there.len() > CHAIN {
            return Err(Errno::INVAL);
        }
        let mut words = [(usize::MAX, null_mut::<u64>()); CHAIN];
        let mut sources = here.iter().copied();
        let mut source = piece(0, 0);
        let mut at = 0;
        for to in there {
            at = staged(at, to.iov_base as u64);
            let end = at + to.iov_len;
            while at < end {
                if source.iov_len == 0 {
                    source = sources.next().ok_or(Errno::INVAL)?;
                    continue;
                }
                let n = source.iov_len.min(end - at);
                // SAFETY: readable by the contract; it fits in the stage. Words of others' images
                // are aligned, and so copied.
                unsafe { shm::copy(source.iov_base.cast(), base.wrapping_add(at), n) };
                let image = (source.iov_base as usize).wrapping_sub(base as usize + IMAGES_AT);
                if self.adapter.adds_words && image < IMAGES && (image | n).is_multiple_of(8) {
                    for word in (0..n).step_by(8) {
                        let told = base.wrapping_add(TOLD + image + word).cast::<u64>();
                        let Some(free) = words.iter_mut().find(|word| word.1.is_null()) else {
                            return Err(Errno::INVAL);
                        };
                        *free = (at + word, told);
                    }
                }
                source = piece(source.iov_base as u64 + n as u64, source.iov_len - n);
                at += n;
            }
        }
        self.run(wr::RDMA_WRITE, key, there, &words)?;
        Ok(len)
    }

    /// Fills `to` from `addr` on there.
    pub fn read(&mut self, key: u32, addr: u64, to: &mut [u8]) -> Result<(), Errno> {
        let mut addr = addr;
        for part in to.chunks_mut(STAGE) {
            self.run(wr::RDMA_READ, key, &[piece(addr, part.len())], &[])?;
            // SAFETY: the stage has so many bytes.
            unsafe {
                shm::copy(
                    self.segment.base().wrapping_add(staged(0, addr)),
                    part.as_mut_ptr(),
                    part.len(),
                )
            };
            addr = addr.wrapping_add(part.len() as u64);
        }
        Ok(())
    }

    /// Moves the stage to or from the pieces there; back when that is complete. `words` are at
    /// these places of the stage, with what the peer has of each: it gets the difference.
    fn run(
        &mut self,
        opcode: i32,
        key: u32,
        there: &[Piece],
        words: &[(usize, *mut u64)],
    ) -> Result<(), Errno> {
        if !self.met && !self.broken {
            return Err(Errno::AGAIN);
        }
        if self.broken || !::verbs::is_in_memory_of(self.pid.as_raw_nonzero().get()) {
            return Err(Errno::NOTCONN);
        }
        let mut sges = [Sge::default(); CHAIN];
        // SAFETY: numbers and pointers, which may all be zero.
        let mut chain: [SendWr; CHAIN] = unsafe { core::mem::zeroed() };
        let (mut n, mut at) = (0, 0);
        for piece in there {
            let (mut to, mut left) = (piece.iov_base as u64, piece.iov_len);
            at = staged(at, to);
            while left > 0 {
                let (Some(sge), Some(request)) = (sges.get_mut(n), chain.get_mut(n)) else {
                    return Err(Errno::INVAL);
                };
                let word = words.iter().find(|word| word.0 == at && left >= 8);
                let len = if word.is_some() { 8 } else { left };
                let from = self.segment.base().wrapping_add(at);
                *sge = Sge { addr: from as u64, length: len as u32, lkey: self.stage.lkey };
                (request.sg_list, request.num_sge, request.opcode) = (sge, 1, opcode);
                (request.remote_addr, request.rkey) = (to, key);
                if let Some(&(_, told)) = word {
                    // SAFETY: within the stage.
                    let new = unsafe { from.cast::<u64>().read_unaligned() };
                    // SAFETY: beside the images, in a word that only this link uses, which is
                    // locked.
                    let add = new.wrapping_sub(unsafe { told.replace(new) });
                    (request.opcode, request.atomic_rkey) = (wr::FETCH_AND_ADD, key);
                    (request.rkey, request.upper) = (add as u32, (add >> 32) as u32);
                }
                (at, to, left, n) = (at + len, to + len as u64, left - len, n + 1);
            }
        }
        let Some(last) = n.checked_sub(1) else { return Ok(()) };
        chain[last].send_flags = wr::SIGNALED;
        let first = chain.as_mut_ptr();
        for i in 0..last {
            // SAFETY: within the chain.
            unsafe { (*first.wrapping_add(i)).next = first.wrapping_add(i + 1) };
        }
        let mut bad = null_mut();
        let post_send = self.calls().post_send;
        // SAFETY: our queue pair; the chain and its lists live until the call returns, the stage
        // until the completion.
        let posted = unsafe { post_send(self.qp, first, &mut bad) };
        if posted != 0 {
            // Some of it may be under way, and what comes of it would be taken for what comes of
            // the next.
            self.broken = true;
            return Err(Errno::from_raw_os_error(posted.abs()));
        }
        self.complete()
    }

    /// The adapter's calls of the data path.
    fn calls(&self) -> &ContextOps {
        // SAFETY: our queue pair, which is there as long as the link.
        let context = unsafe { (*self.qp).context };
        // SAFETY: that of the adapter, which stays open.
        unsafe { &(*context).ops }
    }

    /// Waits for the one completion. It comes: the adapter gives up on a peer that does not answer,
    /// though it takes long over one whose process has ended. Where the adapter is the kernel it
    /// may need this processor.
    fn complete(&mut self) -> Result<(), Errno> {
        const PATIENCE: u32 = 1000;
        const DOUBT: u32 = 100 * PATIENCE;
        let mut one = Wc::default();
        let poll_cq = self.calls().poll_cq;
        for look in 0u32.. {
            if look % PATIENCE == PATIENCE - 1 {
                rustix::thread::sched_yield();
            }
            if look % DOUBT == DOUBT - 1 && has_ended(self.of) {
                self.broken = true;
                return Err(Errno::SRCH);
            }
            // SAFETY: our queue, and room for one.
            let n = unsafe { poll_cq(self.cq, 1, &mut one) };
            if n == 1 && one.status == wc::SUCCESS {
                return Ok(());
            }
            if n != 0 {
                self.broken = true;
                return Err(if one.status == wc::REM_ACCESS_ERR {
                    Errno::FAULT
                } else {
                    Errno::SRCH
                });
            }
            core::hint::spin_loop();
        }
        Err(Errno::TIMEDOUT)
    }
}

/// Whether all threads of a process have ended; false if the kernel does not tell (before Linux
/// 5.3).
fn has_ended(pid: i32) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{PidfdFlags, pidfd_open};
    let Some(pid) = Pid::from_raw(pid) else { return false };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            let mut fds = [PollFd::new(&process, PollFlags::IN)];
            let ended = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1);
            // SAFETY: ours; never dropped, because a drop goes through libc's close.
            unsafe { rustix::io::close(process.into_raw_fd()) };
            ended
        }
        Err(e) => e == Errno::SRCH,
    }
}

/// Whether two queue pairs of an adapter reach each other.
pub fn leads_back(adapter: Adapter) -> bool {
    let (Ok(mut a), b) = (Inner::create(adapter), Inner::create(adapter)) else { return false };
    let reached = b.is_ok_and(|mut b| {
        let me = rustix::process::getpid().as_raw_nonzero().get();
        let reached = a.connect(b.own_end(), me).is_ok()
            && b.connect(a.own_end(), me).is_ok()
            && a.probe().is_ok();
        b.end().unmap();
        reached
    });
    a.end().unmap();
    reached
}

fn queues(adapter: &Adapter) -> Result<(*mut Qp, *mut Cq), Errno> {
    let api = adapter.api;
    let entries = 2 * CHAIN as i32;
    // SAFETY: an open device; no channel: completions are polled for.
    let cq = unsafe { (api.ibv_create_cq)(adapter.context, entries, null_mut(), null_mut(), 0) };
    if cq.is_null() {
        return Err(last_error());
    }
    let mut attributes = QpInitAttr {
        qp_context: null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: null_mut(),
        max_send_wr: 2 * CHAIN as u32,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
        qp_type: ::verbs::abi::QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: our domain and queue.
    let qp = unsafe { (api.ibv_create_qp)(adapter.pd, &mut attributes) };
    if qp.is_null() {
        let e = last_error();
        // SAFETY: just made.
        unsafe { (api.ibv_destroy_cq)(cq) };
        return Err(e);
    }
    Ok((qp, cq))
}

const _: () = assert!(size_of::<PortAttr>() >= 48);
