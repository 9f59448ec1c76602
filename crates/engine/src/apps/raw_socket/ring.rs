//! The receive ring of a packet socket, TPACKET_V3: the kernel fills blocks of memory with packets
//! and hands whole blocks over, so that receiving costs no system call. See
//! `Documentation/networking/packet_mmap.rst`.
//!
//! Invariant: a block is read between the moment that its status says it is ours and the moment
//! that we give it back, and no offset that the kernel wrote is followed out of the block.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::apps::vnet;

const BLOCK: usize = 1 << 18;
/// Milliseconds after which the kernel hands over a block that is not full: the longest that a
/// packet waits.
const RETIRE: u32 = 1;

pub(super) struct Ring {
    base: NonNull<u8>,
    blocks: usize,
    /// The block to be read next or being read.
    block: usize,
    /// Packets of it that are left, and where the next one is.
    left: u32,
    at: usize,
}

/// A received frame within its block.
pub(super) struct Frame<'a> {
    pub bytes: &'a [u8],
    /// Length on the wire; more than `bytes` if it was cut.
    pub length: usize,
    pub header: vnet::Header,
    /// VLAN tag (TPID, TCI) that the kernel has taken out of the frame.
    pub vlan: Option<(u16, u16)>,
    /// Sent by this machine, not received.
    pub outgoing: bool,
}

impl Frame<'_> {
    /// The VLAN tag as it stood in the frame, behind the addresses.
    pub fn tag(&self) -> Option<[u8; 4]> {
        let (tpid, tci) = self.vlan?;
        let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
        Some([a, b, c, d])
    }
}

impl Ring {
    /// Gives `socket` a ring of about `size` bytes. The socket must not be bound to a protocol yet.
    pub fn new(socket: BorrowedFd, size: usize) -> io::Result<Ring> {
        let blocks = size.div_ceil(BLOCK).max(2);
        option(socket, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as i32))?;
        // A frame size is asked for but has no meaning in this version.
        let frame = 2048;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: frame,
            tp_frame_nr: (BLOCK * blocks) as u32 / frame,
            tp_retire_blk_tov: RETIRE,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        option(socket, libc::PACKET_RX_RING, &request)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), BLOCK * blocks, protection, MapFlags::SHARED, socket, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { base, blocks, block: 0, left: 0, at: 0 })
    }

    /// The next frame, if the kernel has handed one over. The frame must be done with before the
    /// next call.
    #[inline]
    pub fn next(&mut self) -> Option<Frame<'_>> {
        while self.left == 0 {
            self.next_block()?;
        }
        self.left -= 1;
        let at = self.at;
        let header: libc::tpacket3_hdr = self.read(at)?;
        self.at += header.tp_next_offset as usize;
        let start = at + usize::from(header.tp_mac);
        let virtio: [u8; vnet::LENGTH] = self.read(start.checked_sub(vnet::LENGTH)?)?;
        let address: libc::sockaddr_ll = self.read(at + ALIGNED_HEADER)?;
        let length = (header.tp_snaplen as usize).min(BLOCK.checked_sub(start)?);
        let from = self.block_base().wrapping_add(start);
        // SAFETY: within the block (checked above), which is ours until `next_block` gives it back;
        // that takes `&mut self`.
        let bytes = unsafe { std::slice::from_raw_parts(from, length) };
        Some(Frame {
            bytes,
            length: header.tp_len as usize,
            header: vnet::Header::parse(&virtio),
            vlan: vlan(&header),
            outgoing: address.sll_pkttype == libc::PACKET_OUTGOING,
        })
    }

    /// Gives the block that was read back and goes to the next one, if it is ours.
    fn next_block(&mut self) -> Option<()> {
        if self.at != 0 {
            // SYNC: block read. Our reads of the block come before the kernel may write it again.
            self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.block = (self.block + 1) % self.blocks;
            self.at = 0;
        }
        // SYNC: block written. The kernel's packets come before the status that hands them over.
        if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let block: libc::tpacket_block_desc = self.read(0)?;
        // SAFETY: the union has one member.
        let header = unsafe { block.hdr.bh1 };
        self.left = header.num_pkts;
        // Never zero, also for a block that was handed over empty: that it is to be given back.
        self.at = (header.offset_to_first_pkt as usize).max(1);
        Some(())
    }

    fn status(&self) -> &AtomicU32 {
        let at = std::mem::offset_of!(libc::tpacket_block_desc, hdr);
        // SAFETY: the status is the first word of the header of a block, aligned, and shared with
        // the kernel as an atomic.
        unsafe { AtomicU32::from_ptr(self.block_base().wrapping_add(at).cast()) }
    }

    fn block_base(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.block * BLOCK)
    }

    /// A copy of what lies `at` bytes into the block; None outside of it.
    #[inline]
    fn read<T: Plain>(&self, at: usize) -> Option<T> {
        if at > BLOCK - size_of::<T>() {
            return None;
        }
        // SAFETY: within the block; any bits are valid.
        Some(unsafe { self.block_base().wrapping_add(at).cast::<T>().read_unaligned() })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our own mapping; frames borrow the ring.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.blocks * BLOCK) };
    }
}

/// Where the link-layer address follows a packet's header: TPACKET_ALIGN.
const ALIGNED_HEADER: usize = size_of::<libc::tpacket3_hdr>().next_multiple_of(16);

/// # Safety
/// Any bit pattern is a valid value.
unsafe trait Plain {}
// SAFETY: integers only.
unsafe impl Plain for libc::tpacket3_hdr {}
// SAFETY: integers only.
unsafe impl Plain for libc::tpacket_block_desc {}
// SAFETY: integers only.
unsafe impl Plain for libc::sockaddr_ll {}
// SAFETY: bytes.
unsafe impl Plain for [u8; vnet::LENGTH] {}

fn vlan(header: &libc::tpacket3_hdr) -> Option<(u16, u16)> {
    const ETHERTYPE_VLAN: u16 = 0x8100;
    if header.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    Some((
        if known { header.hv1.tp_vlan_tpid } else { ETHERTYPE_VLAN },
        header.hv1.tp_vlan_tci as u16,
    ))
}

/// Sets an option of level SOL_PACKET.
pub(super) fn option<T>(socket: BorrowedFd, name: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as u32;
    // SAFETY: the kernel reads `length` bytes of the value.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            (&raw const *value).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Packets that the kernel dropped since the last call, because the ring was full.
pub(super) fn drops(socket: BorrowedFd) -> u64 {
    // SAFETY: integers; all zeros is a valid value.
    let mut counts: libc::tpacket_stats_v3 = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&counts) as u32;
    let name = libc::PACKET_STATISTICS;
    let into = (&raw mut counts).cast();
    // SAFETY: the kernel writes at most `length` bytes to the structure.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, name, into, &mut length) };
    if result == 0 { counts.tp_drops.into() } else { 0 }
}
