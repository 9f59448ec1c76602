//! The receiving half of a card: which frames it takes, to which queue they go, and how they get
//! there.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::end::End;
use super::feed::Feed;
use super::memory::{bytes, copy};
use super::transmit::{Frame, Outcome};
use super::{Fault, Registers};
use crate::nic::i82599::descriptor::*;
use crate::nic::i82599::registers::*;

mod filter;
mod spread;

use filter::Filter;
use spread::Spread;

/// A card that receives, with the settings of its registers at the start of a run.
pub(super) struct Receiver<'a> {
    end: &'a mut End,
    registers: &'a Registers,
    filter: Filter,
    spread: Spread,
    enabled: bool,
    /// Packets without a buffer are not lost but stop the sender.
    pause: bool,
    /// By queue, what is not yet in the registers.
    taken: [u32; QUEUES as usize],
}

impl<'a> Receiver<'a> {
    pub fn new(end: &'a mut End, registers: &'a Registers, sender_pauses: bool) -> Self {
        let enabled = registers.get(RXCTRL) & RXCTRL_ENABLE != 0
            && registers.get(SECRXCTRL) & SECRXCTRL_RX_DIS == 0
            && end.is_master(registers);
        let pause = sender_pauses && registers.get(FCCFG) & FCCFG_TX_PAUSE != 0;
        let (filter, spread) = (Filter::new(registers), Spread::new(registers));
        Self { end, registers, filter, spread, enabled, pause, taken: [0; QUEUES as usize] }
    }

    /// Takes a frame in, or loses it as a card would.
    #[inline]
    pub fn deliver(&mut self, frame: Frame) -> Outcome {
        if !self.enabled {
            return Outcome::Gone;
        }
        if self.end.faults.checksum_errors > 0 {
            self.end.faults.checksum_errors -= 1;
            self.registers.add(CRCERRS, 1);
            return Outcome::Gone;
        }
        if frame.on_wire() > self.filter.longest {
            self.registers.add(ROC, 1);
            return Outcome::Gone;
        }
        // SAFETY: the sender's descriptor holds the frame still until it is reported.
        let data = unsafe { bytes(frame.data, frame.length) };
        let Some(kind) = self.filter.takes(self.registers, data, frame.tag) else {
            return Outcome::Gone;
        };
        let (queue, hash) = self.spread.queue(data);
        let Some(target) = self.buffer(queue) else {
            if self.pause && self.end.rx[queue as usize].is_some() {
                return Outcome::Paused;
            }
            let dropped = self.registers.get(rx_queue(queue) + SRRCTL) & SRRCTL_DROP != 0;
            self.registers.add(if dropped { qprdc(queue) } else { MPC }, 1);
            return Outcome::Gone;
        };
        self.store(queue, target, frame, hash);
        let counts = &mut self.end.received;
        counts.packets += 1;
        counts.bytes += frame.on_wire() as u64;
        counts.broadcast += u32::from(kind == filter::Destination::Broadcast);
        counts.multicast += u32::from(kind == filter::Destination::Multicast);
        Outcome::Gone
    }

    /// Takes frames while there are buffers; returns how many.
    pub fn take_all(&mut self, feed: &mut Feed) -> u64 {
        self.pause = true;
        let mut frames = 0;
        while self.enabled
            && let Some(frame) = feed.frame()
        {
            if self.deliver(frame) == Outcome::Paused || self.end.rx.iter().all(Option::is_none) {
                break;
            }
            feed.taken();
            frames += 1;
        }
        frames
    }

    /// Where the next frame of this queue goes.
    fn buffer(&mut self, queue: u32) -> Option<NonNull<u8>> {
        let ring = self.end.rx[queue as usize].as_ref()?;
        let tail = self.registers.get(rx_queue(queue) + TAIL);
        if ring.head == tail {
            return None;
        }
        if tail >= ring.size {
            return self.halt(queue, Fault::Tail { queue, tail });
        }
        let address = u64::from_le(ring.words(ring.head)[0].load(Ordering::Relaxed));
        let target = self.end.reach.packet(address, self.filter.longest as u64);
        target.or_else(|| self.halt(queue, Fault::Address { queue, address }))
    }

    #[cold]
    fn halt(&mut self, queue: u32, fault: Fault) -> Option<NonNull<u8>> {
        self.end.fault(self.registers, fault);
        self.end.rx[queue as usize] = None;
        None
    }

    fn store(&mut self, queue: u32, target: NonNull<u8>, frame: Frame, hash: u32) {
        let strip = self.registers.get(rx_queue(queue) + DCTL) & RXDCTL_STRIP_VLAN != 0;
        let (length, tag) = match frame.tag {
            None if !strip => {
                let padded = frame.length.max(60);
                // SAFETY: both places were checked: the sender's for its length, ours for the
                // longest frame.
                unsafe { copy(frame.data, frame.length, target, padded) };
                (padded, None)
            }
            tag => filter::store_tagged(frame, tag, strip, target),
        };
        let broken = self.end.faults.broken_frames > 0;
        self.end.faults.broken_frames -= u32::from(broken);
        let Some(ring) = &mut self.end.rx[queue as usize] else { return };
        let vlan = tag.map_or(0, |tag| u64::from(tag) << RX_VLAN_SHIFT | RX_VLAN);
        let status = RX_DONE | RX_END_OF_PACKET | vlan | if broken { RX_ERROR } else { 0 };
        let words = ring.words(ring.head);
        words[0].store((u64::from(hash) << 32).to_le(), Ordering::Relaxed);
        // SYNC: done mark. Behind the frame and the first word.
        words[1].store((status | (length as u64) << RX_LENGTH_SHIFT).to_le(), Ordering::Release);
        ring.head = ring.next(ring.head);
        self.taken[queue as usize] += 1;
    }
}

impl Drop for Receiver<'_> {
    /// Puts what was counted, and the heads, in the registers.
    fn drop(&mut self) {
        for (queue, taken) in (0..QUEUES).zip(self.taken).filter(|(_, taken)| *taken != 0) {
            self.registers.add(qprc(queue), taken);
            if let Some(ring) = &self.end.rx[queue as usize] {
                self.registers.set(rx_queue(queue) + HEAD, ring.head);
            }
        }
        self.end.settle_counts(self.registers);
    }
}
