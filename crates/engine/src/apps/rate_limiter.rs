//! A token bucket.

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::apps::basic::{Each, each};
use crate::args::ArgError;
use crate::packet::Packet;
use crate::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<RateLimiter>();
}

/// Lets packets through up to a rate, with bursts up to the size of the bucket, and discards the
/// rest.
pub struct RateLimiter {
    bucket: Bucket,
    passed: u64,
    discarded: u64,
}

/// Arguments of [`RateLimiter`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimiterArgs {
    /// Bits per second of packet data.
    pub rate: f64,
    /// Bytes that may pass at once after a pause; a packet that is longer would never.
    #[serde(default = "burst")]
    pub burst: u64,
}

/// A frame of Ethernet with the usual 1500 bytes.
const USUAL_FRAME: u64 = 1514;

fn burst() -> u64 {
    1 << 17
}

/// Tokens are bits times nanoseconds, so that nothing is lost by rounding.
struct Bucket {
    rate: f64,
    capacity: f64,
    tokens: f64,
    filled: Option<u64>,
}

impl Bucket {
    fn new(args: &RateLimiterArgs) -> Self {
        let capacity = args.burst as f64 * 8e9;
        Self { rate: args.rate, capacity, tokens: capacity, filled: None }
    }

    /// Adds what the time since the last call brought.
    fn fill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.filled.unwrap_or(now)) as f64;
        self.filled = Some(now);
        self.tokens = (self.tokens + passed * self.rate).min(self.capacity);
    }

    fn take(&mut self, bytes: usize) -> bool {
        let price = bytes as f64 * 8e9;
        let enough = self.tokens >= price;
        if enough {
            self.tokens -= price;
        }
        enough
    }
}

impl Kind for RateLimiter {
    const NAME: &'static str = "RateLimiter";
    const ABOUT: &'static str = "discards what exceeds a rate (token bucket)";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const COUNTERS: &'static [&'static str] = &["passed", "discarded"];
    type Args = RateLimiterArgs;

    fn check(args: &RateLimiterArgs) -> Result<(), ArgError> {
        if !args.rate.is_finite() || args.rate <= 0.0 {
            return Err(ArgError::wrong("rate", "is a number of bits per second, more than 0"));
        }
        if args.burst < USUAL_FRAME {
            return Err(ArgError::wrong(
                "burst",
                format!(
                    "{} is too little: a usual frame of Ethernet has {USUAL_FRAME} bytes, and would never pass",
                    args.burst
                ),
            ));
        }
        Ok(())
    }

    fn new(args: RateLimiterArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { bucket: Bucket::new(&args), passed: 0, discarded: 0 })
    }

    fn reconfigure(&mut self, args: RateLimiterArgs) -> Result<Reconfigured, AppError> {
        let (tokens, filled) = (self.bucket.tokens, self.bucket.filled);
        self.bucket = Bucket::new(&args);
        self.bucket.tokens = tokens.min(self.bucket.capacity);
        self.bucket.filled = filled;
        Ok(Reconfigured::Done)
    }
}

impl Each for RateLimiter {
    fn keep(&mut self, packet: &mut Packet) -> bool {
        let kept = self.bucket.take(packet.length());
        self.passed += u64::from(kept);
        self.discarded += u64::from(!kept);
        kept
    }
}

impl App for RateLimiter {
    fn push(&mut self, io: &Io) {
        self.bucket.fill(io.now());
        each(io, self);
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.passed, self.discarded]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;
    use std::rc::Rc;

    #[test]
    fn the_rate_is_kept_and_bursts_are_allowed() {
        // 1000 bytes per second, bucket of 300 bytes, packets of 100.
        let mut limiter = RateLimiter {
            bucket: Bucket::new(&RateLimiterArgs { rate: 8000.0, burst: 300 }),
            passed: 0,
            discarded: 0,
        };
        let (input, output) = (Rc::new(Link::new()), Rc::new(Link::new()));
        let mut offer = |now: u64, packets: usize| {
            for _ in 0..packets {
                input.transmit(Packet::from_slice(&[0; 100]).unwrap());
            }
            limiter.push(&Io::new(vec![Some(input.clone())], vec![Some(output.clone())], now));
            output.discard()
        };
        assert_eq!(offer(5_000_000_000, 5), 3);
        assert_eq!(offer(5_099_999_999, 1), 0);
        assert_eq!(offer(5_100_000_000, 2), 1);
        assert_eq!(offer(9_000_000_000, 5), 3);
        let second: usize = (1..=1000u64).map(|ms| offer(9_000_000_000 + ms * 1_000_000, 1)).sum();
        assert_eq!(second, 10);
        assert_eq!((limiter.passed, limiter.discarded), (17, 996));
    }
}
