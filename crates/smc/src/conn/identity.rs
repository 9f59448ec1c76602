//! Whose connection it is: its place in the table, its socket, its peer, and what the application
//! has set on it.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::inet::Addr;

/// See the module documentation.
#[repr(C)]
#[derive(Debug)]
pub struct Identity {
    /// What the application has set of the two buffers, see `bounds`.
    pub(super) bounds: AtomicU32,
    /// SO_RCVLOWAT as the application set it (0: it never did); the kernel's is 1 so that a
    /// doorbell wakes.
    pub user_rcvlowat: AtomicU32,
    /// TCP_NODELAY (bit 0) and TCP_CORK (bit 1) as the application set them; bits 2 and 3: it did
    /// set them.
    pub user_nodelay: AtomicU32,
    /// TCP_INQ, by which receives tell what is left.
    pub user_inq: AtomicU32,
    /// `path`: for `ss`, and to choose between the ways of loopback.
    pub path: AtomicU32,
    /// Process that upgraded it.
    pub pid: AtomicU32,
    /// Bumped when the slot is taken and when it is given back: odd means in use.
    pub gen_: AtomicU32,
    /// Descriptors of all processes of the family that name this connection.
    pub refs: AtomicU32,
    /// Those of `refs` that travel over a Unix socket: whoever receives one takes it off.
    pub travelling: AtomicU32,
    /// Since when the last of `travelling` does, in seconds.
    pub departed: AtomicU32,
    /// Process that keeps its descriptors over an exec: the new program takes them on.
    pub heir: AtomicU32,
    /// Why it is TCP: the code of a `Reason`.
    pub reason: AtomicU32,
    /// Link group it belongs to.
    pub group: AtomicU32,
    /// Process at the other end, 0 if not known.
    pub peer_pid: AtomicU32,
    /// Owner of the socket, for `ss`.
    pub uid: AtomicU32,
    /// Inode of the socket, for `ss`.
    pub inode: AtomicU32,
    /// How well spinning has paid on it, 0..=16.
    pub spin: AtomicU32,
    /// Bytes that the last receive took which had not left the ring to the writer for a while.
    pub single: AtomicU32,
    /// Token of our DMB.
    pub my_token: AtomicU64,
    /// Token of the peer's DMB.
    pub peer_token: AtomicU64,
    /// The two ends.
    names: UnsafeCell<[Addr; 2]>,
}

// SAFETY: `names` is plain bytes that are written once; the rest is atomics.
unsafe impl Sync for Identity {}

impl Identity {
    /// The local and the peer's address; zero before they were looked up.
    pub fn names(&self) -> [Addr; 2] {
        // SAFETY: plain bytes, written once by the upgrade; a reader of `ss` may see a torn value
        // and prints it once.
        unsafe { self.names.get().read_volatile() }
    }

    pub(crate) fn set_names(&self, names: [Addr; 2]) {
        // SAFETY: written by the one thread that holds the upgrade stage.
        unsafe { self.names.get().write_volatile(names) }
    }

    /// For a connection that takes the slot, up to `gen_`, by which it is in use.
    pub(super) fn reset(&self) {
        for word in [
            &self.bounds,
            &self.user_rcvlowat,
            &self.user_nodelay,
            &self.user_inq,
            &self.path,
            &self.pid,
            &self.travelling,
            &self.departed,
            &self.heir,
            &self.group,
            &self.peer_pid,
            &self.uid,
            &self.inode,
        ] {
            word.store(0, Relaxed);
        }
        self.my_token.store(0, Relaxed);
        self.peer_token.store(0, Relaxed);
        self.spin.store(8, Relaxed);
        self.single.store(0, Relaxed);
        self.set_names([Addr::default(); 2]);
        self.reason.store(crate::reason::NOT_YET.code(), Relaxed);
        self.refs.store(1, Relaxed);
    }
}
