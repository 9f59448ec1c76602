//! A device around another one that does what the contract allows and no program likes: bytes land
//! in pieces, last ones first; signals come late, and several as one; registering fails when it is
//! told to; a peer dies at any step.
//!
//! [`run`] is the suite for all devices ([`conformance`]) over such a pair, and what must hold
//! after failures.

use crate::conformance::{self, GROUP, Pair};
use crate::{
    AttachError, Device, Dmb, Errno, Gid, Lent, MoveError, Peer, Reach, RegisterError, Told,
};
use rustix::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

const LEN: u32 = 1 << 14;

/// See the module documentation. Each side of a fabric has its own.
pub struct Faulty<'a> {
    inner: &'a dyn Device,
    state: Mutex<State>,
    /// Whose signals come here.
    other: OnceLock<Arc<Faulty<'a>>>,
}

#[derive(Default)]
struct State {
    refuse: Option<RegisterError>,
    dead: bool,
    moves: u32,
    /// Buffers whose owner is to be signalled.
    late: Vec<u64>,
}

impl<'a> Faulty<'a> {
    /// Passes everything on to `inner`; no fault is due yet.
    pub fn new(inner: &'a dyn Device) -> Self {
        Self { inner, state: Mutex::default(), other: OnceLock::new() }
    }

    /// Signals of `other` come here when somebody looks for them.
    pub fn hear(&self, other: &Arc<Faulty<'a>>) {
        let _ = self.other.set(other.clone());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the next registration fail.
    pub fn refuse(&self, why: RegisterError) {
        self.state().refuse = Some(why);
    }

    /// From here on it does nothing any more, as the device of a process that was killed; signals
    /// on their way are lost.
    pub fn die(&self) {
        let mut state = self.state();
        state.dead = true;
        state.late.clear();
    }

    /// Another process in its place.
    pub fn replace(&self) {
        self.state().dead = false;
    }

    /// Signals that are on their way arrive, the last ones first.
    pub fn deliver(&self) {
        let late = core::mem::take(&mut self.state().late);
        late.into_iter().rev().for_each(|token| self.inner.signal_event(token));
    }

    fn later(&self, token: u64) {
        let mut state = self.state();
        if !state.dead && !state.late.contains(&token) {
            state.late.push(token);
        }
    }
}

impl Device for Faulty<'_> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn chid(&self) -> u16 {
        self.inner.chid()
    }

    fn gid(&self) -> Gid {
        self.inner.gid()
    }

    fn max_dmbs(&self) -> u32 {
        self.inner.max_dmbs()
    }

    fn query_remote_gid(&self, gid: Gid) -> bool {
        self.inner.query_remote_gid(gid)
    }

    fn set_max_dmbs(&self, max_dmbs: u32) {
        self.inner.set_max_dmbs(max_dmbs);
    }

    fn memory(&self) -> u64 {
        self.inner.memory()
    }

    fn admit(&self, gid: Gid) {
        self.inner.admit(gid);
    }

    fn register_dmb(&self, group: u32, peer: Gid, len: u32) -> Result<Dmb, RegisterError> {
        let refused = self.state().refuse.take();
        refused.map_or_else(|| self.inner.register_dmb(group, peer, len), Err)
    }

    fn describe_dmb(&self, token: u64, first: bool) -> Lent {
        self.inner.describe_dmb(token, first)
    }

    fn delivered(&self, token: u64) {
        self.inner.delivered(token);
    }

    fn release_dmb(&self, token: u64, used: u32) -> bool {
        self.inner.release_dmb(token, used)
    }

    fn attach_dmb(
        &self,
        peer: Peer,
        token: u64,
        len: u32,
        told: &Told,
        fd: Option<RawFd>,
    ) -> Result<Reach, AttachError> {
        self.inner.attach_dmb(peer, token, len, told, fd)
    }

    fn detach_dmb(&self, owner: Gid, token: u64) -> bool {
        self.inner.detach_dmb(owner, token)
    }

    fn unregister_dmb(&self, token: u64) -> bool {
        self.inner.unregister_dmb(token)
    }

    fn move_data(
        &self,
        token: u64,
        offset: u32,
        data: *const u8,
        len: u32,
        signal: bool,
    ) -> Result<(), MoveError> {
        let moves = {
            let mut state = self.state();
            if state.dead {
                return Err(MoveError::Os(Errno::SRCH));
            }
            state.moves += 1;
            state.moves
        };
        let pieces = (moves % 4 + 1).min(len.max(1));
        if pieces == 1 || offset.checked_add(len).is_none() {
            self.inner.move_data(token, offset, data, len, false)?;
        } else {
            let at = |i: u32| (u64::from(len) * u64::from(i) / u64::from(pieces)) as u32;
            // The last one first: what reaches beyond the end is refused before anything was
            // written.
            for (from, to) in (0..pieces).rev().map(|i| (at(i), at(i + 1))) {
                let data = data.wrapping_add(from as usize);
                self.inner.move_data(token, offset + from, data, to - from, false)?;
                std::thread::yield_now();
            }
        }
        if signal {
            self.later(token);
        }
        Ok(())
    }

    fn signal_event(&self, token: u64) {
        self.later(token);
    }

    /// Of its own buffers. Time passes when somebody looks for them.
    fn signals(&self, token: u64) -> Option<u32> {
        if let Some(other) = self.other.get() {
            other.deliver();
        }
        self.inner.signals(token)
    }

    fn control_page(&self, token: u64) -> *mut u8 {
        self.inner.control_page(token)
    }

    fn is_over(&self, group: u32) -> bool {
        self.inner.is_over(group)
    }

    fn is_short(&self) -> bool {
        self.inner.is_short()
    }

    fn drop_group(&self, group: u32) {
        self.inner.drop_group(group);
    }

    fn after_fork_child(&self) {
        self.inner.after_fork_child();
    }
}

/// The whole suite over two devices that misbehave as far as they may. Panics at the first breach.
pub fn run(pair: Pair<'_>) {
    let (a, b) = (Arc::new(Faulty::new(pair.a)), Arc::new(Faulty::new(pair.b)));
    a.hear(&b);
    let pair = Pair { a: &*a, b: &*b };
    conformance::run(pair);
    for why in [RegisterError::NoSpace, RegisterError::NoMemory, RegisterError::Os(Errno::PERM)] {
        a.refuse(why);
        assert_eq!(a.register_dmb(GROUP, b.gid(), LEN), Err(why));
        conformance::the_limit_is_the_limit(pair);
    }
    for step in 0..STEPS {
        dies_at(pair, &b, step);
        // Nothing of the dead is in the way of another.
        conformance::reused_buffers_start_zeroed(pair);
        conformance::signals_follow_the_data(pair);
        conformance::the_limit_is_the_limit(pair);
    }
}

/// How many steps [`dies_at`] knows.
const STEPS: u32 = 6;

/// A life of a buffer, whose sender dies after `step`; its owner is left with what was whole before
/// that.
fn dies_at(pair: Pair<'_>, b: &Faulty<'_>, step: u32) {
    let (dmb, beside) = (pair.register(), pair.register());
    let put = |bytes: &[u8], signal| {
        b.move_data(dmb.token, 100, bytes.as_ptr(), bytes.len() as u32, signal)
    };
    let mut whole = [0; 5];
    let opened = step > 0;
    if opened {
        pair.open(&dmb);
        pair.open(&beside);
    }
    if step > 1 {
        put(b"first", false).expect("alive");
        whole = *b"first";
    }
    if step > 2 {
        put(b"other", true).expect("alive");
        whole = *b"other";
    }
    let before = pair.signals(&dmb);
    if step > 3 {
        b.signal_event(dmb.token);
    }
    if step > 4 {
        pair.signals(&dmb);
    }
    b.die();
    assert_eq!(put(b"ghost", true), Err(MoveError::Os(Errno::SRCH)));
    b.signal_event(dmb.token);
    assert_eq!(pair.signals(&dmb), before + u32::from(step > 4), "what was lost with it is lost");
    // What a new buffer holds behind its header may be anything.
    if step > 1 {
        assert_eq!(conformance::contents(dmb.addr.wrapping_add(100), 5), whole);
    }
    // As the end of a process does.
    for d in [&dmb, &beside] {
        assert_eq!(b.detach_dmb(pair.a.gid(), d.token), opened);
        assert!(pair.a.unregister_dmb(d.token));
        pair.a.release_dmb(d.token, u32::MAX);
    }
    b.replace();
}
