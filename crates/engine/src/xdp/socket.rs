//! An AF_XDP socket: four rings and the chunks that are out with the kernel.
//!
//! Ownership: a chunk belongs to the kernel from [`Socket::fill`] or [`Socket::send`] until it
//! comes back through [`Socket::receive`], [`Socket::complete`] or [`Socket::close`]. A bit per
//! chunk records it, because frames that the kernel dropped inside wait in a list of its own that
//! no ring shows, and only the record tells which to take back.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpMmapOffsets,
    XdpOptionsFlags, XdpStatistics,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::ring::{Consumer, Kind, Producer};
use super::umem::Umem;

/// `struct xdp_desc`: where in the UMEM a frame's data begins, and how long it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    pub address: u64,
    pub length: u32,
    pub options: u32,
}

/// Whether the driver moves frames by itself (zero copy) or the kernel copies between driver and
/// UMEM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copying {
    /// Zero copy if the driver can.
    #[default]
    Auto,
    /// The kernel copies (XDP_COPY).
    Copy,
    /// The driver moves frames, or opening fails (XDP_ZEROCOPY).
    ZeroCopy,
}

/// What a socket is bound to, and how.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of the interface in the calling thread's network namespace.
    pub ifindex: u32,
    /// Number of the interface's receive and transmit queue.
    pub queue: u32,
    /// Entries of each ring: a power of two.
    pub ring_size: u32,
    /// Who moves frames.
    pub copying: Copying,
}

/// Why there is no socket. Each message is a sentence for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// EAFNOSUPPORT.
    #[error(
        "this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS); use the raw_socket app instead"
    )]
    NotInKernel,
    /// EPERM or EACCES.
    #[error(
        "AF_XDP needs the capabilities CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF: run as root or grant them"
    )]
    NotPermitted,
    /// EBUSY: number of the queue.
    #[error(
        "queue {0} of the interface already has an AF_XDP socket, of this or another program: use another queue"
    )]
    QueueTaken(u32),
    /// EINVAL or EOPNOTSUPP: number of the queue.
    #[error(
        "the interface has no queue {0}, or its driver refuses AF_XDP on it: `ethtool -l` shows how many there are"
    )]
    NoQueue(u32),
    /// EOPNOTSUPP: number of the queue.
    #[error("the driver cannot do zero copy on queue {0}: leave `copy` at \"auto\"")]
    NoZeroCopy(u32),
    /// ENOBUFS: RLIMIT_MEMLOCK.
    #[error(
        "the packet buffers may not be locked into memory: raise the limit (`ulimit -l unlimited`)"
    )]
    MemoryLimit,
    /// ENODEV or ENETDOWN.
    #[error("the interface does not exist any more")]
    Gone,
    /// Any other answer of the system.
    #[error("AF_XDP: {operation}: {errno}")]
    Os {
        /// The step that failed.
        operation: &'static str,
        /// The system's answer.
        errno: Errno,
    },
}

/// A received frame: now the caller's.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Start of its chunk, in bytes from the start of the UMEM.
    pub chunk: u64,
    /// Where in the chunk its data begins.
    pub data: u32,
    /// Bytes.
    pub length: u32,
}

/// One bit per chunk: out with the kernel through this socket.
#[derive(Debug)]
struct Ledger(Vec<u64>);

impl Ledger {
    #[inline]
    fn give(&mut self, chunk: usize) {
        debug_assert!(
            self.0[chunk / 64] & 1 << (chunk % 64) == 0,
            "chunk {chunk} is with the kernel already"
        );
        self.0[chunk / 64] |= 1 << (chunk % 64);
    }

    /// Whether it was out.
    #[inline]
    fn take(&mut self, chunk: usize) -> bool {
        let Some(word) = self.0.get_mut(chunk / 64) else { return false };
        let bit = 1 << (chunk % 64);
        let out = *word & bit != 0;
        *word &= !bit;
        out
    }

    fn drain(&mut self, mut each: impl FnMut(usize)) {
        for (at, word) in self.0.iter_mut().enumerate() {
            while *word != 0 {
                each(at * 64 + word.trailing_zeros() as usize);
                *word &= *word - 1;
            }
        }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Socket {
    fd: Arc<OwnedFd>,
    umem: Arc<Umem>,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    rx: Consumer<Descriptor>,
    tx: Producer<Descriptor>,
    ledger: Ledger,
    chunk_shift: u32,
    zero_copy: bool,
    shares_umem: bool,
    /// Chunks in the fill ring or taken from it and not yet received.
    filled: u32,
    /// Frames sent and not yet completed.
    sending: u32,
}

impl Socket {
    /// Opens and binds. The kernel lets go of a closed socket's queue a moment after the close, so
    /// that a queue that is taken is tried again for a while.
    pub fn open(umem: &Arc<Umem>, options: &Options) -> Result<Socket, OpenError> {
        let mut pause = Duration::from_millis(1);
        loop {
            match Self::open_once(umem, options) {
                Err(OpenError::QueueTaken(_)) if pause < Duration::from_millis(256) => {
                    std::thread::sleep(pause)
                }
                other => return other,
            }
            pause *= 2;
        }
    }

    fn open_once(umem: &Arc<Umem>, options: &Options) -> Result<Socket, OpenError> {
        let mut bound = umem.bound();
        // Sharing fails with a socket that has lost its interface or whose mode is not for this
        // one: then the next, or none.
        let sockets = bound.sockets();
        let shared =
            sockets.iter().find_map(|from| Self::open_with(umem, options, Some(from)).ok());
        let socket = shared.map_or_else(|| Self::open_with(umem, options, None), Ok)?;
        bound.add(&socket.fd);
        Ok(socket)
    }

    fn open_with(
        umem: &Arc<Umem>,
        options: &Options,
        shared: Option<&Arc<OwnedFd>>,
    ) -> Result<Socket, OpenError> {
        let fd = rustix::net::socket_with(
            AddressFamily::XDP,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|errno| OpenError::from_errno("socket", errno, options))?;
        let fd = Arc::new(fd);
        let os = |operation| move |errno| OpenError::from_errno(operation, errno, options);
        if shared.is_none() {
            umem.register(&fd).map_err(os("register UMEM"))?;
        }
        let size = options.ring_size;
        sockopt::set_xdp_umem_fill_ring_size(&fd, size).map_err(os("fill ring"))?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, size).map_err(os("completion ring"))?;
        sockopt::set_xdp_rx_ring_size(&fd, size).map_err(os("receive ring"))?;
        sockopt::set_xdp_tx_ring_size(&fd, size).map_err(os("transmit ring"))?;
        let offsets = sockopt::xdp_mmap_offsets(&fd).map_err(os("ring offsets"))?;
        let mut socket = Self::map_rings(fd, umem, &offsets, size).map_err(|error| {
            os("map rings")(Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))
        })?;
        bind(&socket.fd, options, shared).map_err(os("bind"))?;
        raise_transmit_budget(&socket.fd, size);
        socket.shares_umem = shared.is_some();
        socket.zero_copy = sockopt::xdp_options(&socket.fd)
            .is_ok_and(|flags| flags.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        Ok(socket)
    }

    fn map_rings(
        fd: Arc<OwnedFd>,
        umem: &Arc<Umem>,
        at: &XdpMmapOffsets,
        size: u32,
    ) -> std::io::Result<Socket> {
        Ok(Socket {
            fill: Producer::new(fd.as_fd(), Kind::Fill, at.fr, size)?,
            completion: Consumer::new(fd.as_fd(), Kind::Completion, at.cr, size)?,
            rx: Consumer::new(fd.as_fd(), Kind::Receive, at.rx, size)?,
            tx: Producer::new(fd.as_fd(), Kind::Transmit, at.tx, size)?,
            ledger: Ledger(vec![0; umem.chunks().div_ceil(64)]),
            chunk_shift: umem.chunk().trailing_zeros(),
            zero_copy: false,
            shares_umem: false,
            filled: 0,
            sending: 0,
            umem: umem.clone(),
            fd,
        })
    }

    /// Whether the driver moves frames by itself, as the kernel tells.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Whether it uses the registration of another socket. Without, the same memory is pinned once
    /// more.
    pub fn shares_umem(&self) -> bool {
        self.shares_umem
    }

    /// How many chunks [`Self::fill`] can take now, so that the kernel has up to `target` to
    /// receive into.
    #[inline]
    pub fn fill_room(&mut self, target: u32) -> u32 {
        let wanted = target.saturating_sub(self.filled);
        if wanted == 0 { 0 } else { wanted.min(self.fill.free(wanted)) }
    }

    /// Gives the kernel a chunk to receive into. The caller has asked [`Self::fill_room`] and calls
    /// [`Self::flush_fill`].
    ///
    /// # Safety
    /// The chunk that begins `chunk` bytes into the UMEM is the caller's alone; it is the kernel's
    /// from now on.
    #[inline]
    pub unsafe fn fill(&mut self, chunk: u64) {
        self.ledger.give((chunk >> self.chunk_shift) as usize);
        self.fill.push(chunk);
        self.filled += 1;
    }

    /// Shows the kernel what [`Self::fill`] gave, and wakes the driver if it asks for that. To be
    /// called again and again, also when nothing was given: the driver may ask just when the call
    /// before this one has looked.
    #[inline]
    pub fn flush_fill(&mut self) {
        self.fill.publish();
        // SYNC: wakeup. Looked at in every breath.
        if self.fill.needs_wakeup() == Some(true) && self.fill.pending() > 0 {
            // Reading nothing makes the driver look at the fill ring; what it answers does not
            // matter.
            let _ = rustix::net::recv(&self.fd, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }

    /// Hands up to `max` received frames to `each`, oldest first.
    #[inline]
    pub fn receive(&mut self, max: u32, mut each: impl FnMut(Frame)) -> u32 {
        let count = self.rx.available(max).min(max);
        let mask = (1u64 << self.chunk_shift) - 1;
        let mut good = 0;
        for _ in 0..count {
            let descriptor = self.rx.pop();
            let chunk = descriptor.address & !mask;
            if !self.ledger.take((chunk >> self.chunk_shift) as usize) {
                continue;
            }
            good += 1;
            each(Frame {
                chunk,
                data: (descriptor.address & mask) as u32,
                length: descriptor.length,
            });
        }
        if count > 0 {
            self.rx.release();
            self.filled -= good;
        }
        good
    }

    /// The address of the frame that is `ahead` of the next one to be received, to prefetch; a hint
    /// only.
    #[inline]
    pub fn peek(&self, ahead: u32) -> u64 {
        self.rx.peek(ahead).address
    }

    /// How many frames [`Self::send`] can take now, looking at the kernel's position if fewer than
    /// `wanted` are known.
    #[inline]
    pub fn send_room(&mut self, wanted: u32) -> u32 {
        // Never more under way than the completion ring holds: the kernel would stop in the middle
        // of a batch.
        self.tx.free(wanted).min(self.tx.size() - self.sending)
    }

    /// Queues the `length` bytes at `address` (from the start of the UMEM). The caller has asked
    /// [`Self::send_room`].
    ///
    /// # Safety
    /// The chunk that `address` lies in is the caller's alone and holds all `length` bytes; it is
    /// the kernel's from now on.
    #[inline]
    pub unsafe fn send(&mut self, address: u64, length: u32) {
        self.ledger.give((address >> self.chunk_shift) as usize);
        self.tx.push(Descriptor { address, length, options: 0 });
        self.sending += 1;
    }

    /// Publishes what is queued and has the kernel send it. One system call takes as many frames as
    /// the kernel's budget allows, so calls repeat while they make progress. What stays is sent
    /// with the next flush.
    #[inline]
    pub fn flush_send(&mut self) -> Result<(), Errno> {
        self.tx.publish();
        let mut pending = self.tx.pending();
        // SYNC: wakeup. Looked at in every breath. A kernel that does not tell wants to be called.
        while pending > 0 && self.tx.needs_wakeup() != Some(false) {
            let result = rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT);
            let left = self.tx.pending();
            match result {
                // EBUSY: a frame was dropped below. ENOBUFS: no memory for a copy, or the send
                // buffer is full.
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR)
                    if left < pending => {}
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
            pending = left;
        }
        Ok(())
    }

    /// Hands the chunks of up to `max` frames that were sent to `each`: they are the caller's
    /// again.
    #[inline]
    pub fn complete(&mut self, max: u32, mut each: impl FnMut(u64)) -> u32 {
        if self.sending == 0 {
            return 0;
        }
        let count = self.completion.available(max).min(max);
        let mut good = 0;
        for _ in 0..count {
            let chunk = self.completion.pop() >> self.chunk_shift;
            if self.ledger.take(chunk as usize) {
                good += 1;
                each(chunk << self.chunk_shift);
            }
        }
        if count > 0 {
            self.completion.release();
            self.sending -= good;
        }
        good
    }

    /// Frames queued or under way.
    pub fn sending(&self) -> u32 {
        self.sending
    }

    /// What the kernel counts of the socket (XDP_STATISTICS); None if it does not tell.
    pub fn statistics(&self) -> Option<XdpStatistics> {
        sockopt::xdp_statistics(&self.fd).ok()
    }

    /// An error that came by itself: `ENETDOWN` when the interface went down or away.
    pub fn take_error(&self) -> Option<Errno> {
        sockopt::socket_error(&self.fd).ok().and_then(Result::err)
    }

    /// Closes the socket and hands back every chunk that the kernel still had. Its program must be
    /// detached before.
    ///
    /// The kernel unbinds the socket before the call returns, and in copy mode touches the UMEM
    /// only on behalf of a bound socket. A zero-copy driver may take a moment longer to stop its
    /// queue: chunks in flight there are not handed back but given up, which the result counts.
    pub fn close(self, mut each: impl FnMut(u64)) -> u32 {
        let Socket { fd, umem, mut ledger, zero_copy, chunk_shift, .. } = self;
        umem.bound().close(fd);
        let mut given_up = 0;
        ledger.drain(
            |chunk| if zero_copy { given_up += 1 } else { each((chunk as u64) << chunk_shift) },
        );
        given_up
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn bind(fd: &OwnedFd, options: &Options, shared: Option<&Arc<OwnedFd>>) -> Result<(), Errno> {
    let address = |flags| SocketAddrXdp::new(flags, options.ifindex, options.queue);
    let Some(shared) = shared else {
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        match options.copying {
            Copying::Auto => {}
            Copying::Copy => flags |= SocketAddrXdpFlags::XDP_COPY,
            Copying::ZeroCopy => flags |= SocketAddrXdpFlags::XDP_ZEROCOPY,
        }
        return rustix::net::bind(fd, &address(flags));
    };
    // The kernel refuses all other flags here: mode and wakeups are those of the UMEM.
    let zero_copy = sockopt::xdp_options(shared)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
    if options.copying == (if zero_copy { Copying::Copy } else { Copying::ZeroCopy }) {
        return Err(Errno::OPNOTSUPP);
    }
    let addr = address(SocketAddrXdpFlags::XDP_SHARED_UMEM);
    rustix::net::bind(fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: shared.as_fd() })
}

/// `XDP_MAX_TX_SKB_BUDGET` (Linux 6.17): frames per system call in copy mode, 32 otherwise. Older
/// kernels refuse it, which costs some speed only.
fn raise_transmit_budget(fd: &OwnedFd, ring_size: u32) {
    const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
    let budget = ring_size.min(256);
    // SAFETY: the kernel reads the four bytes of `budget`.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            (&raw const budget).cast(),
            4,
        );
    }
}

impl OpenError {
    fn from_errno(operation: &'static str, errno: Errno, options: &Options) -> OpenError {
        match (operation, errno) {
            ("socket", Errno::AFNOSUPPORT) => OpenError::NotInKernel,
            (_, Errno::PERM | Errno::ACCESS) => OpenError::NotPermitted,
            (_, Errno::NODEV | Errno::NETDOWN) => OpenError::Gone,
            ("register UMEM", Errno::NOBUFS) => OpenError::MemoryLimit,
            ("bind", Errno::BUSY) => OpenError::QueueTaken(options.queue),
            ("bind", Errno::OPNOTSUPP) if options.copying == Copying::ZeroCopy => {
                OpenError::NoZeroCopy(options.queue)
            }
            ("bind", Errno::INVAL | Errno::OPNOTSUPP) => OpenError::NoQueue(options.queue),
            (operation, errno) => OpenError::Os { operation, errno },
        }
    }
}
