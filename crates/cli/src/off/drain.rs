//! `--drain`: waits until programs have taken their connections back to TCP, and wakes those that
//! sleep.
//!
//! Only a process itself can take a connection back. One whose threads sleep in epoll is woken by an
//! event in its sets: a descriptor of ours is added to them for a moment, with the data of a bell,
//! which the library takes for one and looks. Only sets are touched in which the library has
//! registrations of its own: of those it sorts out every answer.

use std::collections::BTreeMap;
use std::fs;
use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use connections::{Table, snapshot};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use smc::conn::Conn;
use smc::group::bells::{BELL, REGISTRATION, TAG};

use crate::tell::names;

/// Looks are so far apart.
const APART: Duration = Duration::from_millis(100);
/// What is left is told so often.
const TOLD: Duration = Duration::from_secs(1);

/// How many ends of connections are in shared memory.
pub fn count(wanted: impl Fn(&Table) -> bool) -> usize {
    let tables = snapshot(|_| true).tables.into_iter().filter(wanted);
    tables.map(|table| through_memory(&table).count()).sum()
}

/// Until none is left, or the time is over; how many are left. So many were there before programs
/// were told: a busy one has gone back when it is first looked at.
pub fn run(wait: Duration, before: usize, wanted: impl Fn(&Table) -> bool) -> Result<usize> {
    let begun = Instant::now();
    let mut told = begun;
    let mut most = before;
    loop {
        let tables: Vec<Table> = snapshot(|_| true).tables.into_iter().filter(&wanted).collect();
        let left: usize = tables.iter().map(|table| through_memory(table).count()).sum();
        most = most.max(left);
        if left == 0 {
            terminal::outln!(
                "No connection is left in shared memory ({most} were: they are back on TCP, or closed)."
            )?;
            return Ok(0);
        }
        if begun.elapsed() >= wait {
            tell(&tables)?;
            return Ok(left);
        }
        if told.elapsed() >= TOLD && std::io::stderr().is_terminal() {
            told = Instant::now();
            eprintln!("{left} of {most} connections are left");
        }
        let asleep = tables.iter().filter(|table| through_memory(table).next().is_some());
        for program in asleep.flat_map(|table| &table.programs) {
            // A process that has just ended, or may not be touched, goes back when it wakes.
            let _ = wake(program.pid);
        }
        sleep(APART.min(wait.saturating_sub(begun.elapsed())));
    }
}

fn through_memory(table: &Table) -> impl Iterator<Item = &Conn> {
    table.live().filter(|conn| conn.needs_device() && !conn.is_back())
}

fn tell(tables: &[Table]) -> Result<()> {
    let mut left: BTreeMap<String, usize> = BTreeMap::new();
    for table in tables {
        *left.entry(names(table)).or_default() += through_memory(table).count();
    }
    for (names, count) in left.into_iter().filter(|(_, count)| *count > 0) {
        let s = if count == 1 { "" } else { "s" };
        terminal::outln!("{count} connection{s} of {names}: back on TCP when used next")?;
    }
    Ok(())
}

/// Makes the threads of a process that sleep in epoll look at their connections.
fn wake(pid: u32) -> Result<()> {
    let sets = sets_of(pid);
    if sets.is_empty() {
        return Ok(());
    }
    let process =
        pidfd_open(Pid::from_raw(pid as i32).context("no process")?, PidfdFlags::empty())?;
    let event = eventfd(1, EventfdFlags::CLOEXEC)?;
    for set in sets {
        if let Ok(set) = pidfd_getfd(&process, set, PidfdGetfdFlags::empty()) {
            let _ = ring(&set, &event);
        }
    }
    Ok(())
}

/// The event is there at once, and goes with the descriptor when that is closed: not before every
/// sleeper has been woken, which is done when the call returns.
fn ring(set: &OwnedFd, event: &OwnedFd) -> Result<()> {
    // A number and a place that no bell has.
    let data = EventData::new_u64(BELL | 0xff);
    epoll::add(set, event.as_fd(), data, EventFlags::IN | EventFlags::ET)?;
    sleep(Duration::from_millis(1));
    Ok(epoll::delete(set, event.as_fd())?)
}

/// The epoll sets of a process in which the library has registrations.
fn sets_of(pid: u32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sets = entries.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == "anon_inode:[eventpoll]")
    });
    let numbers = sets.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|fd: &i32| {
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
            info.lines().any(is_ours)
        })
        .collect()
}

/// `tfd: 5 events: 19 data: b7e1516300000003 pos:0 ino:1 sdev:8`
fn is_ours(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let data = words.position(|word| word == "data:").and_then(|_| words.next());
    let data = data.and_then(|data| u64::from_str_radix(data, 16).ok()).unwrap_or(0);
    [BELL, REGISTRATION].contains(&(data & TAG))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_known_by_their_data() {
        let line = |data: u64| {
            format!("tfd:        5 events:       19 data: {data:16x}  pos:0 ino:1 sdev:8")
        };
        assert!(is_ours(&line(REGISTRATION | 3)) && is_ours(&line(BELL | 7 << 8)));
        assert!(!is_ours(&line(3)) && !is_ours(&line(u64::MAX)) && !is_ours("pos: 0"));
    }
}
