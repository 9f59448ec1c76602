//! What every device has to do, whichever it is. A device's own tests call [`run`] on two of them.
//!
//! `a` receives and `b` sends; call it a second time the other way round where the two differ.
#![allow(unsafe_code)]

use crate::{AttachError, Device, Dmb, Gid, MoveError, Peer, Reach, RegisterError, Told};
use rustix::fd::RawFd;
use std::collections::HashSet;

const LEN: u32 = 1 << 14;
/// On both sides.
pub(crate) const GROUP: u32 = 0;

/// Two devices of this process that reach each other, without any buffers yet.
#[derive(Clone, Copy)]
pub struct Pair<'a> {
    /// Receives.
    pub a: &'a dyn Device,
    /// Sends.
    pub b: &'a dyn Device,
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
    attached_memory_is_the_same(pair);
    attaching_is_counted(pair);
    lies_are_refused(pair);
    unregistered_memory_stays_while_attached(pair);
}

impl Pair<'_> {
    pub(crate) fn register(&self) -> Dmb {
        self.a.register_dmb(GROUP, self.b.gid(), LEN).expect("room for a buffer")
    }

    fn owner(&self) -> Peer {
        Peer {
            group: GROUP,
            gid: self.a.gid(),
            pid: std::process::id() as i32,
            first: false,
            has_attached: true,
        }
    }

    /// Attaches a buffer of `a` as `owner` says and tells it.
    fn attach(&self, owner: Peer, token: u64, len: u32) -> Result<Reach, AttachError> {
        let lent = self.a.describe_dmb(token, owner.first);
        self.b.attach_dmb(owner, token, len, &lent.told, lent.fd.as_ref().map(shm::Handle::raw))
    }

    /// As the sender does it before its first byte.
    pub(crate) fn open(&self, dmb: &Dmb) -> Reach {
        self.attach(self.owner(), dmb.token, dmb.len).expect("attached")
    }

    pub(crate) fn close(&self, dmb: &Dmb) {
        self.b.detach_dmb(self.a.gid(), dmb.token);
        assert!(self.a.unregister_dmb(dmb.token));
        self.a.release_dmb(dmb.token, u32::MAX);
    }

    pub(crate) fn signals(&self, dmb: &Dmb) -> u32 {
        self.a.signals(dmb.token).unwrap_or(0)
    }

    fn put(&self, dmb: &Dmb, offset: u32, bytes: &[u8], signal: bool) -> Result<(), MoveError> {
        self.b.move_data(dmb.token, offset, bytes.as_ptr(), bytes.len() as u32, signal)
    }
}

pub(crate) fn contents(addr: *const u8, len: u32) -> Vec<u8> {
    // SAFETY: a whole buffer of the device, to which nobody writes meanwhile.
    (0..len as usize).map(|i| unsafe { addr.wrapping_add(i).read_volatile() }).collect()
}

fn poke(addr: *mut u8, offset: u32, value: u8) {
    // SAFETY: `offset` is below the length of the buffer at `addr`.
    unsafe { addr.wrapping_add(offset as usize).write_volatile(value) };
}

fn identity(Pair { a, b, .. }: Pair<'_>) {
    assert_eq!(a.chid(), b.chid());
    assert_ne!(a.gid(), b.gid());
    assert_eq!(a.gid(), a.gid());
    assert_ne!(a.gid(), Gid::default());
    assert!(a.query_remote_gid(b.gid()) && b.query_remote_gid(a.gid()));
    assert!(a.query_remote_gid(a.gid()), "a device reaches itself");
    assert!(!a.query_remote_gid(Gid::default()));
    assert!(!a.query_remote_gid(Gid::new(a.gid().hi, !a.gid().lo)));
}

fn lengths(pair: Pair<'_>) {
    for code in 0..=6 {
        let len = LEN << code;
        let dmb = pair.a.register_dmb(GROUP, pair.b.gid(), len).expect("every size of SMC-D");
        assert_eq!(dmb.len, len);
        poke(dmb.addr, len - 1, 1);
        pair.close(&dmb);
    }
    for len in [0, 1, LEN - 1, LEN + 1, LEN / 2, 3 * LEN, u32::MAX] {
        let refused = pair.a.register_dmb(GROUP, pair.b.gid(), len);
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
        let refused = pair.a.register_dmb(GROUP, pair.b.gid(), len);
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
    for (i, (offset, len)) in
        [(0, 1), (LEN - 1, 1), (4095, 2), (1000, 7000), (0, 0), (LEN, 0)].into_iter().enumerate()
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
    let signals = pair.signals(&dmb);
    let bytes = vec![0xBB; LEN as usize + 1];
    for (offset, len) in [(0, LEN + 1), (LEN, 1), (LEN - 1, 2), (u32::MAX, 1), (u32::MAX, LEN)] {
        let refused = pair.b.move_data(dmb.token, offset, bytes.as_ptr(), len, true);
        assert_eq!(refused, Err(MoveError::OutOfBounds), "{len} bytes at {offset}");
    }
    assert_eq!(pair.signals(&dmb), signals);
    assert!(before == [dmb, next].map(|d| contents(d.addr, LEN)), "nothing happened");
    [dmb, next].iter().for_each(|d| pair.close(d));
}

fn foreign_tokens_are_refused(pair: Pair<'_>) {
    let dmb = pair.register();
    let stranger = pair.a.register_dmb(GROUP, Gid::new(1, 2), LEN).expect("room");
    pair.open(&dmb);
    let signals = pair.signals(&stranger);
    for token in [0, u64::MAX, !dmb.token, dmb.token ^ 1 << 63, stranger.token] {
        let refused = pair.b.move_data(token, 0, [1].as_ptr(), 1, true);
        assert_eq!(refused, Err(MoveError::UnknownToken));
        pair.b.signal_event(token);
    }
    assert_eq!(contents(stranger.addr, 1), [0]);
    assert_eq!(pair.signals(&stranger), signals);
    assert!(!pair.b.unregister_dmb(dmb.token), "not its owner");
    assert!(!pair.a.unregister_dmb(!dmb.token));
    pair.close(&dmb);
    assert!(pair.a.unregister_dmb(stranger.token));
    pair.a.release_dmb(stranger.token, u32::MAX);
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
    let before = pair.signals(&dmb);
    pair.put(&dmb, 0, &[1; 5000], false).expect("within the buffer");
    assert_eq!(pair.signals(&dmb), before, "not asked for");
    pair.put(&dmb, 5000, &[2; 5000], true).expect("within the buffer");
    let after = pair.signals(&dmb);
    assert!(after > before, "at least one after the last piece");
    assert_eq!(
        (contents(dmb.addr, 1), contents(dmb.addr.wrapping_add(9999), 1)),
        (vec![1], vec![2])
    );
    pair.b.signal_event(dmb.token);
    assert!(pair.signals(&dmb) > after);
    pair.close(&dmb);
}

fn attached_memory_is_the_same(pair: Pair<'_>) {
    let dmbs = [pair.register(), pair.register()];
    for (i, dmb) in dmbs.iter().enumerate() {
        if let Reach::Mapped { addr, .. } = pair.open(dmb) {
            poke(addr, LEN - 1, 3 + i as u8);
            poke(dmb.addr, 0, 5 + i as u8);
        }
    }
    for (i, dmb) in dmbs.iter().enumerate() {
        if let Reach::Mapped { addr, page } = pair.open(dmb) {
            assert_eq!(contents(addr, LEN), contents(dmb.addr, LEN));
            assert_eq!(contents(addr, 1), [5 + i as u8]);
            assert_eq!(contents(addr.wrapping_add(LEN as usize - 1), 1), [3 + i as u8]);
            poke(page, 4095, 7 + i as u8);
            assert_eq!(
                contents(pair.a.control_page(dmb.token).wrapping_add(4095), 1),
                [7 + i as u8]
            );
            poke(page, 4095, 0);
        }
        assert!(pair.b.detach_dmb(pair.a.gid(), dmb.token));
        pair.close(dmb);
    }
}

fn attaching_is_counted(pair: Pair<'_>) {
    let owner = pair.a.gid();
    let dmb = pair.register();
    assert!(!pair.b.detach_dmb(owner, dmb.token));
    let first = pair.open(&dmb);
    assert_eq!(first, pair.open(&dmb));
    assert!(pair.b.detach_dmb(owner, dmb.token));
    pair.put(&dmb, 0, b"x", false).expect("still attached once");
    assert!(!pair.b.detach_dmb(Gid::new(1, 2), dmb.token), "another owner's");
    assert!(pair.b.detach_dmb(owner, dmb.token));
    assert!(!pair.b.detach_dmb(owner, dmb.token));
    assert_eq!(pair.put(&dmb, 0, b"x", false), Err(MoveError::UnknownToken));
    pair.close(&dmb);
}

fn lies_are_refused(pair: Pair<'_>) {
    let owner = pair.owner();
    let dmb = pair.register();
    let attach = |peer, token, len, fd| pair.b.attach_dmb(peer, token, len, &Told::default(), fd);
    assert!(attach(owner, !dmb.token, LEN, None).is_err(), "unknown");
    for fd in [-1, 0, RawFd::MAX] {
        assert!(attach(owner, !dmb.token, LEN, Some(fd)).is_err(), "descriptor {fd}");
    }
    pair.open(&dmb);
    for len in [0, 1, 2 * LEN, u32::MAX] {
        assert!(pair.attach(owner, dmb.token, len).is_err(), "of {len} bytes");
    }
    for peer in [Peer { gid: Gid::new(1, 2), ..owner }, Peer { group: GROUP + 1, ..owner }] {
        assert!(pair.attach(peer, dmb.token, LEN).is_err(), "another owner's, or another group's");
    }
    let senseless = Told::new(&[0xa5; Told::MAX]).expect("as long as can be");
    if !matches!(pair.open(&dmb), Reach::Mapped { .. } | Reach::Moved) {
        assert!(pair.b.attach_dmb(owner, dmb.token, LEN, &senseless, None).is_err(), "senseless");
    }
    assert!(pair.b.detach_dmb(pair.a.gid(), dmb.token));
    pair.close(&dmb);
}

fn unregistered_memory_stays_while_attached(pair: Pair<'_>) {
    let dmb = pair.register();
    let reach = pair.open(&dmb);
    pair.put(&dmb, 0, b"last words", false).expect("attached");
    if let Reach::Moved = reach {
        pair.close(&dmb);
        return;
    }
    assert!(pair.a.unregister_dmb(dmb.token));
    let next = pair.register();
    assert_ne!(
        (next.token, next.addr),
        (dmb.token, dmb.addr),
        "not while somebody may write to it"
    );
    assert_eq!(contents(dmb.addr, 10), b"last words");
    if let Reach::Mapped { addr, .. } = reach {
        assert_eq!(contents(addr, 10), b"last words");
    }
    pair.close(&next);
    assert!(pair.b.detach_dmb(pair.a.gid(), dmb.token));
    assert!(pair.a.release_dmb(dmb.token, u32::MAX) && !pair.a.release_dmb(dmb.token, u32::MAX));
}
