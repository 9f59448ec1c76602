//! The server: does what each order says, whatever transport it came over.

use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::measure::{Case, DONE, Kind, ORDER, fill};
use super::pump::{self, Load};
use super::wire::{Listener, Stream, Wire};
use super::{Rstream, Transport};
use crate::sys;

/// What one receive takes at most: a receiver of small messages takes what is there.
const CHUNK: usize = 64 << 10;
const PAGE: usize = 4096;
/// How long a client may take to connect its further streams.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(args: &Rstream) -> Result<()> {
    let place = || format!("cannot listen on {} port {}", args.bind, args.port);
    let listener = Listener::bind((args.bind.as_str(), args.port), args.transport, args)
        .with_context(place)?;
    // The parent of a server beside it reads this line.
    terminal::outln!("listening on {} port {}", args.bind, listener.port()?)?;
    std::io::stdout().flush()?;
    loop {
        let wire = listener.accept(args.mode)?;
        if args.fork {
            match sys::fork()? {
                None => {
                    drop(listener);
                    return serve(args, wire);
                }
                Some(child) if args.beside.is_some() => {
                    drop(wire);
                    return child.wait();
                }
                // Its end is noticed by the kernel, which nobody asks.
                Some(_) => continue,
            }
        }
        let outcome = serve(args, wire);
        if args.beside.is_some() {
            return outcome;
        }
        if let Err(e) = outcome {
            eprintln!("shortwire rstream: {e:#}; waiting for the next client");
        }
    }
}

/// Until the client ends.
fn serve(args: &Rstream, first: Wire) -> Result<()> {
    let mut wires = vec![first];
    let mut buffer = Vec::new();
    loop {
        let wire = &mut wires[0];
        let mut order = [0; ORDER];
        // Asleep: a server that is not measured must not take processor time.
        wire.wait(false)?;
        match wire.recv(&mut order) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e).context("cannot read the next order"),
        }
        let (case, count) = Case::decode(&order)?;
        if case.is_pumped() {
            accept_more(args, &mut wires, case.streams.into())?;
            pumped(&mut wires[..usize::from(case.streams)], &case, count)?;
            continue;
        }
        buffer.clear();
        buffer.resize(case.size.max(CHUNK) + PAGE, 0);
        // Whole pages, as memory for RDMA should be.
        let skip = buffer.as_ptr().align_offset(PAGE);
        let buffer = &mut buffer[skip..];
        match case.kind {
            Kind::Latency => echo(wire, &case, count, buffer),
            Kind::Bandwidth | Kind::Both | Kind::Rate => swallow(wire, &case, count, buffer),
            Kind::Direct => be_written(wire, &case, count, buffer),
        }?;
    }
}

/// By a port of their own: at the other one the next client may wait.
fn accept_more(args: &Rstream, wires: &mut Vec<Wire>, streams: usize) -> Result<()> {
    if wires.len() >= streams {
        return Ok(());
    }
    let transport = match wires[0].stream {
        Stream::Rsocket(_) => Transport::Rsocket,
        Stream::Tcp(_) => Transport::Tcp,
    };
    let listener = Listener::bind((wires[0].here()?, 0), transport, args)
        .context("cannot listen for further streams")?;
    wires[0].send(&listener.port()?.to_be_bytes())?;
    while wires.len() < streams {
        let wire = listener.accept_within(PATIENCE, args.mode);
        wires.push(wire.context("the client's further streams did not come")?);
    }
    Ok(())
}

fn pumped(wires: &mut [Wire], case: &Case, count: u64) -> Result<()> {
    wires[0].send(&[DONE])?;
    let Load { out: into, into: out } = case.load(count);
    let good = pump::run(wires, case, Load { out, into })?;
    answer(&mut wires[0], good)
}

fn echo(wire: &mut Wire, case: &Case, count: u64, buffer: &mut [u8]) -> Result<()> {
    wire.send(&[DONE])?;
    for _ in 0..count {
        wire.recv(&mut buffer[..case.size])?;
        wire.send(&buffer[..case.size])?;
    }
    Ok(())
}

fn swallow(wire: &mut Wire, case: &Case, count: u64, buffer: &mut [u8]) -> Result<()> {
    wire.send(&[DONE])?;
    if case.verify {
        let mut expected = vec![0; case.size];
        let mut good = true;
        for n in 0..count {
            wire.recv(&mut buffer[..case.size])?;
            fill(&mut expected, n);
            good &= buffer[..case.size] == expected[..];
        }
        return answer(wire, good);
    }
    let mut left = count * case.size as u64;
    while left != 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        left -= wire.recv_some(&mut buffer[..most])? as u64;
    }
    answer(wire, true)
}

fn be_written(wire: &mut Wire, case: &Case, count: u64, buffer: &mut [u8]) -> Result<()> {
    let memory = &mut buffer[..case.size];
    let mut expected = vec![0; case.size];
    map(wire, memory)?;
    wire.send(&[DONE])?;
    let looks = if case.verify { count } else { 1 };
    for n in 0..looks {
        let mut done = [0];
        wire.recv(&mut done)?;
        fill(&mut expected, n);
        answer(wire, memory[..] == expected[..])?;
    }
    let Stream::Rsocket(stream) = &wire.stream else { bail!("TCP has no direct writes") };
    Ok(stream.unmap(memory.as_mut_ptr(), memory.len())?)
}

fn map(wire: &Wire, memory: &mut [u8]) -> Result<()> {
    let Stream::Rsocket(stream) = &wire.stream else {
        bail!("the client asks for direct writes over TCP")
    };
    sys::map(stream, memory).context("cannot map memory for direct writes")
}

fn answer(wire: &mut Wire, good: bool) -> Result<()> {
    wire.send(&[if good { DONE } else { 0 }])?;
    ensure!(good, "verification failed: a message arrived changed");
    Ok(())
}
