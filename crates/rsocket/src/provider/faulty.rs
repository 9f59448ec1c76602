//! A provider around another that behaves as hardware may: work requests are carried out later, in
//! order; only short ones are copied when posted; queues are full now and then; and one may fail.
#![allow(unsafe_code)]

use super::{Completion, Endpoint, Lane, PostError, Region, Remote};
use crate::wire::Message;
use core::sync::atomic::{AtomicBool, Ordering};
use rustix::fd::RawFd;
use shm::Errno;
use std::collections::VecDeque;
use std::sync::Mutex;

/// What goes wrong, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// [`Endpoint::inline_limit`], in bytes.
    pub inline: usize,
    /// One in so many posts finds the queue full; 0: none.
    pub full: u32,
    /// At most so many requests are carried out per look at the completion queue.
    pub burst: u32,
    /// This request, counted from 1, fails; 0: none.
    pub fail: u32,
}

struct Request {
    lane: Lane,
    inline: Vec<u8>,
    pieces: Vec<(*const u8, usize)>,
    to: Remote,
    imm: Option<u32>,
    id: u32,
}

// SAFETY: the pieces are readable until the completion, by any thread.
unsafe impl Send for Request {}

#[derive(Default)]
struct State {
    queue: VecDeque<Request>,
    completions: VecDeque<Completion>,
    random: u64,
    carried: u32,
}

/// See the module documentation.
pub struct Faulty<E> {
    /// The provider that carries the requests out.
    pub inner: E,
    /// The peer is always there first with another message.
    pub talks_on: AtomicBool,
    faults: Faults,
    state: Mutex<State>,
}

impl<E: Endpoint> Faulty<E> {
    /// The same `seed` with the same calls makes the same faults.
    pub fn new(inner: E, faults: Faults, seed: u64) -> Self {
        let talks_on = AtomicBool::new(false);
        Self {
            inner,
            talks_on,
            faults,
            state: Mutex::new(State { random: seed | 1, ..State::default() }),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    /// Carries out some of what was posted.
    fn carry_out(&self, state: &mut State) {
        let n = state.next(self.faults.burst + 1);
        for _ in 0..n {
            let Some(request) = state.queue.front() else { return };
            let pieces = match &request.pieces {
                none if none.is_empty() => vec![(request.inline.as_ptr(), request.inline.len())],
                some => some.clone(),
            };
            // SAFETY: readable until the completion that follows below; one thread at a time, by
            // the lock.
            let done = unsafe {
                self.inner.post_write(request.lane, &pieces, request.to, request.imm, request.id)
            };
            if done == Err(PostError::Full) {
                return;
            }
            state.carried += 1;
            let ok = done.is_ok() && state.carried != self.faults.fail;
            let id = request.id;
            state.queue.pop_front();
            if self.inner.synchronous() || done.is_err() {
                state.completions.push_back(Completion::Sent { id, ok });
            }
        }
    }
}

impl State {
    /// Pseudo-random below `n`.
    fn next(&mut self, n: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as u32 % n.max(1)
    }
}

impl<E: Endpoint> Endpoint for Faulty<E> {
    fn inline_limit(&self) -> usize {
        self.faults.inline
    }

    fn synchronous(&self) -> bool {
        false
    }

    fn memory(&self) -> Region {
        self.inner.memory()
    }

    fn lend(&self, ptr: *mut u8, len: usize) -> Result<(), Errno> {
        self.inner.lend(ptr, len)
    }

    fn lend_tables(&self, at: *mut u8) {
        self.inner.lend_tables(at);
    }

    fn post_recv(&self, count: u32) {
        self.inner.post_recv(count);
    }

    unsafe fn post_write(
        &self,
        lane: Lane,
        pieces: &[(*const u8, usize)],
        to: Remote,
        imm: Option<u32>,
        id: u32,
    ) -> Result<(), PostError> {
        let mut state = self.state();
        if self.faults.full != 0 && state.next(self.faults.full) == 0 {
            return Err(PostError::Full);
        }
        let total: usize = pieces.iter().map(|p| p.1).sum();
        let mut inline = Vec::new();
        if total <= self.faults.inline {
            for (ptr, len) in pieces {
                // SAFETY: readable by the contract.
                inline.extend_from_slice(unsafe { core::slice::from_raw_parts(*ptr, *len) });
            }
        }
        let pieces = if total <= self.faults.inline { Vec::new() } else { pieces.to_vec() };
        state.queue.push_back(Request { lane, inline, pieces, to, imm, id });
        Ok(())
    }

    fn poll_cq(&self, out: &mut [Completion]) -> usize {
        if self.talks_on.load(Ordering::Relaxed) {
            out.fill(Completion::Recv(Message::KeepAlive.encode()));
            return out.len();
        }
        let mut state = self.state();
        self.carry_out(&mut state);
        let mut n = 0;
        while n < out.len()
            && let Some(completion) = state.completions.pop_front()
        {
            out[n] = completion;
            n += 1;
        }
        n + self.inner.poll_cq(&mut out[n..])
    }

    fn request_event(&self) {
        self.inner.request_event();
    }

    /// With requests under way there is always another completion, which nobody else makes.
    fn await_event(&self) -> Result<(), Errno> {
        if self.state().queue.is_empty() { self.inner.await_event() } else { Ok(()) }
    }

    fn take_event(&self) {
        self.inner.take_event();
    }

    fn event_fd(&self) -> RawFd {
        self.inner.event_fd()
    }

    fn is_gone(&self) -> bool {
        self.inner.is_gone()
    }

    fn has_left(&self) -> bool {
        self.inner.has_left()
    }

    fn peer_needs_this_processor(&self) -> bool {
        self.inner.peer_needs_this_processor()
    }

    fn hold_events(&self) {
        self.inner.hold_events();
    }

    fn release_events(&self) {
        self.inner.release_events();
    }

    fn probe(&self) {
        self.inner.probe();
    }

    fn expose(&self, ptr: *mut u8, len: usize) -> Result<Region, Errno> {
        self.inner.expose(ptr, len)
    }

    fn conceal(&self, region: Region) {
        self.inner.conceal(region);
    }

    fn disconnect(&self) {
        self.inner.disconnect();
    }
}
