//! The sending half of a card: fetches descriptors and frames, and reports what was sent.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::end::{End, Ring};
use super::{Fault, Registers, TXDCTL_WTHRESH_SHIFT};
use crate::nic::i82599::descriptor::*;
use crate::nic::i82599::registers::*;

/// A frame on the wire, without its checksum.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub data: NonNull<u8>,
    pub length: usize,
    /// A tag that is not among the bytes.
    pub tag: Option<u16>,
}

impl Frame {
    /// Bytes on the wire: filled up to the shortest frame, with the checksum.
    pub fn on_wire(&self) -> usize {
        (self.length + if self.tag.is_some() { 4 } else { 0 }).max(60) + 4
    }
}

/// What became of a frame.
#[derive(PartialEq, Eq)]
pub(super) enum Outcome {
    Gone,
    /// The other side has asked for a pause.
    Paused,
}

/// Longest frame that the card sends.
const LONGEST: u64 = 15 << 10;

/// Sends what lies between heads and tails, until `deliver` says pause.
pub(super) fn transmit(
    end: &mut End,
    registers: &Registers,
    mut deliver: impl FnMut(Frame) -> Outcome,
) {
    if registers.get(DMATXCTL) & DMATXCTL_ENABLE == 0 || !end.is_master(registers) {
        return;
    }
    for queue in 0..QUEUES {
        if let Some(mut ring) = end.tx[queue as usize].take() {
            let fine = drain(end, registers, queue, &mut ring, &mut deliver);
            registers.set(tx_queue(queue) + HEAD, ring.head);
            // After a fault the queue is off for good.
            end.tx[queue as usize] = fine.then_some(ring);
        }
    }
    end.settle_counts(registers);
}

/// False after a fault.
fn drain(
    end: &mut End,
    registers: &Registers,
    queue: u32,
    ring: &mut Ring,
    deliver: &mut impl FnMut(Frame) -> Outcome,
) -> bool {
    let tail = registers.get(tx_queue(queue) + TAIL);
    if tail >= ring.size {
        end.fault(registers, Fault::Tail { queue, tail });
        return false;
    }
    let mut packets = 0;
    while ring.head != tail {
        let [address, word] =
            ring.words(ring.head).each_ref().map(|cell| u64::from_le(cell.load(Ordering::Relaxed)));
        match decode(end, queue, address, word) {
            Decoded::Frame(frame) => {
                // SAFETY: the descriptor gave the card this packet until it reports it.
                let group = unsafe { super::memory::bytes(frame.data, 6) };
                if deliver(frame) == Outcome::Paused {
                    break;
                }
                packets += 1;
                end.sent.packets += 1;
                end.sent.bytes += frame.on_wire() as u64;
                if group[0] & 1 != 0 {
                    let broadcast = group.iter().all(|byte| *byte == 0xff);
                    end.sent.broadcast += u32::from(broadcast);
                    end.sent.multicast += u32::from(!broadcast);
                }
            }
            Decoded::Context => {}
            Decoded::Fault(fault) => {
                end.fault(registers, fault);
                return false;
            }
        }
        if word & REPORT_STATUS != 0 {
            report(end, registers, queue, ring, word);
        }
        ring.head = ring.next(ring.head);
    }
    if packets != 0 {
        registers.add(qptc(queue), packets);
    }
    true
}

/// Writes a report back, or keeps it until as many wait as the threshold says.
fn report(end: &mut End, registers: &Registers, queue: u32, ring: &Ring, word: u64) {
    if end.faults.lost_reports > 0 {
        end.faults.lost_reports -= 1;
        return;
    }
    let threshold = registers.get(tx_queue(queue) + DCTL) >> TXDCTL_WTHRESH_SHIFT & 0x7f;
    if threshold == 0 {
        // SYNC: done mark. The card has done with the packet before it says so.
        return ring.words(ring.head)[1].store((word | TX_DONE).to_le(), Ordering::Release);
    }
    let waiting = &mut end.reports[queue as usize];
    waiting.push(ring.head);
    if waiting.len() >= threshold as usize {
        for place in waiting.drain(..) {
            // SYNC: done mark.
            ring.words(place)[1].fetch_or(TX_DONE.to_le(), Ordering::Release);
        }
    }
}

enum Decoded {
    Frame(Frame),
    Context,
    Fault(Fault),
}

fn decode(end: &mut End, queue: u32, address: u64, word: u64) -> Decoded {
    let context = usize::from(word & 1 << 36 != 0);
    if word & EXTENSION == 0 || !matches!(word & TYPE, TYPE_DATA | TYPE_CONTEXT) {
        return Decoded::Fault(Fault::Descriptor { queue, word });
    }
    if word & TYPE == TYPE_CONTEXT {
        end.contexts[queue as usize][context] = (address >> 16) as u16;
        return Decoded::Context;
    }
    let length = word & BUFFER_LENGTH;
    let whole = word & (END_OF_PACKET | INSERT_CRC) == END_OF_PACKET | INSERT_CRC
        && word >> PACKET_LENGTH_SHIFT == length;
    if !(17..=LONGEST).contains(&length) || !whole {
        return Decoded::Fault(Fault::Descriptor { queue, word });
    }
    let Some(data) = end.reach.packet(address, length) else {
        return Decoded::Fault(Fault::Address { queue, address });
    };
    let tag = (word & VLAN_INSERT != 0).then(|| end.contexts[queue as usize][context]);
    Decoded::Frame(Frame { data, length: length as usize, tag })
}
