//! What a message costs on this machine, over TCP and through memory: measured on a connection that
//! a process has with itself, where nothing is waited for and so no time is spent on spinning.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Sizes of messages that are measured, in bytes.
const SIZES: [usize; 2] = [64, 16 << 10];
/// Of the processor, for each of them: on a busy machine as many messages as on a quiet one.
const TIME: Duration = Duration::from_millis(40);
/// Parts of that time, of which the best counts: a machine that is not told of the time that its host
/// takes from it counts that as its own.
const WINDOWS: u32 = 5;
/// Messages before a connection is measured: it has left TCP by then, if it ever does.
const WARM: usize = 200;

/// Processor time of one message, sent and received: so much for each, and for each byte.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cost {
    pub message_ns: f64,
    pub byte_ns: f64,
}

impl Cost {
    /// From that of messages of both sizes.
    fn of(ns: [f64; 2]) -> Cost {
        let byte_ns = ((ns[1] - ns[0]) / (SIZES[1] - SIZES[0]) as f64).max(0.0);
        Cost { message_ns: (ns[0] - byte_ns * SIZES[0] as f64).max(0.0), byte_ns }
    }

    /// Seconds for the calls of one end or of several, each of which has half of a message.
    pub fn seconds(&self, calls: u64, bytes: u64) -> f64 {
        (calls as f64 * self.message_ns + bytes as f64 * self.byte_ns) / 2.0 / 1e9
    }
}

/// In this process.
pub fn here() -> Result<Cost> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on 127.0.0.1")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let mut server = listener.accept()?.0;
    client.set_nodelay(true)?;
    let mut buffer = vec![0; SIZES[1]];
    let mut message = |size: usize| -> Result<()> {
        client.write_all(&buffer[..size])?;
        server.read_exact(&mut buffer[..size])?;
        Ok(())
    };
    let mut ns = [0.0; 2];
    for (size, ns) in SIZES.into_iter().zip(&mut ns) {
        for _ in 0..WARM {
            message(size)?;
        }
        *ns = f64::INFINITY;
        for _ in 0..WINDOWS {
            let (begun, mut count) = (used(), 0u32);
            let taken = loop {
                for _ in 0..16 {
                    message(size)?;
                }
                count += 16;
                let taken = used() - begun;
                if taken >= TIME / WINDOWS {
                    break taken;
                }
            };
            *ns = ns.min(taken.as_nanos() as f64 / f64::from(count));
        }
    }
    Ok(Cost::of(ns))
}

/// Processor time of this process.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// In another process, started by these words, which says it.
pub fn there(words: &[std::ffi::OsString]) -> Result<Cost> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["gain", "--measure", "--", "this"]);
    let output = command.stdin(Stdio::null()).env("SHORTWIRE_AFTER", "8").output()?;
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "cannot measure what a message costs: {why}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sizes_give_messages_and_bytes() {
        let cost = Cost::of([1064.0, 1000.0 + SIZES[1] as f64]);
        assert_eq!((cost.message_ns.round(), cost.byte_ns), (1000.0, 1.0));
        assert_eq!(cost.seconds(2_000_000, 0), cost.message_ns / 1e3);
        assert_eq!(Cost::of([5.0, 4.0]), Cost { message_ns: 5.0, byte_ns: 0.0 });
    }

    #[test]
    fn a_message_over_tcp_costs_something() {
        let cost = here().unwrap();
        assert!(cost.message_ns > 100.0 && cost.byte_ns < 100.0, "{cost:?}");
    }
}
