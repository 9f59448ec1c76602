//! Straight out of an interface by AF_XDP: frames are built once, in the memory that the kernel
//! sends from, and while sending only their addresses go round.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use ::engine::Packet;
use ::engine::apps::xdp::umem;
use ::engine::arena::arena;
use ::engine::netdev::Netdev;
use ::engine::xdp::{Copying, Options, Socket};
use anyhow::{Context, Result, bail};

/// Frames under way at most.
const RING: u32 = 2048;
/// Frames per wakeup: more than the kernel's own budget gives nothing.
const BATCH: usize = 128;

pub struct Transmitter {
    socket: Option<Socket>,
    /// Address and length of each frame. At least twice as many as the ring holds: since frames
    /// complete in order, the next one is never still under way.
    frames: Vec<(u64, u32)>,
    next: usize,
    queued: u64,
    /// What the frames lie in.
    _packets: Vec<Packet>,
}

impl Transmitter {
    pub fn open(interface: &str, queue: u32, frames: &[Vec<u8>]) -> Result<Transmitter> {
        let netdev = Netdev::find(interface)?;
        let repeats = (2 * RING as usize).div_ceil(frames.len());
        let all = std::iter::repeat_n(frames, repeats).flatten();
        let packets: Option<Vec<Packet>> = all.map(|frame| Packet::from_slice(frame)).collect();
        let packets = packets.context("not enough memory for packets")?;
        let base = arena().base().as_ptr().addr();
        let address =
            |packet: &Packet| ((packet.as_ptr().addr() - base) as u64, packet.length() as u32);
        let frames = packets.iter().map(address).collect();
        let options =
            Options { ifindex: netdev.index(), queue, ring_size: RING, copying: Copying::Auto };
        let socket =
            Socket::open(umem(), &options).with_context(|| format!("interface {interface}"))?;
        Ok(Transmitter { socket: Some(socket), frames, next: 0, queued: 0, _packets: packets })
    }

    /// How many frames can go now.
    pub fn room(&mut self) -> usize {
        let Some(socket) = &mut self.socket else { return 0 };
        socket.complete(u32::MAX, |_| {});
        (socket.send_room(BATCH as u32) as usize).min(BATCH)
    }

    /// Sends the next `count` frames, for which there is room.
    pub fn send(&mut self, count: usize) -> Result<()> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        for _ in 0..count {
            let (address, length) = self.frames[self.next];
            self.next = if self.next + 1 == self.frames.len() { 0 } else { self.next + 1 };
            // SAFETY: the frame lies in a packet that is ours until `close`, and its last sending
            // has completed.
            unsafe { socket.send(address, length) };
        }
        self.queued += count as u64;
        match socket.flush_send() {
            Ok(()) => Ok(()),
            Err(errno) => bail!("the interface refuses to send: {errno}"),
        }
    }

    /// Frames that the kernel has taken and finished.
    pub fn sent(&self) -> u64 {
        self.queued - u64::from(self.socket.as_ref().map_or(0, Socket::sending))
    }

    /// Waits for frames under way, for a while.
    pub fn settle(&mut self, patience: Duration) {
        let end = Instant::now() + patience;
        while let Some(socket) = &mut self.socket
            && socket.sending() > 0
            && Instant::now() < end
        {
            let _ = socket.flush_send();
            socket.complete(u32::MAX, |_| {});
        }
    }
}

impl Drop for Transmitter {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            // A zero-copy driver may read chunks for a moment longer: these are not used again, so
            // nothing is to be done.
            socket.close(|_| {});
        }
    }
}
