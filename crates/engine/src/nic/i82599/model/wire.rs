//! Two cards and the cable between them, or one card and what feeds it. All that moves, moves here,
//! under one lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::end::End;
use super::feed::Feed;
use super::receive::Receiver;
use super::transmit::{Outcome, transmit};
use super::{Fault, Faults, Registers, queue_register};
use crate::clock::cycles;
use crate::nic::dma::{Buffer, DmaError};
use crate::nic::i82599::registers::*;

/// What was done for an end of a wire, and what that cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WireStats {
    /// Frames that it sent.
    pub frames: u64,
    /// Processor cycles that the model spent inside of its driver's register accesses: what is no
    /// cost of the driver.
    pub cycles: u64,
    /// Accesses of its driver to registers.
    pub reads: u64,
    /// Those that were writes.
    pub writes: u64,
}

/// The wire between models `numbers[0]` and `numbers[1]`.
pub struct Wire {
    numbers: [u32; 2],
    registers: [Registers; 2],
    /// Without a second card the other side is the feed, and takes everything.
    cable: bool,
    /// Works in a thread of its own.
    threaded: bool,
    state: Mutex<State>,
    counts: [Counts; 2],
}

/// [`WireStats`] as they are counted.
#[derive(Default)]
struct Counts {
    frames: AtomicU64,
    cycles: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

struct State {
    ends: [End; 2],
    feed: Feed,
    open: [bool; 2],
    /// Ends whose sending waits for buffers of the other one.
    paused: [bool; 2],
}

impl Wire {
    pub(super) fn new(numbers: [u32; 2], cable: bool, feed: Feed, threaded: bool) -> Self {
        let state =
            State { ends: numbers.map(End::new), feed, open: [false; 2], paused: [false; 2] };
        Self {
            numbers,
            registers: [Registers::new(), Registers::new()],
            cable,
            threaded,
            state: Mutex::new(state),
            counts: Default::default(),
        }
    }

    /// Numbers of the models at its ends; the second counts with a cable only.
    pub fn numbers(&self) -> [u32; 2] {
        self.numbers
    }

    /// Whether there is a second model at its other end.
    pub fn is_cable(&self) -> bool {
        self.cable
    }

    /// Whether a thread of its own moves the frames.
    pub fn is_threaded(&self) -> bool {
        self.threaded
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One user for each end. False if there is one.
    pub(super) fn claim(&self, end: usize) -> bool {
        !std::mem::replace(&mut self.lock().open[end], true)
    }

    pub(super) fn release(&self, end: usize) {
        let mut state = self.lock();
        state.open[end] = false;
        // Memory that its user gives back is out of reach.
        let End { rx, tx, reach, .. } = &mut state.ends[end];
        *rx = Default::default();
        *tx = Default::default();
        reach.forget();
    }

    pub(super) fn buffer(&self, end: usize, bytes: usize) -> Result<Buffer, DmaError> {
        self.lock().ends[end].reach.buffer(bytes)
    }

    pub(super) fn settle(&self, end: usize, time: Duration) {
        self.lock().ends[end].pass(time.as_nanos() as u64);
        if self.threaded {
            // The thread needs real time.
            std::thread::sleep(time.min(Duration::from_millis(1)));
        }
    }

    pub(super) fn read(&self, end: usize, offset: u32) -> u32 {
        if offset as usize >= REGION || !offset.is_multiple_of(4) {
            return u32::MAX;
        }
        self.counts[end].reads.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        let link = self.link(&state, end);
        state.ends[end].read(&self.registers[end], offset, link)
    }

    #[inline]
    pub(super) fn write(&self, end: usize, offset: u32, value: u32) {
        if offset as usize >= REGION || !offset.is_multiple_of(4) {
            return;
        }
        self.counts[end].writes.fetch_add(1, Ordering::Relaxed);
        let registers = &self.registers[end];
        let tail =
            |first| queue_register(offset, first).is_some_and(|(_, distance)| distance == TAIL);
        let (rx, tx) = (tail(rx_queue(0)), tail(tx_queue(0)));
        if !rx && !tx {
            let mut state = self.lock();
            state.ends[end].write(registers, offset, value);
            if !self.threaded {
                let began = cycles();
                self.run(&mut state);
                self.spent(end, began);
            }
            return;
        }
        registers.set(offset, value);
        if self.threaded {
            return;
        }
        let began = cycles();
        let mut state = self.lock();
        if tx {
            self.transmit(&mut state, end);
        } else {
            self.supply(&mut state, end);
        }
        self.spent(end, began);
    }

    fn spent(&self, end: usize, began: u64) {
        self.counts[end].cycles.fetch_add(cycles().wrapping_sub(began), Ordering::Relaxed);
    }

    /// Whether light comes in at this end.
    fn link(&self, state: &State, end: usize) -> bool {
        let lit = |end: usize| {
            let registers = &self.registers[end];
            let reset = registers.get(CTRL) & (CTRL_RST | CTRL_LRST) != 0;
            registers.get(AUTOC) & AUTOC_LMS != 0 && !reset && !state.ends[end].faults.gone
        };
        let cut = |end: usize| state.ends[end].faults.no_link;
        if !self.cable {
            return lit(end) && !cut(end);
        }
        lit(0) && lit(1) && !cut(0) && !cut(1)
    }

    /// Sends what an end has to send.
    fn transmit(&self, state: &mut State, from: usize) {
        if !self.link(state, from) {
            return;
        }
        let mut frames = 0;
        let [a, b] = &mut state.ends;
        let (sender, other) = if from == 0 { (a, b) } else { (b, a) };
        let registers = &self.registers[from];
        let mut paused = false;
        if self.cable {
            let obeys = registers.get(MFLCN) & MFLCN_RX_PAUSE != 0;
            let mut receiver = Receiver::new(other, &self.registers[1 - from], obeys);
            transmit(sender, registers, |frame| {
                let outcome = receiver.deliver(frame);
                paused = outcome == Outcome::Paused;
                frames += u64::from(!paused);
                outcome
            });
        } else {
            transmit(sender, registers, |_| {
                frames += 1;
                Outcome::Gone
            });
        }
        state.paused[from] = paused;
        self.counts[from].frames.fetch_add(frames, Ordering::Relaxed);
    }

    /// Brings what waits for buffers of this end.
    fn supply(&self, state: &mut State, end: usize) {
        if self.cable {
            if state.paused[1 - end] {
                self.transmit(state, 1 - end);
            }
        } else if self.link(state, end) {
            let State { ends, feed, .. } = state;
            // The feed waits as a sender does that obeys pauses; its receiver need not ask for
            // them.
            let mut receiver = Receiver::new(&mut ends[end], &self.registers[end], true);
            let frames = receiver.take_all(feed);
            self.counts[1].frames.fetch_add(frames, Ordering::Relaxed);
        }
    }

    fn run(&self, state: &mut State) {
        for end in 0..if self.cable { 2 } else { 1 } {
            self.transmit(state, end);
            if !self.cable {
                self.supply(state, end);
            }
        }
    }

    /// One look at everything, by the thread of threaded wires. True if something moved.
    pub(super) fn poll(&self) -> bool {
        let frames = || self.counts.each_ref().map(|counts| counts.frames.load(Ordering::Relaxed));
        let before = frames();
        self.run(&mut self.lock());
        frames() != before
    }

    /// Without a cable, end 1 is the feed.
    pub fn stats(&self, end: usize) -> WireStats {
        let Counts { frames, cycles, reads, writes } = &self.counts[end];
        let [frames, cycles, reads, writes] =
            [frames, cycles, reads, writes].map(|n| n.load(Ordering::Relaxed));
        WireStats { frames, cycles, reads, writes }
    }

    /// Changes what goes wrong at an end.
    pub fn inject(&self, end: usize, change: impl FnOnce(&mut Faults)) {
        let mut state = self.lock();
        change(&mut state.ends[end].faults);
        if !self.threaded {
            self.run(&mut state);
        }
    }

    /// Resets a card behind its driver's back.
    pub fn reset(&self, end: usize) {
        self.lock().ends[end].reset(&self.registers[end]);
    }

    /// What a driver did that no card would take.
    pub fn found(&self, end: usize) -> Vec<Fault> {
        self.lock().ends[end].found.clone()
    }

    /// Whether nothing is left that could make this card touch memory.
    pub fn is_quiet(&self, end: usize) -> bool {
        self.lock().ends[end].is_quiet(&self.registers[end])
    }

    /// A register as it is, without the effects of reading.
    pub fn peek(&self, end: usize, offset: u32) -> u32 {
        self.registers[end].get(offset)
    }

    /// Writes a register as a driver would, with all that follows.
    pub fn poke(&self, end: usize, offset: u32, value: u32) {
        self.write(end, offset, value);
    }
}
