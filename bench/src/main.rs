//! `shortwire-peers`: a pair of ordinary socket programs, to be measured with and without
//! `shortwire run`.
//!
//! They use the standard library's sockets (and epoll through libc, as other programs do), check
//! every byte they receive, and know nothing of Shortwire. `bare-ring` is the limit to compare
//! with: the same work by two processes that spin on a ring in shared memory, with no socket at
//! all.

mod address;
mod args;
mod bare_ring;
mod busy;
mod epoll;
mod failure;
mod figures;
mod histogram;
mod idle;
mod pattern;
mod pingpong;
mod preamble;
mod rr;
mod short;
mod stream;

use std::process::ExitCode;

use args::{Args, Command, Mode};
use clap::Parser;
use failure::Result;
use figures::Figures;

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Server(server) => serve(&server),
        Command::Client(client) => run_client(&client).map(|figures| figures.print(client.json)),
        Command::Idle(idle) => idle::run(&idle),
        Command::Busy(busy) => busy::run(&busy),
        Command::BareRing(ring) => bare_ring::run(&ring).map(|figures| figures.print(ring.json)),
        Command::BareRingPeer(peer) => bare_ring::run_peer(&peer),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("shortwire-peers: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &args::Server) -> Result<()> {
    let listener = args.listen.listen()?;
    println!("{}", listener.chosen()?);
    match args.mode {
        Mode::Pingpong => address::serve(&listener, args.accept, pingpong::serve),
        Mode::Stream => address::serve(&listener, args.accept, stream::serve),
        Mode::Rr => rr::serve(&listener, args.accept, Mode::Rr),
        Mode::Short => rr::serve(&listener, args.accept, Mode::Short),
    }
}

fn run_client(args: &args::Client) -> Result<Figures> {
    match args.mode {
        Mode::Pingpong => pingpong::run(args),
        Mode::Stream => stream::run(args),
        Mode::Rr => rr::run(args),
        Mode::Short => short::run(args),
    }
}
