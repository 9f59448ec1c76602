//! Loops over AF_XDP sockets without packets, links and apps: the least that a program in user
//! space can do, and so what the kernel's path gives at most.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ::engine::Packet;
use ::engine::apps::xdp::umem;
use ::engine::arena::arena;
use ::engine::xdp::{Attachment, Copying, Filter, Options, Socket};
use anyhow::{Context, Result};

use super::interfaces::{frame, index};

const BATCH: u32 = 64;
const RING: u32 = 2048;

struct Port {
    socket: Socket,
    attachment: Option<Arc<Attachment>>,
}

impl Port {
    fn open(interface: &str, receive: bool) -> Result<Port> {
        let ifindex = index(interface)?;
        let options = Options { ifindex, queue: 0, ring_size: RING, copying: Copying::Auto };
        let socket = Socket::open(umem(), &options)?;
        let attachment =
            if receive { Some(Attachment::open(ifindex, None, &Filter::default())?) } else { None };
        if let Some(attachment) = &attachment {
            attachment.direct(0, socket.as_fd())?;
        }
        Ok(Port { socket, attachment })
    }

    /// Gives the kernel as many chunks as it takes.
    fn fill(&mut self, chunks: &mut Chunks) {
        for _ in 0..self.socket.fill_room(RING) {
            let Some(chunk) = chunks.0.pop() else { break };
            // SAFETY: a chunk of ours, which the list forgets.
            unsafe { self.socket.fill(chunk) };
        }
        self.socket.flush_fill();
    }

    fn close(self, chunks: &mut Chunks) {
        drop(self.attachment);
        self.socket.close(|chunk| chunks.0.push(chunk));
    }
}

/// Free chunks of the engine's packet memory, by their address in the UMEM. They go back when this
/// goes.
struct Chunks(Vec<u64>);

/// Where in its chunk a frame to be sent lies.
const DATA: u64 = 256;

impl Chunks {
    fn take(count: usize) -> Result<Chunks> {
        let base = arena().base().addr().get();
        let slots =
            (0..count).map(|_| Some(Packet::from_slice(&frame())?.into_slot().addr().get() - base));
        let all: Option<Vec<u64>> = slots.map(|slot| slot.map(|slot| slot as u64)).collect();
        Ok(Chunks(all.context("not enough memory for packets")?))
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        for chunk in self.0.drain(..) {
            // SAFETY: an offset within the arena.
            let slot = unsafe { arena().base().add(chunk as usize) };
            // SAFETY: a slot that came out of `into_slot` or the kernel, and is nobody else's.
            drop(unsafe { Packet::from_slot(slot, DATA as usize, 0) });
        }
    }
}

pub fn receive(stop: &AtomicBool, count: &AtomicU64) -> Result<()> {
    let mut chunks = Chunks::take(2 * RING as usize)?;
    let mut port = Port::open("a1", true)?;
    while !stop.load(Ordering::Relaxed) {
        port.fill(&mut chunks);
        let got = port.socket.receive(BATCH, |frame| chunks.0.push(frame.chunk));
        count.fetch_add(got.into(), Ordering::Relaxed);
    }
    port.close(&mut chunks);
    Ok(())
}

pub fn transmit(stop: &AtomicBool) -> Result<()> {
    let mut chunks = Chunks::take(2 * RING as usize)?;
    let mut port = Port::open("a1", false)?;
    while !stop.load(Ordering::Relaxed) {
        port.socket.complete(RING, |chunk| chunks.0.push(chunk));
        for _ in 0..port.socket.send_room(BATCH).min(BATCH) {
            let Some(chunk) = chunks.0.pop() else { break };
            // SAFETY: a chunk of ours, which the list forgets; a frame was written at about this
            // place.
            unsafe { port.socket.send(chunk + DATA, 60) };
        }
        port.socket.flush_send()?;
    }
    port.close(&mut chunks);
    Ok(())
}

pub fn forward(stop: &AtomicBool) -> Result<()> {
    let mut chunks = Chunks::take(4 * RING as usize)?;
    let (mut from, mut to) = (Port::open("a1", true)?, Port::open("b1", false)?);
    let mut held = Vec::with_capacity(BATCH as usize);
    while !stop.load(Ordering::Relaxed) {
        to.socket.complete(RING, |chunk| chunks.0.push(chunk));
        from.fill(&mut chunks);
        let room = to.socket.send_room(BATCH).min(BATCH);
        from.socket.receive(room, |frame| held.push(frame));
        for frame in held.drain(..) {
            // SAFETY: received just now, and given up.
            unsafe { to.socket.send(frame.chunk + u64::from(frame.data), frame.length) };
        }
        to.socket.flush_send()?;
    }
    from.close(&mut chunks);
    to.close(&mut chunks);
    Ok(())
}
