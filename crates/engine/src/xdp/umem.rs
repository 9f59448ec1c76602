//! The memory that packets live in, as the kernel knows it: one UMEM for all ports, so that a
//! packet goes from one port to another by its address.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};

/// Geometry of the packet buffers and the sockets that are bound over them.
///
/// The kernel shares a UMEM by way of any bound socket that has it. A socket that cannot share one,
/// because the only others are in zero-copy mode and it is not or the other way round, registers
/// the same memory once more: addresses stay the same, only the accounting of pinned pages doubles.
#[derive(Debug)]
pub struct Umem {
    base: usize,
    length: usize,
    chunk: u32,
    headroom: u32,
    bound: Mutex<Vec<Weak<OwnedFd>>>,
}

impl Umem {
    /// `length` bytes from `base`, in chunks of `chunk` bytes (a power of two from 2048 to the page
    /// size). Received data begins `headroom + 256` bytes into a chunk.
    ///
    /// # Safety
    /// The memory is mapped and stays so until every socket that is opened over it is dropped. Who
    /// uses a chunk is up to the ownership that goes through [`super::Socket`].
    pub unsafe fn new(base: *mut u8, length: usize, chunk: u32, headroom: u32) -> Umem {
        Umem { base: base as usize, length, chunk, headroom, bound: Mutex::default() }
    }

    /// Bytes of a chunk.
    pub fn chunk(&self) -> u32 {
        self.chunk
    }

    /// Number of whole chunks.
    pub fn chunks(&self) -> usize {
        self.length / self.chunk as usize
    }

    /// Where in its chunk the data of a received packet begins.
    pub fn data_offset(&self) -> u32 {
        // XDP_PACKET_HEADROOM, which the kernel leaves for programs that prepend headers.
        self.headroom + 256
    }

    /// The longest frame that a chunk can receive.
    pub fn max_frame(&self) -> u32 {
        self.chunk - self.data_offset()
    }

    pub(super) fn register(&self, socket: &OwnedFd) -> Result<(), Errno> {
        let registration = XdpUmemReg {
            addr: self.base as u64,
            len: self.length as u64,
            chunk_size: self.chunk,
            headroom: self.headroom,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        rustix::net::sockopt::set_xdp_umem_reg(socket.as_fd(), registration)
    }

    /// The bound sockets, locked: none of them closes while one is used to share from, as the
    /// kernel would unbind it only after that, and its chunks would be handed back too early.
    pub(super) fn bound(&self) -> Bound<'_> {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        bound.retain(|socket| socket.strong_count() > 0);
        Bound(bound)
    }
}

pub(super) struct Bound<'a>(MutexGuard<'a, Vec<Weak<OwnedFd>>>);

impl Bound<'_> {
    pub fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.0.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn add(&mut self, socket: &Arc<OwnedFd>) {
        self.0.push(Arc::downgrade(socket));
    }

    pub fn close(self, socket: Arc<OwnedFd>) {
        drop(socket);
    }
}
