//! Requests, carried out where they are posted, and their completions.
#![allow(unsafe_code)]

use super::adapter::{Adapter, Address, Looked, MOST_PAIRS, SoftQp};
use super::ibv::{INLINE_MAX, look};
use crate::abi::{Context, Cq, Qp, SendWr, Sge, Wc, access, state, wc, wr};
use crate::far::{self, Piece, piece};
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering::*};
use shm::FastLock;

/// Completions that wait to be polled.
const ENTRIES: usize = 32;
/// Requests in one copy.
const BATCH: usize = 8;
/// Pieces of local memory in a request.
const SGES: usize = 2;

/// A completion queue.
#[repr(C)]
pub struct Completions {
    cq: UnsafeCell<Cq>,
    taken: AtomicU32,
    lock: FastLock<false>,
    /// Oldest first; how many.
    entries: UnsafeCell<([Wc; ENTRIES], usize)>,
}

impl Completions {
    /// Whether it was free; the adapter's lock is held.
    pub fn take(&self, context: *mut Context) -> bool {
        let free = self.taken.load(Relaxed) == 0;
        if free {
            // SAFETY: nobody's.
            unsafe { (*self.cq.get()).context = context };
            // SAFETY: nobody's.
            unsafe { (*self.entries.get()).1 = 0 };
            // SAFETY: nobody's.
            unsafe { self.lock.reset() };
            self.taken.store(1, Release);
        }
        free
    }

    pub fn leave(&self) {
        self.taken.store(0, Release);
    }

    pub fn as_cq(&self) -> *mut Cq {
        self.cq.get()
    }

    /// # Safety
    /// From [`Self::as_cq`].
    pub unsafe fn of<'a>(cq: *mut Cq) -> &'a Self {
        // SAFETY: its first member, by the contract.
        unsafe { &*cq.cast::<Self>() }
    }

    fn with<R>(&self, f: impl FnOnce(&mut ([Wc; ENTRIES], usize)) -> R) -> Option<R> {
        let _guard = self.lock.lock().ok()?;
        // SAFETY: the lock is held.
        Some(f(unsafe { &mut *self.entries.get() }))
    }

    /// One that does not fit is lost, as with hardware whose queue overflows.
    fn push(&self, one: Wc) {
        self.with(|(entries, n)| {
            if let Some(place) = entries.get_mut(*n) {
                *place = one;
                *n += 1;
            }
        });
    }
}

pub unsafe extern "C" fn poll_cq(cq: *mut Cq, count: c_int, out: *mut Wc) -> c_int {
    // SAFETY: made by `create_cq`.
    let queue = unsafe { Completions::of(cq) };
    let polled = queue.with(|(entries, n)| {
        let taken = (*n).min(count.max(0) as usize);
        for (i, one) in entries[..taken].iter().enumerate() {
            // SAFETY: the caller has room for `count`.
            unsafe { out.wrapping_add(i).write(*one) };
        }
        entries.copy_within(taken..*n, 0);
        *n -= taken;
        taken as c_int
    });
    polled.unwrap_or(-1)
}

pub unsafe extern "C" fn post_send(
    qp: *mut Qp,
    request: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    // SAFETY: the caller's queue pair.
    let qpn = unsafe { (*qp).qp_num };
    let Some(adapter) = Adapter::get() else { return libc::EINVAL };
    let soft = &adapter.qps[qpn as usize % MOST_PAIRS];
    let Ok(_guard) = soft.lock.lock() else { return libc::EDEADLK };
    let line = Line { adapter, soft, qpn };
    let mut next = request;
    while !next.is_null() {
        let mut batch = [core::ptr::null::<SendWr>(); BATCH];
        let mut n = 0;
        // SAFETY: the caller's request.
        let first = unsafe { &*next };
        // SAFETY: the caller's requests.
        while let Some(request) = unsafe { next.as_ref() }
            && n < BATCH
            && goes_with(first, request)
        {
            if let Err(errno) = line.check(request) {
                // SAFETY: the caller's place.
                unsafe { bad.write(next) };
                line.run(&batch[..n]);
                return errno;
            }
            (batch[n], n) = (next, n + 1);
            next = request.next;
        }
        line.run(&batch[..n]);
    }
    0
}

/// Whether two requests can be one copy.
fn goes_with(first: &SendWr, next: &SendWr) -> bool {
    (first.opcode, first.rkey) == (next.opcode, next.rkey)
}

fn sges(request: &SendWr) -> &[Sge] {
    if request.num_sge <= 0 {
        return &[];
    }
    // SAFETY: the caller's list.
    unsafe { core::slice::from_raw_parts(request.sg_list, request.num_sge as usize) }
}

fn total(request: &SendWr) -> u64 {
    sges(request).iter().map(|sge| u64::from(sge.length)).sum()
}

struct Line<'a> {
    adapter: &'a Adapter,
    soft: &'a SoftQp,
    qpn: u32,
}

impl Line<'_> {
    /// Whether it can be posted at all.
    fn check(&self, request: &SendWr) -> Result<(), c_int> {
        let inline = request.send_flags & wr::INLINE != 0;
        let known = match request.opcode {
            wr::RDMA_WRITE => true,
            wr::RDMA_READ => !inline,
            _ => return Err(libc::EOPNOTSUPP),
        };
        let fits =
            sges(request).len() <= SGES && (!inline || total(request) <= u64::from(INLINE_MAX));
        let connected = self.adapter.pair(self.qpn).state.load(Relaxed) >= state::RTS as u32;
        if known && fits && connected { Ok(()) } else { Err(libc::EINVAL) }
    }

    fn run(&self, batch: &[*const SendWr]) {
        if batch.is_empty() {
            return;
        }
        let pair = self.adapter.pair(self.qpn);
        let mut status = wc::FLUSH_ERR;
        let mut good = 0;
        if pair.state.load(Relaxed) == state::RTS as u32 {
            (good, status) = self.carry_out(batch);
        }
        for (i, request) in batch.iter().enumerate() {
            // SAFETY: the caller's request.
            let request = unsafe { &**request };
            let done = match i.cmp(&good) {
                core::cmp::Ordering::Less => wc::SUCCESS,
                core::cmp::Ordering::Equal => status,
                core::cmp::Ordering::Greater => wc::FLUSH_ERR,
            };
            if done != wc::SUCCESS {
                pair.state.store(state::ERR as u32, Release);
            }
            let told =
                request.send_flags & wr::SIGNALED != 0 || self.soft.all_signaled.load(Relaxed) != 0;
            if told || done != wc::SUCCESS {
                self.complete(Wc {
                    wr_id: request.wr_id,
                    status: done,
                    qp_num: self.qpn,
                    ..Wc::default()
                });
            }
        }
    }

    fn complete(&self, one: Wc) {
        // SAFETY: the pair, which is not written to once it is made.
        let queue = unsafe { (*self.soft.qp.get()).send_cq };
        // SAFETY: the queue that the pair was made with.
        unsafe { Completions::of(queue) }.push(one);
    }

    /// Moves the bytes of a batch; how many requests that were, and what is wrong with the next
    /// one.
    fn carry_out(&self, batch: &[*const SendWr]) -> (usize, i32) {
        // SAFETY: the caller's requests, and a batch has at least one.
        let first = unsafe { &*batch[0] };
        // SAFETY: the pair's lock is held.
        let (there, proof) = unsafe { *self.soft.far.get() };
        let pair = self.adapter.pair(self.qpn);
        let seen = match look(there, pair.dest_qpn.load(Relaxed), first.rkey) {
            Ok(seen) if seen.proof == proof && seen.pair[0] == pair.dest_qpn.load(Relaxed) => seen,
            _ => return (0, wc::RETRY_EXC_ERR),
        };
        let ready = (state::RTR as u32..=state::RTS as u32).contains(&seen.pair[1])
            && seen.pair[2] == self.qpn;
        if !ready {
            return (0, wc::RETRY_EXC_ERR);
        }
        let reads = first.opcode == wr::RDMA_READ;
        let mut good = 0;
        let mut status = wc::SUCCESS;
        for request in batch {
            // SAFETY: as above.
            status = self.verdict(unsafe { &**request }, &seen, reads);
            if status != wc::SUCCESS {
                break;
            }
            good += 1;
        }
        if good > 0 && !move_all(there, &batch[..good], reads) {
            return (0, wc::RETRY_EXC_ERR);
        }
        (good, status)
    }

    fn verdict(&self, request: &SendWr, seen: &Looked, reads: bool) -> i32 {
        let (here, remote) = if reads {
            (access::LOCAL_WRITE, access::REMOTE_READ)
        } else {
            (0, access::REMOTE_WRITE)
        };
        let inline = request.send_flags & wr::INLINE != 0;
        let known = |sge: &Sge| self.adapter.is_within(sge.lkey, sge.addr, sge.length.into(), here);
        if !inline && !sges(request).iter().all(known) {
            return wc::LOC_PROT_ERR;
        }
        let opened = seen.opens(request.rkey, request.remote_addr, total(request), remote);
        if opened { wc::SUCCESS } else { wc::REM_ACCESS_ERR }
    }
}

/// One copy for all of them. False when the other process, or its memory, is not there any more.
fn move_all(there: Address, batch: &[*const SendWr], reads: bool) -> bool {
    const NONE: Piece = piece(0, 0);
    let (mut local, mut remote, mut n, mut len) = ([NONE; BATCH * SGES], [NONE; BATCH], 0, 0);
    for (i, request) in batch.iter().enumerate() {
        // SAFETY: the caller's request.
        let request = unsafe { &**request };
        for sge in sges(request) {
            (local[n], n) = (piece(sge.addr, sge.length as usize), n + 1);
        }
        len += total(request) as usize;
        remote[i] = piece(request.remote_addr, total(request) as usize);
    }
    let (local, remote) = (&local[..n], &remote[..batch.len()]);
    let moved = if reads {
        // SAFETY: local memory that was registered for it.
        unsafe { far::fetch(there.pid, local, remote) }
    } else {
        // SAFETY: local memory that was registered for it, or taken inline; what is written there
        // is what its key opens.
        unsafe { far::write(there.pid, local, remote) }
    };
    moved == Ok(len)
}
