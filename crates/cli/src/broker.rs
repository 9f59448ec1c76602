//! `shortwire broker`: where the ends of connections between virtual machines meet that share a
//! bar.
//!
//! One thread, which looks after all calls (`broker/call.rs`) and, once a second, after the bar
//! (`broker/lease.rs`).

mod call;
mod lease;

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, bind, ipproto, listen, socket_with, sockopt};
use smc::bar;
use terminal::signals;

use call::{Call, Turn};
use lease::Lease;

/// Calls at a time, and of one machine; and those that have not proved themselves.
const CALLS: usize = 200;
const CALLS_OF_ONE: usize = 128;
const STRANGERS: usize = 64;
const STRANGERS_OF_ONE: usize = 32;
/// How often the bar is looked at.
const BEAT: Duration = Duration::from_secs(1);
/// How often a call is looked at that waits for somebody to listen.
const LOOK: Duration = Duration::from_millis(10);

#[derive(clap::Args)]
#[command(about = "Let programs meet those in other virtual machines")]
#[command(
    long_about = "Runs in each of several virtual machines that share a bar (an ivshmem device). It prepares a new bar, brings the two \
ends of a TCP connection between two of the machines together, says in the bar that this machine lives, and frees there what ended programs \
and machines have left. Connections stay TCP where no broker runs. Ends on SIGINT and SIGTERM; connections that share memory already go on. \
See doc/virtual-machines.md, also for whom this trusts."
)]
#[command(after_help = "Examples:
  shortwire broker  with the only ivshmem device, at port 7480
  shortwire broker --listen 10.8.0.2:7480 \\
      --ivshmem /sys/bus/pci/devices/0000:00:04.0/resource2")]
pub struct Broker {
    /// Where brokers and programs of other machines call; all have to use one port
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:7480")]
    pub listen: std::net::SocketAddr,
    /// Bar of the ivshmem device, as for `run`
    #[arg(long, value_name = "PATH", env = "SHORTWIRE_IVSHMEM", hide_env_values = true, value_parser = crate::run::parse_ivshmem)]
    pub ivshmem: Option<String>,
    /// Seconds after which a machine that is silent counts as gone
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u32).range(5..=86_400))]
    #[arg(
        long_help = "Seconds after which a machine counts as gone whose broker has said nothing in the bar: what it had there is freed. A machine that is stopped for longer (a snapshot, a debugger) and then goes on may damage connections of others; a broker that is told to end leaves word that its machine lives."
    )]
    pub lease: u32,
    /// Count machines as gone, too, whose broker was told to end while programs used the bar
    #[arg(long)]
    pub resting_too: bool,
}

pub fn run(args: &Broker) -> Result<ExitCode> {
    if let Some(path) = &args.ivshmem {
        bar::set(std::ffi::OsStr::new(path).as_bytes());
    }
    let mut lease = Lease::take(
        args.ivshmem.as_deref(),
        Duration::from_secs(args.lease.into()),
        args.resting_too,
    )?;
    let listener =
        listener(args.listen).with_context(|| format!("cannot listen at {}", args.listen))?;
    signals::catch_interrupts();
    terminal::outln!(
        "broker: {} bytes shared, listening at {}",
        lease.bar().size(),
        listener.local_addr()?
    )?;
    std::io::stdout().flush()?;

    let mut calls: Vec<Call> = Vec::new();
    let mut next_beat = Instant::now();
    loop {
        if Instant::now() >= next_beat {
            if !lease.beat() {
                bail!("another broker or machine has this machine's place in the bar");
            }
            next_beat = Instant::now() + BEAT;
        }
        let wait = next_beat.saturating_duration_since(Instant::now());
        let wait = if calls.iter().any(Call::waits) { wait.min(LOOK) } else { wait };
        wait_for(&listener, &calls, wait)?;
        if signals::interrupted() {
            lease.end();
            return Ok(ExitCode::SUCCESS);
        }
        accept(&listener, &mut calls);
        calls.retain_mut(|call| matches!(call.go_on(&mut lease), Turn::Wait));
    }
}

/// IPv4 too, where the address is that of IPv6 for all.
fn listener(address: SocketAddr) -> Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
    let socket = match socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)) {
        // A kernel without IPv6.
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            return listener(SocketAddr::new(IpAddr::V4([0; 4].into()), address.port()));
        }
        socket => socket?,
    };
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, &address)?;
    listen(&socket, 128)?;
    Ok(socket.into())
}

/// Sleeps until there may be something to do.
fn wait_for(listener: &TcpListener, calls: &[Call], time: Duration) -> Result<()> {
    let fds = [listener.as_fd()].into_iter().chain(calls.iter().map(Call::awaited));
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    match poll(&mut fds, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e).context("poll"),
    }
}

fn accept(listener: &TcpListener, calls: &mut Vec<Call>) {
    loop {
        match listener.accept() {
            // More than that are sent away: who floods us waits for others like everybody else.
            Ok((stream, from)) => {
                let count =
                    |by: &dyn Fn(&Call) -> bool| calls.iter().filter(|call| by(call)).count();
                let [all, strangers] = [calls.len(), count(&Call::is_stranger)];
                let [of_one, strangers_of_one] = [
                    count(&|call| call.from() == from.ip()),
                    count(&|call| call.from() == from.ip() && call.is_stranger()),
                ];
                let room = all < CALLS && of_one < CALLS_OF_ONE;
                if room && strangers < STRANGERS && strangers_of_one < STRANGERS_OF_ONE {
                    calls.extend(Call::new(stream, from.ip()));
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // Also without descriptors: the next turn comes with the next beat.
            Err(_) => return,
        }
    }
}
