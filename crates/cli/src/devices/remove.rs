//! `shortwire devices --remove`: a device goes away while programs run.
//!
//! The one thing that is written to a table of another process is the word that says so, and the
//! mode of the file it stands in, which proves it. A program finds it at its next look at a
//! connection over that device; to make it look, the receiving side of its sockets is shut, which
//! wakes whoever sleeps on them and tells the peer nothing. Ending the connections is the library's
//! work, as it is what the peer is told.

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use connections::{Program, Table, descriptor_of, snapshot};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use smc::conn::Conn;
use smc::kind::Kind;

use crate::run::Device;
use crate::tell::{names, tell};

/// How often connections are looked at, and how long apart. One that is being upgraded meanwhile is
/// met by a later look.
const LOOKS: u32 = 60;
const APART: Duration = Duration::from_millis(50);

pub fn run(device: Device, pid: Option<u32>) -> Result<ExitCode> {
    let kind = match device {
        Device::Loopback => Kind::Loopback,
        Device::Ism => Kind::Ism,
        Device::Ivshmem => Kind::Ivshmem,
        Device::Verbs => Kind::Verbs,
    };
    let wanted = |table: &Table| {
        pid.is_none_or(|pid| table.programs.iter().any(|program| program.pid == pid))
    };
    let tables: Vec<Table> = snapshot(|_| true).tables.into_iter().filter(&wanted).collect();
    match pid {
        Some(pid) => {
            ensure!(!tables.is_empty(), "process {pid} has no connections under `shortwire run`")
        }
        None => ensure!(!tables.is_empty(), "no program under `shortwire run` has connections"),
    }
    for table in &tables {
        let names = names(table);
        tell(table, table.removed | kind.bit())
            .with_context(|| format!("cannot take {} from {names}", kind.name()))?;
        terminal::outln!("{} is gone from {names}", kind.name())?;
    }
    for look in 0..LOOKS {
        if look > 0 {
            sleep(APART);
        }
        let now = snapshot(|_| true).tables;
        let (mut left, mut failed) = (0, None);
        for table in now.iter().filter(|table| wanted(table) && table.lost(kind)) {
            for conn in table.live().filter(|conn| goes_on(conn, kind)) {
                left += 1;
                failed = wake(&table.programs, conn).err().or(failed);
            }
        }
        match failed {
            _ if left == 0 && look > 0 => return Ok(ExitCode::SUCCESS),
            Some(error) if look + 1 == LOOKS => {
                eprintln!("{left} connections end when they are used next: {error:#}");
            }
            None if look + 1 == LOOKS => {
                eprintln!("{left} connections end when they are used next")
            }
            _ => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn goes_on(conn: &Conn, kind: Kind) -> bool {
    let ph = conn.phase();
    let over = ph.is_broken() || ph.is_closed() || ph.is_dead();
    conn.needs_device() && !over && conn.kind() == kind
}

/// Makes whoever sleeps on the connection look at it.
fn wake(programs: &[Program], conn: &Conn) -> Result<()> {
    let inode = u64::from(conn.identity.inode.load(Relaxed));
    for program in programs {
        let Some(number) = descriptor_of(program.pid, inode) else { continue };
        let pid = Pid::from_raw(program.pid as i32).context("no process")?;
        let process = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
        let socket =
            pidfd_getfd(process, number, PidfdGetfdFlags::empty()).context("pidfd_getfd")?;
        shutdown(socket, Shutdown::Read).context("shutdown")?;
        return Ok(());
    }
    Ok(())
}
