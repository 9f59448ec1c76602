//! The receive ring of a packet socket, TPACKET_V2: the kernel writes each packet into the next slot
//! and hands it over, so that receiving costs no system call. See
//! `Documentation/networking/packet_mmap.rst`. TPACKET_V3, whose blocks hold several packets, hands
//! a block over only once a timer has run out, after a millisecond or more, and at low rates with one
//! or two packets in it: each packet waits that long, and a ring of 16 MiB is full after 64 packets.
//!
//! A packet that is longer than a slot, as one that is uncut (TSO, GRO), comes by the socket's queue;
//! its slot says so.
//!
//! Invariant: a slot is read between the moment that its status says it is ours and the moment that
//! we give it back, and no offset that the kernel wrote is followed out of the slot.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::RecvFlags;

use crate::apps::vnet;

/// What the kernel allocates at once.
const BLOCK: usize = 1 << 18;
/// Bytes before a packet in its slot, at most: the kernel's headers, and link-layer headers that are
/// longer than Ethernet's.
const BEFORE: usize = 128;
/// The longest packet, with its `virtio_net_hdr`.
const LONGEST: usize = 1 << 18;

pub(super) struct Ring {
    base: NonNull<u8>,
    slots: usize,
    slot_size: usize,
    /// The slot to be read next or being read.
    slot: usize,
    /// The slot is being read.
    held: bool,
    /// For a packet that comes by the socket's queue.
    long: Box<[u8]>,
    /// Packets longer than a slot for which the queue had no room.
    pub lost: u64,
}

/// A received frame within its slot.
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
    /// Gives `socket` a ring of about `size` bytes, with slots for packets of `mtu` bytes behind
    /// their Ethernet header, and a queue of as many bytes for longer ones. The socket must not be
    /// bound to a protocol yet.
    pub fn new(socket: BorrowedFd, size: usize, mtu: u32) -> io::Result<Ring> {
        let slot_size = (mtu as usize + BEFORE).next_power_of_two().clamp(2048, BLOCK);
        let blocks = size.div_ceil(BLOCK).max(2);
        let slots = BLOCK * blocks / slot_size;
        option(socket, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as i32))?;
        // Any value but 0: a packet longer than a slot is queued, too.
        option(socket, libc::PACKET_COPY_THRESH, &1i32)?;
        // Without the right to exceed the limit of the machine, as much as that allows.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, size).is_err() {
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, size);
        }
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot_size as u32,
            tp_frame_nr: slots as u32,
        };
        option(socket, libc::PACKET_RX_RING, &request)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), BLOCK * blocks, protection, MapFlags::SHARED, socket, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let long = vec![0; LONGEST].into_boxed_slice();
        Ok(Ring { base, slots, slot_size, slot: 0, held: false, long, lost: 0 })
    }

    /// The next frame, if the kernel has handed one over. The frame must be done with before the
    /// next call.
    #[inline]
    pub fn next(&mut self, socket: BorrowedFd) -> Option<Frame<'_>> {
        loop {
            if self.held {
                // SYNC: frame read. Our reads of the slot come before the kernel may write it again.
                self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
                self.slot = if self.slot + 1 < self.slots { self.slot + 1 } else { 0 };
                self.held = false;
            }
            // SYNC: frame written. The kernel's packet comes before the status that hands it over.
            let status = self.status().load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                return None;
            }
            self.held = true;
            let slot: libc::tpacket2_hdr = self.read(0)?;
            let address: libc::sockaddr_ll = self.read(ALIGNED_HEADER)?;
            let vlan = vlan(status, &slot);
            let outgoing = address.sll_pkttype == libc::PACKET_OUTGOING;
            let length = slot.tp_len as usize;
            if status & libc::TP_STATUS_COPY != 0 {
                let Some(found) = self.queued(socket) else {
                    self.lost += 1;
                    continue;
                };
                let (header, bytes) = self.long[..found].split_first_chunk()?;
                let header = vnet::Header::parse(header);
                return Some(Frame { bytes, length, header, vlan, outgoing });
            }
            if slot.tp_snaplen < slot.tp_len {
                self.lost += 1;
                continue;
            }
            let start = usize::from(slot.tp_mac);
            let header: [u8; vnet::LENGTH] = self.read(start.checked_sub(vnet::LENGTH)?)?;
            let header = vnet::Header::parse(&header);
            let from = self.slot_base().wrapping_add(start);
            let room = self.slot_size.checked_sub(start)?;
            // SAFETY: within the slot, which is ours until the next call gives it back; that takes
            // `&mut self`.
            let bytes = unsafe { std::slice::from_raw_parts(from, length.min(room)) };
            return Some(Frame { bytes, length, header, vlan, outgoing });
        }
    }

    /// Takes the socket's next packet into `long`: its length there, cut if it is longer.
    #[cold]
    fn queued(&mut self, socket: BorrowedFd) -> Option<usize> {
        loop {
            match rustix::net::recv(socket, &mut self.long[..], RecvFlags::DONTWAIT) {
                Ok((found, _)) if found >= vnet::LENGTH => return Some(found),
                Err(Errno::INTR) => {}
                _ => return None,
            }
        }
    }

    fn status(&self) -> &AtomicU32 {
        const { assert!(std::mem::offset_of!(libc::tpacket2_hdr, tp_status) == 0) };
        // SAFETY: the status is the first word of a slot, aligned, and shared with the kernel as an
        // atomic.
        unsafe { AtomicU32::from_ptr(self.slot_base().cast()) }
    }

    fn slot_base(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.slot * self.slot_size)
    }

    /// A copy of what lies `at` bytes into the slot; None outside of it.
    #[inline]
    fn read<T: Plain>(&self, at: usize) -> Option<T> {
        if at > self.slot_size - size_of::<T>() {
            return None;
        }
        // SAFETY: within the slot; any bits are valid.
        Some(unsafe { self.slot_base().wrapping_add(at).cast::<T>().read_unaligned() })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our own mapping; frames borrow the ring.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.slots * self.slot_size) };
    }
}

/// Where the link-layer address follows a packet's header: TPACKET_ALIGN.
const ALIGNED_HEADER: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);

/// # Safety
/// Any bit pattern is a valid value.
unsafe trait Plain {}
// SAFETY: integers only.
unsafe impl Plain for libc::tpacket2_hdr {}
// SAFETY: integers only.
unsafe impl Plain for libc::sockaddr_ll {}
// SAFETY: bytes.
unsafe impl Plain for [u8; vnet::LENGTH] {}

fn vlan(status: u32, header: &libc::tpacket2_hdr) -> Option<(u16, u16)> {
    const ETHERTYPE_VLAN: u16 = 0x8100;
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    Some((if known { header.tp_vlan_tpid } else { ETHERTYPE_VLAN }, header.tp_vlan_tci))
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
    let mut counts: libc::tpacket_stats = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&counts) as u32;
    let name = libc::PACKET_STATISTICS;
    let into = (&raw mut counts).cast();
    // SAFETY: the kernel writes at most `length` bytes to the structure.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, name, into, &mut length) };
    if result == 0 { counts.tp_drops.into() } else { 0 }
}
