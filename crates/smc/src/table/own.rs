//! What a process notes of a connection for itself. What stands in a slot others may have written,
//! once they have inherited the connection: nothing that leads to another one is taken from there.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Of one connection. Zero is one of which nothing is known.
#[derive(Default)]
pub struct Own {
    /// Inode of its socket.
    pub inode: AtomicU32,
    /// The link group it belongs to, or is about to.
    pub group: AtomicU32,
    /// The generation (`kind`) in which it was proposed to the peer.
    pub generation: AtomicU32,
    /// Token of our DMB.
    pub my_token: AtomicU64,
    /// Token of the peer's DMB.
    pub peer_token: AtomicU64,
    /// Where its ends meet (`conn::upgrade`).
    pub meeting: AtomicU64,
    /// What rules say of it (`policy`); 0: nobody has asked them.
    pub decided: AtomicU32,
    /// How far one end is with showing the other its port (`meet::port`), the number that is to
    /// come from there, and a socket for it.
    pub port: AtomicU32,
    /// See `port`.
    pub port_number: AtomicU64,
    /// See `port`.
    pub port_socket: AtomicU64,
}

/// Stands for what belongs to a connection outside of the table.
pub static NOBODYS: Own = Own {
    inode: AtomicU32::new(0),
    group: AtomicU32::new(0),
    generation: AtomicU32::new(0),
    my_token: AtomicU64::new(0),
    peer_token: AtomicU64::new(0),
    meeting: AtomicU64::new(0),
    decided: AtomicU32::new(0),
    port: AtomicU32::new(0),
    port_number: AtomicU64::new(0),
    port_socket: AtomicU64::new(0),
};

impl Own {
    /// Nothing is known.
    pub fn clear(&self) {
        self.inode.store(0, Relaxed);
        self.group.store(0, Relaxed);
        self.decided.store(0, Relaxed);
        self.port.store(0, Relaxed);
        for word in [&self.my_token, &self.peer_token, &self.meeting, &self.port_socket] {
            word.store(0, Relaxed);
        }
    }
}
