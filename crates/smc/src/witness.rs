//! What has passed on a connection that may lead to another network namespace: how many bytes, and
//! the first of them.
//!
//! Addresses do not tell such connections apart: NAT changes them, and private ones recur. Both
//! ends have seen the same bytes, though. Nothing here is done unless a rendezvous directory is
//! set.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use crate::conn::{Conn, Pieces, phase as p};
use crate::directory::{self, Name};
use crate::inet::{self, TcpInfo, received};
use crate::proof::Proof;
use crate::{hidden, sys, table};

/// Bytes of a direction that are kept.
pub const HEAD: usize = 256;

/// The beginning of one direction.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Head {
    /// Bytes that have passed.
    pub passed: u64,
    /// How many of the direction's first bytes are in `bytes`.
    pub kept: usize,
    /// Bytes were moved by calls that this library did not see, so later ones have no known
    /// position and are not kept.
    gap: bool,
    bytes: [u8; HEAD],
}

impl Head {
    const NEW: Head = Head { passed: 0, kept: 0, gap: false, bytes: [0; HEAD] };

    /// The first `n` bytes, or as many as are kept.
    pub fn first(&self, n: usize) -> &[u8] {
        &self.bytes[..n.min(self.kept)]
    }

    fn add(&mut self, from: Option<Pieces>, n: usize) {
        let room = (HEAD - self.kept).min(n);
        self.passed += n as u64;
        match from {
            Some(mut from) if !self.gap => {
                let end = self.kept + room;
                while self.kept < end
                    && let Some((src, k)) = from.next(end - self.kept)
                {
                    // SAFETY: the application's buffer, of which the kernel has just moved these
                    // bytes.
                    unsafe {
                        core::ptr::copy_nonoverlapping(src, self.bytes[self.kept..].as_mut_ptr(), k)
                    };
                    self.kept += k;
                }
            }
            _ => self.gap = true,
        }
    }
}

/// What this process knows of one connection.
#[repr(C)]
pub struct Witness {
    lock: AtomicU32,
    /// Its addresses were looked at.
    known: AtomicU32,
    /// The name under which somebody is waited for; 0: none.
    listens: AtomicU64,
    /// The application's TCP_NOTSENT_LOWAT, while ours is in its place, and 1 << 32; 0: ours is
    /// not.
    low_water: AtomicU64,
    /// Sent and received; guarded by `lock`.
    heads: UnsafeCell<[Head; 2]>,
    /// Guarded by the connection's `busy`.
    proof: UnsafeCell<Proof>,
}
// SAFETY: the cells are guarded as said beside them.
unsafe impl Sync for Witness {}

static ALL: AtomicPtr<Witness> = AtomicPtr::new(core::ptr::null_mut());

/// What is known of `conn`; None where nothing is looked at.
fn of(conn: &Conn) -> Option<&'static Witness> {
    let base = ALL.load(Acquire);
    let at = table::index_of(conn);
    // SAFETY: one place for each slot of the table, zeroed at first, which is valid, and never
    // unmapped.
    (!base.is_null() && at < table::CAPACITY as usize).then(|| unsafe { &*base.wrapping_add(at) })
}

/// Whether anything may be kept of connections.
pub fn is_in_use() -> bool {
    !ALL.load(Relaxed).is_null()
}

/// A new connection.
pub fn begin(conn: &Conn) {
    if !directory::is_set() {
        return;
    }
    if ALL.load(Acquire).is_null() {
        let len = table::CAPACITY as usize * size_of::<Witness>();
        let new = sys::reserve(len, false);
        if new.is_null() {
            return;
        }
        if ALL.compare_exchange(core::ptr::null_mut(), new.cast(), AcqRel, Acquire).is_err() {
            // SAFETY: nobody else has seen this mapping.
            unsafe { sys::give_back(new, len) };
        }
    }
    let Some(w) = of(conn) else { return };
    w.lock.store(0, Relaxed);
    w.known.store(0, Relaxed);
    w.listens.store(0, Relaxed);
    w.low_water.store(0, Relaxed);
    // SAFETY: the slot is not in use yet.
    unsafe { *w.heads.get() = [Head::NEW; 2] };
    // SAFETY: as above.
    unsafe { *w.proof.get() = Proof::default() };
    conn.set(p::WITNESS);
}

/// Whether `conn` may lead to another network namespace, and is looked at for that.
pub fn watches(conn: &Conn) -> bool {
    conn.is_witnessed()
}

/// No more is to be known.
pub(crate) fn end(conn: &Conn) {
    if watches(conn) {
        conn.clear(p::WITNESS);
    }
}

fn note(conn: &Conn, fd: i32, direction: usize, from: Option<Pieces>, n: usize) {
    let Some(w) = of(conn).filter(|_| watches(conn)) else { return };
    if w.known.swap(1, Relaxed) == 0 && inet::names(fd).is_some_and(|names| inet::is_local(&names))
    {
        return end(conn);
    }
    let taken = w.lock.swap(1, Acquire) == 0;
    // SAFETY: the lock is held, or was: another thread is at it or was cancelled there, and then
    // the beginning is not known.
    let head = unsafe { &mut (*w.heads.get())[direction] };
    if taken {
        head.add(from, n);
        w.lock.store(0, Release);
    }
}

/// `n` bytes of `from` went out over TCP; of unknown content without `from`.
#[inline]
pub fn sent(conn: &Conn, fd: i32, from: Option<Pieces>, n: usize) {
    if watches(conn) {
        note(conn, fd, 0, from, n);
    }
}

/// `n` bytes came in over TCP.
#[inline]
pub fn came(conn: &Conn, fd: i32, into: Option<Pieces>, n: usize) {
    if watches(conn) {
        note(conn, fd, 1, into, n);
    }
}

/// What was sent and received; None while it is being noted.
pub fn heads(conn: &Conn) -> Option<[Head; 2]> {
    let w = of(conn)?;
    if w.lock.swap(1, Acquire) != 0 {
        return None;
    }
    // SAFETY: the lock is held.
    let heads = unsafe { *w.heads.get() };
    w.lock.store(0, Release);
    Some(heads)
}

/// Whether all bytes that the kernel counts went by here.
pub fn saw_all(conn: &Conn, fd: i32) -> bool {
    let (Some([sent, came]), Some(info), Some(got)) = (heads(conn), TcpInfo::of(fd), received(fd))
    else {
        return false;
    };
    sent.passed == info.sent() && came.passed == got.arrived.saturating_sub(got.queued)
}

/// The state of the proof. Only for who has set `conn.busy`.
#[allow(clippy::mut_from_ref)] // Guarded by `busy`, as a lock would.
pub(crate) fn proof(conn: &Conn) -> Option<&'static mut Proof> {
    // SAFETY: callers hold `busy`, and each lets go of it before it asks again.
    of(conn).map(|w| unsafe { &mut *w.proof.get() })
}

/// The name under which `listener` listens is not needed any more. A fork child has its parent's
/// names, but not its descriptors.
pub(crate) fn forget_name(conn: &Conn, listener: i32) {
    if watches(conn)
        && hidden::contains(listener)
        && let Some(name) = of(conn).and_then(|w| Name::unpack(w.listens.swap(0, Relaxed)))
    {
        name.remove();
    }
}

/// A socket of this name is to be removed with its descriptor.
pub(crate) fn listens_under(conn: &Conn, name: Name) {
    if let Some(w) = of(conn) {
        w.listens.store(name.pack(), Relaxed);
    }
}

/// What the kernel may hold unsent while a proof is under way: a question is answered once all
/// before it has arrived. Odd, to be told from what the application sets.
const LOW_WATER: i32 = 16 * 1024 + 1;

/// Keeps what waits to be sent short, at the cost of some speed.
pub(crate) fn keep_short(conn: &Conn, fd: i32) {
    let mut was = 0i32;
    if let Some(w) = of(conn)
        && w.low_water.load(Relaxed) == 0
        && sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &mut was) > 0
        && !(1..=LOW_WATER).contains(&was)
    {
        w.low_water.store(1 << 32 | u64::from(was as u32), Relaxed);
        sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &LOW_WATER);
    }
}

/// Takes `keep_short` back.
pub(crate) fn let_grow(conn: &Conn, fd: i32) {
    let Some(w) = of(conn).filter(|w| w.low_water.load(Relaxed) != 0) else { return };
    let (was, mut is) = (w.low_water.swap(0, Relaxed) as i32, 0i32);
    sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &mut is);
    if is == LOW_WATER {
        sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &was);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(head: &mut Head, pieces: &[&[u8]]) {
        let iov: Vec<libc::iovec> = pieces
            .iter()
            .map(|p| libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() })
            .collect();
        head.add(Some(Pieces::new(&iov)), pieces.iter().map(|p| p.len()).sum());
    }

    #[test]
    fn the_first_bytes_are_kept_and_all_are_counted() {
        let mut head = Head::NEW;
        add(&mut head, &[b"one", b"", b" two"]);
        assert_eq!((head.passed, head.first(HEAD)), (7, &b"one two"[..]));
        assert_eq!(head.first(3), b"one");
        add(&mut head, &[&[7; 300], &[8; 9]]);
        assert_eq!((head.passed, head.kept), (7 + 309, HEAD));
        assert_eq!(head.first(usize::MAX)[7..], [7; HEAD - 7]);
    }

    #[test]
    fn fewer_may_have_moved_than_there_was_room_for() {
        let mut head = Head::NEW;
        let mut bytes = [1u8; 8];
        let iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 8 }];
        head.add(Some(Pieces::new(&iov)), 3);
        assert_eq!((head.passed, head.first(HEAD).len()), (3, 3));
    }

    #[test]
    fn nothing_is_kept_behind_bytes_that_were_not_seen() {
        let mut head = Head::NEW;
        add(&mut head, &[b"seen"]);
        head.add(None, 1000);
        add(&mut head, &[b"behind"]);
        assert_eq!((head.passed, head.first(HEAD)), (1010, &b"seen"[..]));
    }
}
