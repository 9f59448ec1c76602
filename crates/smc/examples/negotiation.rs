//! What the handshake of one connection costs, at both ends together: from the first step of either
//! to the sends of both on rings, by the system calls that two processes would make, but without
//! waiting for each other. Prints medians.
//!
//! `cargo run --release -p smc --example negotiation`

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use common::{End, pair, upgrade};
use smc::config::CONFIG;

const ROUNDS: usize = 300;

/// Microseconds of one upgrade of a connection that stands.
fn one() -> (f64, [End; 2]) {
    let (server, client) = pair();
    let start = Instant::now();
    upgrade(&server, &client);
    (start.elapsed().as_secs_f64() * 1e6, [server, client])
}

fn tell(what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!(
        "{what:<28} {:8.1} us  p10 {:8.1}  p90 {:8.1}  n {}",
        at(50),
        at(10),
        at(90),
        times.len()
    );
}

fn main() {
    // As connections find it that have a process to themselves: the buffers' own size has its row
    // in other benches.
    CONFIG.dmb_size.store(256 << 10, Relaxed);
    for device in ["loopback", "ism"] {
        smc::setting::set(b"PREFER", device.as_bytes());
        let first = (0..ROUNDS).map(|_| {
            // As in a fresh process: no group that could be joined.
            smc::after_fork_child();
            one().0
        });
        tell(&format!("{device}, first contact"), first.collect());
        // Buffers of their own, in the arenas of the group: none that was in use before.
        let kept: Vec<_> = (0..ROUNDS).map(|_| one()).collect();
        tell(
            &format!("{device}, later, new buffers"),
            kept.iter().skip(1).map(|(time, _)| *time).collect(),
        );
        drop(kept);
        tell(&format!("{device}, later, used buffers"), (0..ROUNDS).map(|_| one().0).collect());
    }
}
