//! The client: what is measured, and how it is told to the server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::pump::{self, Load};
use super::wire::{Stream, Wire};
use super::{Rstream, Transport};

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
    /// Bandwidth, both ways at once.
    Both,
}

/// One measure; also what the client orders from the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    pub kind: Kind,
    pub size: usize,
    /// Connections, all served by one thread at each end.
    pub streams: u8,
    pub verify: bool,
}

impl Case {
    pub fn list(args: &Rstream, direct: bool) -> Vec<Self> {
        let sizes = || args.size.0.iter().map(|size| *size as usize);
        let verify = args.verify;
        let all = |kind, streams| sizes().map(move |size| Self { kind, size, streams, verify });
        let rate = Self { kind: Kind::Rate, size: SMALL, streams: 1, verify };
        let mut cases: Vec<_> = all(Kind::Latency, 1).chain([rate]).collect();
        let several = (args.streams > 1).then_some(args.streams);
        for kind in [Kind::Bandwidth, Kind::Both] {
            for streams in std::iter::once(1).chain(several) {
                cases.extend(all(kind, streams));
            }
        }
        if direct {
            cases.extend(all(Kind::Direct, 1).filter(|case| case.size as u64 >= DIRECT));
        }
        cases
    }

    /// What each stream carries, seen from the client.
    pub fn load(&self, count: u64) -> Load {
        let bytes = count * self.size as u64;
        Load { out: bytes, into: if self.kind == Kind::Both { bytes } else { 0 } }
    }

    /// Whether it takes a thread that must not block.
    pub fn is_pumped(&self) -> bool {
        self.streams > 1 || self.kind == Kind::Both
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
            Kind::Both => "both ways",
        };
        match self.streams {
            1 => format!("{what} {size}"),
            n => format!("{what} {size}, {n} streams"),
        }
    }

    pub fn unit(&self) -> &'static str {
        match self.kind {
            Kind::Latency => "us",
            Kind::Rate => "1/s",
            Kind::Bandwidth | Kind::Both | Kind::Direct => "B/s",
        }
    }

    /// In [`Self::unit`].
    pub fn value(&self, count: u64, took: Duration) -> f64 {
        let seconds = took.as_secs_f64();
        match self.kind {
            Kind::Latency => seconds * 1e6 / count as f64 / 2.0,
            Kind::Rate => count as f64 / seconds,
            Kind::Bandwidth | Kind::Both | Kind::Direct => {
                let load = self.load(count);
                (load.out + load.into) as f64 * f64::from(self.streams) / seconds
            }
        }
    }

    pub fn encode(&self, count: u64) -> [u8; ORDER] {
        let mut out = [0; ORDER];
        out[..4].copy_from_slice(&(self.kind as u32).to_be_bytes());
        out[4] = self.verify.into();
        out[5] = self.streams;
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
            [0, 0, 0, 4] => Kind::Both,
            _ => bail!("the client speaks another language"),
        };
        let size = number(8);
        ensure!((1..=1 << 30).contains(&size), "a client asks for messages of {size} bytes");
        ensure!(bytes[5] != 0, "a client asks for no stream, as an older version does");
        let case = Self { kind, size: size as usize, streams: bytes[5], verify: bytes[4] != 0 };
        Ok((case, number(16)))
    }
}

/// What the bytes of message number `n` begin with.
pub fn first_of(n: u64) -> usize {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

/// The bytes of message number `n`, if that is verified.
pub fn fill(buffer: &mut [u8], n: u64) {
    let first = first_of(n);
    buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = (first + i + (i >> 8)) as u8);
}

/// How many messages fill the time, if `count` of them took so long.
fn fitting(count: u64, took: Duration, time: Duration) -> u64 {
    (count as f64 * time.as_secs_f64() / took.as_secs_f64()).max(1.0) as u64
}

pub struct Client<'a> {
    args: &'a Rstream,
    host: String,
    transport: Transport,
    /// The first gives orders.
    wires: Vec<Wire>,
    /// Messages that filled the time the last time, per case.
    counts: Vec<(Case, u64)>,
}

impl<'a> Client<'a> {
    pub fn new(args: &'a Rstream, host: &str, port: u16, transport: Transport) -> Result<Self> {
        let wire = Wire::connect((host, port), transport, args)?;
        Ok(Self { args, host: host.into(), transport, wires: vec![wire], counts: Vec::new() })
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
        let streams = usize::from(case.streams);
        self.wires[0].send(&case.encode(count)).with_context(what)?;
        if self.wires.len() < streams {
            self.connect_more(streams)?;
        }
        let mut buffer = vec![0; case.size];
        fill(&mut buffer, 0);
        // The server is there, and has mapped what is to be written.
        let mut ready = [0];
        self.wires[0].recv(&mut ready).with_context(what)?;
        let start = Instant::now();
        match case.kind {
            Kind::Latency => self.pingpong(case, count, &mut buffer),
            Kind::Direct => self.write_at(case, count, &mut buffer),
            _ if case.is_pumped() => self.pump(case, count),
            Kind::Bandwidth | Kind::Both | Kind::Rate => self.stream(case, count, &mut buffer),
        }
        .with_context(what)?;
        let took = start.elapsed();
        Ok(took)
    }

    /// To the port that the server opens for them.
    fn connect_more(&mut self, streams: usize) -> Result<()> {
        let mut port = [0; 2];
        self.wires[0].recv(&mut port).context("the server opens no port for further streams")?;
        let place = (self.host.as_str(), u16::from_be_bytes(port));
        while self.wires.len() < streams {
            let wire = Wire::connect(place, self.transport, self.args).with_context(|| {
                let (host, port) = place;
                format!(
                    "cannot connect further streams to {host}, port {port}; --streams 1 does without"
                )
            })?;
            self.wires.push(wire);
        }
        Ok(())
    }

    fn pump(&mut self, case: &Case, count: u64) -> Result<()> {
        let wires = &mut self.wires[..usize::from(case.streams)];
        ensure!(pump::run(wires, case, case.load(count))?, "wrong bytes came from the server");
        self.confirmed()
    }

    fn pingpong(&mut self, case: &Case, count: u64, buffer: &mut [u8]) -> Result<()> {
        let mut back = vec![0; buffer.len()];
        for n in 0..count {
            if case.verify {
                fill(buffer, n);
            }
            self.wires[0].send(buffer)?;
            self.wires[0].recv(&mut back)?;
            ensure!(!case.verify || back == buffer, "message {n} came back changed");
        }
        Ok(())
    }

    fn stream(&mut self, case: &Case, count: u64, buffer: &mut [u8]) -> Result<()> {
        for n in 0..count {
            if case.verify {
                fill(buffer, n);
            }
            self.wires[0].send(buffer)?;
        }
        self.confirmed()
    }

    fn write_at(&mut self, case: &Case, count: u64, buffer: &mut [u8]) -> Result<()> {
        for n in 0..count {
            if case.verify {
                fill(buffer, n);
            }
            let Stream::Rsocket(stream) = &self.wires[0].stream else {
                bail!("TCP has no direct writes")
            };
            let mut done = 0;
            while done < buffer.len() {
                match stream.write_at(&buffer[done..], done as u64) {
                    Ok(0) => bail!("the server has mapped less than it should"),
                    Ok(n) => done += n,
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                        self.wires[0].wait(true)?
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            if case.verify {
                self.wires[0].send(&[DONE])?;
                self.confirmed()?;
            }
        }
        if !case.verify {
            self.wires[0].send(&[DONE])?;
            self.confirmed()?;
        }
        Ok(())
    }

    fn confirmed(&mut self) -> Result<()> {
        let mut answer = [0];
        self.wires[0].recv(&mut answer)?;
        ensure!(answer[0] == DONE, "the server found wrong bytes");
        Ok(())
    }
}
