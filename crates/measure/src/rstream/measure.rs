//! The client: what is measured, and how it is told to the server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Rstream;
use super::wire::{Stream, Wire};

/// Behind each order, and what the server answers when all has arrived.
pub const DONE: u8 = 0x5a;
pub const ORDER: usize = 24;
/// Messages of the rate measure.
const SMALL: usize = 8;
/// Direct writes are measured from here on: below, riowrite is a message of the stream as any
/// other.
const DIRECT: u64 = 64;
/// Runs shorter than this say nothing about how many messages fill the time.
const LEAST: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    Latency,
    Bandwidth,
    Rate,
    Direct,
}

/// One measure; also what the client orders from the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    pub kind: Kind,
    pub size: usize,
    pub verify: bool,
}

impl Case {
    pub fn list(args: &Rstream, direct: bool) -> Vec<Self> {
        let sizes = || args.size.0.iter().map(|size| *size as usize);
        let all = |kind| sizes().map(move |size| Self { kind, size, verify: args.verify });
        let rate = Self { kind: Kind::Rate, size: SMALL, verify: args.verify };
        let mut cases: Vec<_> =
            all(Kind::Latency).chain([rate]).chain(all(Kind::Bandwidth)).collect();
        if direct {
            cases.extend(all(Kind::Direct).filter(|case| case.size as u64 >= DIRECT));
        }
        cases
    }

    pub fn has_tcp(&self) -> bool {
        self.kind != Kind::Direct
    }

    pub fn name(&self) -> String {
        let size = match self.size {
            n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
            n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
            n => format!("{n} B"),
        };
        let what = match self.kind {
            Kind::Latency => "latency",
            Kind::Bandwidth => "bandwidth",
            Kind::Rate => "messages, one way",
            Kind::Direct => "riowrite",
        };
        format!("{what} {size}")
    }

    pub fn unit(&self) -> &'static str {
        match self.kind {
            Kind::Latency => "us",
            Kind::Rate => "1/s",
            Kind::Bandwidth | Kind::Direct => "B/s",
        }
    }

    /// In [`Self::unit`].
    pub fn value(&self, count: u64, took: Duration) -> f64 {
        let seconds = took.as_secs_f64();
        match self.kind {
            Kind::Latency => seconds * 1e6 / count as f64 / 2.0,
            Kind::Rate => count as f64 / seconds,
            Kind::Bandwidth | Kind::Direct => count as f64 * self.size as f64 / seconds,
        }
    }

    pub fn encode(&self, count: u64) -> [u8; ORDER] {
        let mut out = [0; ORDER];
        out[..4].copy_from_slice(&(self.kind as u32).to_be_bytes());
        out[4] = self.verify.into();
        out[8..16].copy_from_slice(&(self.size as u64).to_be_bytes());
        out[16..].copy_from_slice(&count.to_be_bytes());
        out
    }

    pub fn decode(bytes: &[u8; ORDER]) -> Result<(Self, u64)> {
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let kind = match bytes[..4] {
            [0, 0, 0, 0] => Kind::Latency,
            [0, 0, 0, 1] => Kind::Bandwidth,
            [0, 0, 0, 2] => Kind::Rate,
            [0, 0, 0, 3] => Kind::Direct,
            _ => bail!("the client speaks another language"),
        };
        let size = number(8);
        ensure!((1..=1 << 30).contains(&size), "a client asks for messages of {size} bytes");
        Ok((Self { kind, size: size as usize, verify: bytes[4] != 0 }, number(16)))
    }
}

/// Byte `i` of message number `n`, if that is verified.
pub fn fill(buffer: &mut [u8], n: u64) {
    let first = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    buffer
        .iter_mut()
        .enumerate()
        .for_each(|(i, byte)| *byte = (first as usize + i + (i >> 8)) as u8);
}

/// How many messages fill the time, if `count` of them took so long.
fn fitting(count: u64, took: Duration, time: Duration) -> u64 {
    (count as f64 * time.as_secs_f64() / took.as_secs_f64()).max(1.0) as u64
}

pub struct Client {
    wire: Wire,
    /// Messages that filled the time the last time, per case.
    counts: Vec<(Case, u64)>,
}

impl Client {
    pub fn new(wire: Wire) -> Self {
        Self { wire, counts: Vec::new() }
    }

    /// One run of about `time`, in the unit of the case.
    pub fn run(&mut self, case: &Case, time: Duration) -> Result<f64> {
        let known = self.counts.iter().position(|entry| entry.0 == *case);
        let at = match known {
            Some(at) => at,
            None => self.calibrate(case, time)?,
        };
        let count = self.counts[at].1;
        let took = self.once(case, count)?;
        // A run that something disturbed must not decide how long the others are.
        self.counts[at].1 =
            fitting(count, took, time).clamp(count / 4, count.saturating_mul(4)).max(1);
        Ok(case.value(count, took))
    }

    fn calibrate(&mut self, case: &Case, time: Duration) -> Result<usize> {
        let mut count = 1;
        loop {
            let took = self.once(case, count)?;
            if took >= LEAST.min(time) {
                self.counts.push((*case, fitting(count, took, time)));
                return Ok(self.counts.len() - 1);
            }
            count *= 4;
        }
    }

    fn once(&mut self, case: &Case, count: u64) -> Result<Duration> {
        let what = || format!("{} failed", case.name());
        self.wire.send(&case.encode(count)).with_context(what)?;
        let mut buffer = vec![0; case.size];
        fill(&mut buffer, 0);
        // The server is there, and has mapped what is to be written.
        let mut ready = [0];
        self.wire.recv(&mut ready).with_context(what)?;
        let start = Instant::now();
        match case.kind {
            Kind::Latency => self.pingpong(case, count, &mut buffer),
            Kind::Direct => self.write_at(case, count, &mut buffer),
            Kind::Bandwidth | Kind::Rate => self.stream(case, count, &mut buffer),
        }
        .with_context(what)?;
        let took = start.elapsed();
        Ok(took)
    }

    fn pingpong(&mut self, case: &Case, count: u64, buffer: &mut [u8]) -> Result<()> {
        let mut back = vec![0; buffer.len()];
        for n in 0..count {
            if case.verify {
                fill(buffer, n);
            }
            self.wire.send(buffer)?;
            self.wire.recv(&mut back)?;
            ensure!(!case.verify || back == buffer, "message {n} came back changed");
        }
        Ok(())
    }

    fn stream(&mut self, case: &Case, count: u64, buffer: &mut [u8]) -> Result<()> {
        for n in 0..count {
            if case.verify {
                fill(buffer, n);
            }
            self.wire.send(buffer)?;
        }
        self.confirmed()
    }

    fn write_at(&mut self, case: &Case, count: u64, buffer: &mut [u8]) -> Result<()> {
        for n in 0..count {
            if case.verify {
                fill(buffer, n);
            }
            let Stream::Rsocket(stream) = &self.wire.stream else {
                bail!("TCP has no direct writes")
            };
            let mut done = 0;
            while done < buffer.len() {
                match stream.write_at(&buffer[done..], done as u64) {
                    Ok(0) => bail!("the server has mapped less than it should"),
                    Ok(n) => done += n,
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => self.wire.wait(true)?,
                    Err(e) => return Err(e.into()),
                }
            }
            if case.verify {
                self.wire.send(&[DONE])?;
                self.confirmed()?;
            }
        }
        if !case.verify {
            self.wire.send(&[DONE])?;
            self.confirmed()?;
        }
        Ok(())
    }

    fn confirmed(&mut self) -> Result<()> {
        let mut answer = [0];
        self.wire.recv(&mut answer)?;
        ensure!(answer[0] == DONE, "the server found wrong bytes");
        Ok(())
    }
}
