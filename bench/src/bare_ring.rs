//! The limit: what two processes reach when they share memory and spin, with no socket, no system
//! call and no sleep. The data is made and checked exactly as over sockets.
#![allow(unsafe_code)]

mod ring;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command};
use std::time::Instant;

use ring::Rings;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::args::{BareRing, BareRingPeer, Mode, Span};
use crate::failure::{Doing, Failure, Result};
use crate::figures::Figures;
use crate::histogram::Histogram;
use crate::pattern::{Pattern, message_start};

/// Bytes published at a time in a stream: measured best for a ring of 1 MiB.
const PUBLISH: usize = 16 << 10;

pub fn run(args: &BareRing) -> Result<Figures> {
    if !args.ring.is_power_of_two() || args.ring < 4096 {
        return Err(Failure::Protocol("--ring must be a power of two of at least 4096".into()));
    }
    // Without CLOEXEC: the peer inherits it.
    let memory = memfd_create("shortwire-bare-ring", MemfdFlags::empty())
        .doing("cannot make shared memory")?;
    ftruncate(&memory, Rings::bytes(args.ring)).doing("cannot size the shared memory")?;
    let rings = Rings::map(&memory, args.ring).doing("cannot map the shared memory")?;
    let mut peer = spawn_peer(args, memory.as_raw_fd())?;
    pin(args.cpus.map(|(_, second)| second))?;
    let outcome = match args.mode {
        Mode::Pingpong => pingpong(args, &rings, &mut peer),
        Mode::Stream => stream(args, &rings, &mut peer),
        Mode::Rr | Mode::Short => {
            Err(Failure::Protocol("the bare ring has only the modes pingpong and stream".into()))
        }
    };
    rings.finish();
    let status = peer.wait().doing("cannot wait for the other process")?;
    let figures = outcome?;
    if status.success() {
        Ok(figures)
    } else {
        Err(Failure::Protocol(format!("the other process failed: {status}")))
    }
}

fn spawn_peer(args: &BareRing, fd: i32) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe().doing("cannot find this program")?);
    command.args(["bare-ring-peer", "--mode", args.mode.name(), "--fd", &fd.to_string()]);
    command.args(["--ring", &args.ring.to_string(), "--size", &args.size().to_string()]);
    if let Some((first, _)) = args.cpus {
        command.args(["--cpu", &first.to_string()]);
    }
    command.spawn().doing("cannot start the other process")
}

fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).doing(format!("cannot run on cpu {cpu}"))
}

fn pingpong(args: &BareRing, rings: &Rings, peer: &mut Child) -> Result<Figures> {
    let size = args.size();
    let (requests, responses) = (Pattern::request(size), Pattern::response(size));
    let mut buffer = vec![0; size];
    let mut histogram = Histogram::new();
    // The first exchange waits for the other process to start: not part of the figure.
    let mut span = Span::new(args.seconds);
    let mut sent_at = span.began;
    for counter in 0.. {
        let at = message_start(0, counter, size);
        let sent = rings.there.push(requests.slice(at, size), PUBLISH, || gone(peer));
        if !sent || !rings.back.pop(&mut buffer, || gone(peer)) {
            return Err(Failure::Protocol("the other process ended early".into()));
        }
        responses
            .check(at, &buffer)
            .map_err(|bad| Failure::WrongData { offset: bad - at, what: "response" })?;
        let now = Instant::now();
        if counter == 0 {
            span = Span::new(args.seconds);
            sent_at = span.began;
            continue;
        }
        histogram.record((now - sent_at).as_nanos() as u64);
        sent_at = now;
        if now >= span.deadline {
            break;
        }
    }
    let messages = histogram.count();
    let seconds = (sent_at - span.began).as_secs_f64();
    Ok(Figures::new("bare-ring pingpong", size, 1, seconds, messages, messages * size as u64 * 2)
        .with_latency(&histogram))
}

fn stream(args: &BareRing, rings: &Rings, peer: &mut Child) -> Result<Figures> {
    let size = args.size();
    let pattern = Pattern::request(size);
    let mut hello = [0; 1];
    if !rings.back.pop(&mut hello, || gone(peer)) {
        return Err(Failure::Protocol("the other process ended early".into()));
    }
    let span = Span::new(args.seconds);
    let (mut sent, mut messages) = (0u64, 0u64);
    while Instant::now() < span.deadline {
        if !rings.there.push(pattern.slice(sent, size), PUBLISH, || gone(peer)) {
            return Err(Failure::Protocol("the other process ended early".into()));
        }
        sent += size as u64;
        messages += 1;
    }
    rings.there.wait_until_empty(|| gone(peer));
    let seconds = span.began.elapsed().as_secs_f64();
    Ok(Figures::new("bare-ring stream", size, 1, seconds, messages, sent))
}

fn gone(peer: &mut Child) -> bool {
    !matches!(peer.try_wait(), Ok(None))
}

/// The other process: echoes or swallows until it is told to stop or its parent is gone.
pub fn run_peer(args: &BareRingPeer) -> Result<()> {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    pin(args.cpu)?;
    if args.fd < 3 {
        return Err(Failure::Protocol(
            "this subcommand is for shortwire-peers itself; use bare-ring".into(),
        ));
    }
    // SAFETY: the parent left this descriptor open for us alone; nothing else in this process uses
    // it.
    let memory = unsafe { OwnedFd::from_raw_fd(args.fd) };
    let rings = Rings::map(&memory, args.ring).doing("cannot map the shared memory")?;
    let parent = getppid();
    let stop = || rings.finished() || getppid() != parent;
    let (requests, responses) = (Pattern::request(args.size), Pattern::response(args.size));
    let mut buffer = vec![0; args.size];
    if args.mode == Mode::Stream {
        rings.back.push(b"!", PUBLISH, stop);
    }
    for counter in 0.. {
        if !rings.there.pop(&mut buffer, stop) {
            break;
        }
        let at = match args.mode {
            Mode::Stream => counter * args.size as u64,
            _ => message_start(0, counter, args.size),
        };
        requests
            .check(at, &buffer)
            .map_err(|bad| Failure::WrongData { offset: bad - at, what: "bare ring" })?;
        if args.mode != Mode::Stream
            && !rings.back.push(responses.slice(at, args.size), PUBLISH, stop)
        {
            break;
        }
    }
    Ok(())
}
