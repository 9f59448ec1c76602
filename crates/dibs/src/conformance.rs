//! What every device has to do, whichever it is. A device's own tests call [`run`] on two of them.
//!
//! `a` receives and `b` sends; call it a second time the other way round where the two differ.

use crate::{Attached, Device, Dmb, Gid, MoveError, NoCopy, RegisterError, Share};
use rustix::fd::RawFd;
use std::collections::HashSet;

const LEN: u32 = 1 << 14;

/// What passes between the two sides beside the device itself.
pub trait Exchange {
    /// Takes a share from `a` to `b`; the result is open for as long as the suite runs.
    fn carry(&self, share: &Share) -> RawFd {
        share.fd
    }

    /// Tells `b` of a buffer of `a`, where a device needs more than [`NoCopy`] for that.
    fn introduce(&self, _: &Dmb) {}

    /// Both sides are done with a buffer of `a`, after it was unregistered.
    fn release(&self, token: u64);

    /// How often `a` was signalled for one of its buffers.
    fn signals(&self, token: u64) -> u64;
}

/// Two devices that reach each other, without any buffers yet.
#[derive(Clone, Copy)]
pub struct Pair<'a> {
    pub a: &'a dyn Device,
    pub b: &'a dyn Device,
    pub exchange: &'a dyn Exchange,
}

/// The whole suite. Panics at the first breach.
pub fn run(pair: Pair<'_>) {
    identity(pair);
    lengths(pair);
    tokens_are_unique(pair);
    the_limit_is_the_limit(pair);
    moved_bytes_land_in_place(pair);
    out_of_bounds_is_refused(pair);
    foreign_tokens_are_refused(pair);
    unregistered_is_gone(pair);
    reused_buffers_start_zeroed(pair);
    signals_follow_the_data(pair);
    if pair.b.no_copy().is_some() {
        attached_memory_is_the_same(pair);
        attaching_is_counted(pair);
        lies_are_refused(pair);
        unregistered_memory_stays_while_attached(pair);
    }
}

impl Pair<'_> {
    pub(crate) fn register(&self) -> Dmb {
        self.a.register_dmb(self.b.gid(), LEN).expect("room for a buffer")
    }

    /// As the sender does it before its first byte: attach, where the device can.
    pub(crate) fn open(&self, dmb: &Dmb) -> Option<Attached> {
        self.exchange.introduce(dmb);
        let (owner, sender) = (self.a.no_copy()?, self.b.no_copy()?);
        let share = owner.share(dmb.token).expect("a share for a registered buffer");
        let fd = self.exchange.carry(&share);
        Some(sender.attach_dmb(self.a.gid(), dmb.token, dmb.len, Some(fd)).expect("attached"))
    }

    fn close(&self, dmb: &Dmb) {
        if let Some(sender) = self.b.no_copy() {
            sender.detach_dmb(self.a.gid(), dmb.token);
        }
        assert!(self.a.unregister_dmb(dmb.token));
        self.exchange.release(dmb.token);
    }

    fn sender(&self) -> &dyn NoCopy {
        self.b.no_copy().expect("a device without copies")
    }

    fn put(&self, dmb: &Dmb, offset: u32, bytes: &[u8], signal: bool) -> Result<(), MoveError> {
        self.b.move_data(dmb.token, offset, bytes.as_ptr(), bytes.len() as u32, signal)
    }
}

pub(crate) fn contents(addr: *const u8, len: u32) -> Vec<u8> {
    // SAFETY: a whole buffer of the device, to which nobody writes meanwhile.
    (0..len as usize).map(|i| unsafe { addr.add(i).read_volatile() }).collect()
}

fn poke(addr: *mut u8, offset: u32, value: u8) {
    // SAFETY: `offset` is below the length of the buffer at `addr`.
    unsafe { addr.add(offset as usize).write_volatile(value) };
}

fn identity(Pair { a, b, .. }: Pair<'_>) {
    assert_eq!(a.chid(), b.chid());
    assert_ne!(a.gid(), b.gid());
    assert_eq!(a.gid(), a.gid());
    assert_ne!(a.gid(), Gid::default());
    assert!(a.query_remote_gid(b.gid()) && b.query_remote_gid(a.gid()));
    assert!(a.query_remote_gid(a.gid()), "a device reaches itself");
    assert!(!a.query_remote_gid(Gid::default()));
    assert!(!a.query_remote_gid(Gid::new(a.gid().hi(), !a.gid().lo())));
}

fn lengths(pair: Pair<'_>) {
    for code in 0..=6 {
        let len = LEN << code;
        let dmb = pair.a.register_dmb(pair.b.gid(), len).expect("every size of SMC-D");
        assert_eq!(dmb.len, len);
        poke(dmb.addr, len - 1, 1);
        pair.close(&dmb);
    }
    for len in [0, 1, LEN - 1, LEN + 1, LEN / 2, 3 * LEN, u32::MAX] {
        let refused = pair.a.register_dmb(pair.b.gid(), len);
        assert!(matches!(refused, Err(RegisterError::Os(_))), "{len} {refused:?}");
    }
}

fn tokens_are_unique(pair: Pair<'_>) {
    let dmbs: Vec<_> = (0..5).map(|_| pair.register()).collect();
    let tokens: HashSet<_> = dmbs.iter().map(|d| d.token).collect();
    assert_eq!(tokens.len(), 5);
    let indexes: HashSet<_> = dmbs.iter().map(|d| d.index).collect();
    assert_eq!(indexes.len(), 5);
    for (i, x) in dmbs.iter().enumerate() {
        for y in &dmbs[..i] {
            assert!(x.addr.addr().abs_diff(y.addr.addr()) >= LEN as usize, "apart");
        }
    }
    dmbs.iter().for_each(|d| pair.close(d));
}

pub(crate) fn the_limit_is_the_limit(pair: Pair<'_>) {
    let mut dmbs: Vec<_> = (0..pair.a.max_dmbs()).map(|_| pair.register()).collect();
    for len in [LEN, 2 * LEN] {
        let refused = pair.a.register_dmb(pair.b.gid(), len);
        assert_eq!(refused.unwrap_err(), RegisterError::NoSpace);
    }
    let middle = dmbs.swap_remove(dmbs.len() / 2);
    pair.close(&middle);
    dmbs.push(pair.register());
    assert_eq!(dmbs.iter().map(|d| d.token).collect::<HashSet<_>>().len(), dmbs.len());
    dmbs.iter().for_each(|d| pair.close(d));
}

fn moved_bytes_land_in_place(pair: Pair<'_>) {
    let (before, dmb, after) = (pair.register(), pair.register(), pair.register());
    pair.open(&dmb);
    let mut expected = contents(dmb.addr, LEN);
    let beside = [&before, &after].map(|d| contents(d.addr, LEN));
    for (i, (offset, len)) in [(0, 1), (LEN - 1, 1), (4095, 2), (1000, 7000), (0, 0), (LEN, 0)].into_iter().enumerate()
    {
        let bytes: Vec<u8> = (0..len).map(|n| (n as u8).wrapping_mul(7) ^ i as u8 | 1).collect();
        pair.put(&dmb, offset, &bytes, false).expect("within the buffer");
        expected[offset as usize..][..len as usize].copy_from_slice(&bytes);
        assert!(contents(dmb.addr, LEN) == expected, "after {len} bytes at {offset}");
    }
    pair.put(&dmb, 0, &vec![0xAA; LEN as usize], true).expect("a full buffer");
    assert!(beside == [&before, &after].map(|d| contents(d.addr, LEN)), "and nowhere else");
    [before, dmb, after].iter().for_each(|d| pair.close(d));
}

fn out_of_bounds_is_refused(pair: Pair<'_>) {
    let (dmb, next) = (pair.register(), pair.register());
    pair.open(&dmb);
    let before = [dmb, next].map(|d| contents(d.addr, LEN));
    let signals = pair.exchange.signals(dmb.token);
    let bytes = vec![0xBB; LEN as usize + 1];
    for (offset, len) in [(0, LEN + 1), (LEN, 1), (LEN - 1, 2), (u32::MAX, 1), (u32::MAX, LEN)] {
        let refused = pair.b.move_data(dmb.token, offset, bytes.as_ptr(), len, true);
        assert_eq!(refused, Err(MoveError::OutOfBounds), "{len} bytes at {offset}");
    }
    assert_eq!(pair.exchange.signals(dmb.token), signals);
    assert!(before == [dmb, next].map(|d| contents(d.addr, LEN)), "nothing happened");
    [dmb, next].iter().for_each(|d| pair.close(d));
}

fn foreign_tokens_are_refused(pair: Pair<'_>) {
    let dmb = pair.register();
    let stranger = pair.a.register_dmb(Gid::new(1, 2), LEN).expect("room");
    pair.open(&dmb);
    let signals = pair.exchange.signals(stranger.token);
    for token in [0, u64::MAX, !dmb.token, dmb.token ^ 1 << 63, stranger.token] {
        let refused = pair.b.move_data(token, 0, [1].as_ptr(), 1, true);
        assert_eq!(refused, Err(MoveError::UnknownToken));
        pair.b.signal_event(token);
    }
    assert_eq!(contents(stranger.addr, 1), [0]);
    assert_eq!(pair.exchange.signals(stranger.token), signals);
    assert!(!pair.b.unregister_dmb(dmb.token), "not its owner");
    assert!(!pair.a.unregister_dmb(!dmb.token));
    pair.close(&dmb);
    assert!(pair.a.unregister_dmb(stranger.token));
    pair.exchange.release(stranger.token);
}

fn unregistered_is_gone(pair: Pair<'_>) {
    let dmb = pair.register();
    pair.open(&dmb);
    pair.put(&dmb, 0, b"x", false).expect("registered");
    pair.close(&dmb);
    assert!(!pair.a.unregister_dmb(dmb.token), "only once");
    assert_eq!(pair.put(&dmb, 0, b"x", false), Err(MoveError::UnknownToken));
}

pub(crate) fn reused_buffers_start_zeroed(pair: Pair<'_>) {
    const HEADER: u32 = 128;
    for round in 0..3 {
        let dmb = pair.register();
        pair.open(&dmb);
        assert!(contents(dmb.addr, HEADER).iter().all(|b| *b == 0), "round {round}");
        pair.put(&dmb, 0, &[0xCC; HEADER as usize], false).expect("within the buffer");
        pair.close(&dmb);
    }
}

pub(crate) fn signals_follow_the_data(pair: Pair<'_>) {
    let dmb = pair.register();
    pair.open(&dmb);
    // Buffers may be used again; what counts is what is added.
    let before = pair.exchange.signals(dmb.token);
    pair.put(&dmb, 0, &[1; 5000], false).expect("within the buffer");
    assert_eq!(pair.exchange.signals(dmb.token), before, "not asked for");
    pair.put(&dmb, 5000, &[2; 5000], true).expect("within the buffer");
    let after = pair.exchange.signals(dmb.token);
    assert!(after > before, "at least one after the last piece");
    assert_eq!((contents(dmb.addr, 1), contents(dmb.addr.wrapping_add(9999), 1)), (vec![1], vec![2]));
    pair.b.signal_event(dmb.token);
    assert!(pair.exchange.signals(dmb.token) > after);
    pair.close(&dmb);
}

fn attached_memory_is_the_same(pair: Pair<'_>) {
    let dmbs = [pair.register(), pair.register()];
    for (i, dmb) in dmbs.iter().enumerate() {
        let there = pair.open(dmb).expect("a device without copies");
        assert_eq!((there.token, there.len), (dmb.token, LEN));
        poke(there.addr, LEN - 1, 3 + i as u8);
        poke(dmb.addr, 0, 5 + i as u8);
    }
    for (i, dmb) in dmbs.iter().enumerate() {
        let there = pair.open(dmb).expect("once more").addr;
        assert_eq!(contents(there, LEN), contents(dmb.addr, LEN));
        assert_eq!(contents(there, 1), [5 + i as u8]);
        assert_eq!(contents(there.wrapping_add(LEN as usize - 1), 1), [3 + i as u8]);
        pair.sender().detach_dmb(pair.a.gid(), dmb.token);
        pair.close(dmb);
    }
}

fn attaching_is_counted(pair: Pair<'_>) {
    let (owner, sender) = (pair.a.gid(), pair.sender());
    let dmb = pair.register();
    assert!(!sender.detach_dmb(owner, dmb.token));
    let first = pair.open(&dmb).expect("attached");
    let again = sender.attach_dmb(owner, dmb.token, LEN, None).expect("no share needed twice");
    assert_eq!(first.addr, again.addr);
    assert!(sender.detach_dmb(owner, dmb.token));
    pair.put(&dmb, 0, b"x", false).expect("still attached once");
    assert!(!sender.detach_dmb(Gid::new(1, 2), dmb.token), "another owner's");
    assert!(sender.detach_dmb(owner, dmb.token));
    assert!(!sender.detach_dmb(owner, dmb.token));
    assert_eq!(pair.put(&dmb, 0, b"x", false), Err(MoveError::UnknownToken));
    pair.close(&dmb);
}

fn lies_are_refused(pair: Pair<'_>) {
    let (owner, sender) = (pair.a.gid(), pair.sender());
    let dmb = pair.register();
    assert!(sender.attach_dmb(owner, !dmb.token, LEN, None).is_err(), "unknown");
    pair.open(&dmb);
    for len in [0, 1, 2 * LEN, u32::MAX] {
        assert!(sender.attach_dmb(owner, dmb.token, len, None).is_err(), "of {len} bytes");
    }
    assert!(sender.attach_dmb(Gid::new(1, 2), dmb.token, LEN, None).is_err(), "another owner's");
    for fd in [-1, 0, i32::MAX] {
        assert!(sender.attach_dmb(owner, !dmb.token, LEN, Some(fd)).is_err(), "descriptor {fd}");
    }
    pair.close(&dmb);
}

fn unregistered_memory_stays_while_attached(pair: Pair<'_>) {
    let dmb = pair.register();
    let there = pair.open(&dmb).expect("attached");
    pair.put(&dmb, 0, b"last words", false).expect("attached");
    assert!(pair.a.unregister_dmb(dmb.token));
    let next = pair.register();
    assert_ne!((next.token, next.addr), (dmb.token, dmb.addr), "not while somebody may write to it");
    assert_eq!(contents(there.addr, 10), b"last words");
    assert_eq!(contents(dmb.addr, 10), b"last words");
    pair.close(&next);
    pair.sender().detach_dmb(pair.a.gid(), dmb.token);
    pair.exchange.release(dmb.token);
}
