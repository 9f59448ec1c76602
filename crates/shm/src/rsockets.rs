//! What a process says of its rsockets, in a memfd that others read: who looks from outside
//! (`shortwire ss`) and the library itself share this layout, and nothing else.
//!
//! A row belongs to one socket. Counters of a direction are written by who has the lock of that
//! direction, so that they need no locked instruction, and lie in lines of their own, so that one
//! direction does not slow the other. All of it is plain numbers: a process can write there what it
//! likes, and is only shown.

use crate::Counter;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, Release},
    fence,
};

/// Of the file, as the links of descriptors show it.
pub const NAME: &core::ffi::CStr = c"shortwire-rsockets";
/// First word of the file; another layout gets another one.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SWRSOCK2");
/// Sockets that can be shown at a time, as many as a process may have.
pub const ROWS: usize = 4096;
/// Keys from here on are no inodes: of sockets over RDMA, which have none.
pub const NO_INODE: u64 = 1 << 63;

/// [`Row::device`]: none yet.
pub const NONE: u32 = 0;
/// [`Row::device`]: shared memory.
pub const LOOPBACK: u32 = 1;
/// [`Row::device`]: RDMA.
pub const VERBS: u32 = 2;

/// Beginning of the file; rows follow.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Head {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// No row from this one on was ever used.
    pub used: AtomicU64,
    /// Connections that were made.
    pub streams: Counter,
    /// Connections that failed to be made, or were broken by their peer.
    pub failed: Counter,
    /// What sockets have counted that are closed: received, sent.
    pub ended: [Flow; 2],
    /// Sleeps of theirs.
    pub slept: Counter,
}

/// One direction.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Flow {
    /// Payload.
    pub bytes: Counter,
    /// Calls that moved some.
    pub calls: Counter,
    /// Wake-ups of the peer, which cost a system call; those for room, too, are counted with sends.
    pub doorbells: Counter,
}

/// One socket.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Row {
    /// The inode of its TCP socket, or a number from [`NO_INODE`] on; 0: the row is free.
    pub key: AtomicU64,
    /// Its process, by its own word.
    pub pid: AtomicU32,
    /// Who is at the other end, over shared memory.
    pub peer_pid: AtomicU32,
    /// What carries it: [`LOOPBACK`], [`VERBS`], or [`NONE`] before it is connected.
    pub device: AtomicU32,
    /// 1 for a listener over RDMA, which the kernel does not list.
    pub listens: AtomicU32,
    /// Bytes of its receive buffer.
    pub rcvbuf: AtomicU32,
    /// Bytes of its send buffer.
    pub sndbuf: AtomicU32,
    /// Times that it slept until its peer rang.
    pub slept: Counter,
    /// Own name and the peer's, over RDMA: family in the upper half of the first word and port in
    /// the lower, then the address as it lies in memory.
    pub names: [[AtomicU64; 3]; 2],
    /// Received.
    pub rx: Flow,
    /// Sent.
    pub tx: Flow,
}

impl Flow {
    /// A call has moved so many bytes. One writer at a time.
    #[inline]
    pub fn count(&self, bytes: usize) {
        self.bytes.add_single(bytes as u64);
        self.calls.add_single(1);
    }

    fn fields(&self) -> [&Counter; 3] {
        [&self.bytes, &self.calls, &self.doorbells]
    }
}

impl Row {
    /// For a new socket.
    pub fn clear(&self) {
        for word in [&self.pid, &self.peer_pid, &self.device, &self.listens] {
            word.store(0, Relaxed);
        }
        for word in [&self.rcvbuf, &self.sndbuf] {
            word.store(0, Relaxed);
        }
        self.slept.set(0);
        self.names.iter().flatten().for_each(|word| word.store(0, Relaxed));
        for counter in self.rx.fields().into_iter().chain(self.tx.fields()) {
            counter.set(0);
        }
    }

    /// Gives the row back, and what was counted in it to the sums. A reader in between finds less
    /// than was counted, never more: of two looks the larger one is right.
    pub fn close(&self, head: &Head) {
        let counted = [&self.rx, &self.tx].map(|flow| flow.fields().map(Counter::get));
        let slept = self.slept.get();
        self.key.store(0, Relaxed);
        self.clear();
        // SYNC: row. Who finds the sums finds the row free, or the next socket's counts in it; pairs
        // with a reader's fence between the head and the rows.
        fence(Release);
        for (sums, counts) in head.ended.iter().zip(counted) {
            sums.fields().into_iter().zip(counts).for_each(|(sum, count)| sum.add(count));
        }
        head.slept.add(slept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_row_has_counted_stays_when_it_is_closed() {
        let (head, row) = (Head::default(), Row::default());
        row.key.store(7, Relaxed);
        row.rx.count(100);
        row.tx.count(5);
        row.tx.count(6);
        row.tx.doorbells.add(1);
        row.slept.add(3);
        row.close(&head);
        assert_eq!(row.key.load(Relaxed), 0);
        assert_eq!(head.ended[0].bytes.get(), 100);
        assert_eq!(head.ended[1].fields().map(Counter::get), [11, 2, 1]);
        assert_eq!(head.slept.get(), 3);
        row.clear();
        row.close(&head);
        assert_eq!(head.ended[1].bytes.get(), 11, "a new socket begins at nothing");
    }

    #[test]
    fn directions_have_lines_of_their_own() {
        let row = Row::default();
        let line = |flow: &Flow| core::ptr::from_ref(flow) as usize / 64;
        assert_ne!(line(&row.rx), line(&row.tx));
        assert_eq!(size_of::<Row>() % 64, 0);
    }
}
