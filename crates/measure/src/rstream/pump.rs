//! Both ways at once, and several streams: one thread at each end, which does what can be done next.

use std::io::{Error, ErrorKind, Result};

use terminal::signals;

use super::Mode;
use super::measure::{Case, fill, first_of};
use super::wire::{self, Wire};

/// What one receive takes at most, if messages are smaller.
const CHUNK: usize = 64 << 10;

/// Bytes of each stream.
#[derive(Clone, Copy)]
pub struct Load {
    pub out: u64,
    pub into: u64,
}

struct Lane {
    sent: u64,
    got: u64,
    /// The message that is being sent.
    message: Vec<u8>,
}

/// False: something arrived changed.
pub fn run(wires: &mut [Wire], case: &Case, load: Load) -> Result<bool> {
    let blocking = wires[0].mode() == Mode::Block;
    if blocking {
        wires.iter().try_for_each(|wire| wire.set_blocking(false))?;
    }
    let outcome = until_done(wires, case, load);
    if blocking {
        wires.iter().try_for_each(|wire| wire.set_blocking(true))?;
    }
    outcome
}

fn until_done(wires: &mut [Wire], case: &Case, load: Load) -> Result<bool> {
    let mut lanes: Vec<_> =
        wires.iter().map(|_| Lane { sent: 0, got: 0, message: message(case) }).collect();
    let mut buffer = vec![0; case.size.max(CHUNK)];
    let mut good = true;
    loop {
        let (mut moved, mut done) = (0, true);
        for (wire, lane) in wires.iter_mut().zip(&mut lanes) {
            moved += lane.send(wire, case, load.out)?;
            moved += lane.receive(wire, case, load.into, &mut buffer, &mut good)?;
            done &= lane.sent == load.out && lane.got == load.into;
        }
        if done {
            return Ok(good);
        }
        if moved != 0 {
            continue;
        }
        if signals::interrupted() {
            return Err(Error::from(ErrorKind::Interrupted));
        }
        if wires[0].mode() != Mode::Polling {
            let left = lanes.iter().map(|lane| (lane.got < load.into, lane.sent < load.out));
            let waiting = wires.iter().zip(left).filter(|(_, (read, write))| *read || *write);
            wire::wait_any(waiting.map(|(wire, (read, write))| (wire, read, write)))?;
        }
    }
}

fn message(case: &Case) -> Vec<u8> {
    let mut message = vec![0; case.size];
    fill(&mut message, 0);
    message
}

impl Lane {
    fn send(&mut self, wire: &mut Wire, case: &Case, all: u64) -> Result<usize> {
        if self.sent == all {
            return Ok(0);
        }
        let at = (self.sent % case.size as u64) as usize;
        if case.verify && at == 0 {
            fill(&mut self.message, self.sent / case.size as u64);
        }
        let n = wire.send_now(&self.message[at..])?;
        self.sent += n as u64;
        Ok(n)
    }

    fn receive(
        &mut self,
        wire: &mut Wire,
        case: &Case,
        all: u64,
        buffer: &mut [u8],
        good: &mut bool,
    ) -> Result<usize> {
        let left = usize::try_from(all - self.got).unwrap_or(usize::MAX).min(buffer.len());
        if left == 0 {
            return Ok(0);
        }
        let n = wire.recv_now(&mut buffer[..left])?;
        if case.verify {
            *good &= is_expected(case.size, self.got, &buffer[..n]);
        }
        self.got += n as u64;
        Ok(n)
    }
}

/// Whether these are the bytes of the stream from `start` on.
fn is_expected(size: usize, start: u64, bytes: &[u8]) -> bool {
    let size = size as u64;
    bytes.iter().zip(start..).all(|(byte, at)| {
        let i = (at % size) as usize;
        *byte == (first_of(at / size) + i + (i >> 8)) as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found_wherever_a_receive_begins() {
        let size = 300;
        let mut stream = Vec::new();
        for n in 0..4 {
            let mut one = vec![0; size];
            fill(&mut one, n);
            stream.extend(one);
        }
        for start in [0, 1, 299, 300, 777] {
            assert!(is_expected(size, start as u64, &stream[start..]));
        }
        for wrong in [0, 299, 300, 1199] {
            let mut other = stream.clone();
            other[wrong] ^= 1;
            assert!(!is_expected(size, 0, &other));
        }
        assert!(!is_expected(size, 300, &stream[..300]), "a message in place of another");
    }
}
