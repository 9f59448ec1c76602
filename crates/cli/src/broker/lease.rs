//! The bar as the broker looks after it: that this machine lives, and what has been left by
//! processes and machines that do not.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use dibs::ivshmem::{Bar, GUESTS, Member};
use smc::bar::{self, Unavailable};

/// As long as two brokers of one machine need to notice each other.
const WATCH: Duration = Duration::from_millis(2500);
/// Between two looks at a bar that is short, however many call.
const SELDOM: Duration = Duration::from_millis(10);

/// What another machine last said, and when that was new here.
#[derive(Clone, Copy)]
struct Seen {
    id: u64,
    beat: u64,
    at: Instant,
}

/// Our place in the bar.
pub struct Lease {
    bar: Bar,
    file: OwnedFd,
    guest: u32,
    id: u64,
    beats: u64,
    /// When it was last looked at what the dead have left.
    looked: Instant,
    others: Vec<Option<Seen>>,
    /// After how long a silent machine counts as gone.
    time: Duration,
    /// Machines count too whose broker has left word that they live.
    resting_too: bool,
}

/// Why there is no bar, for who can do something about it.
fn refusal(path: Option<&str>, why: Unavailable) -> anyhow::Error {
    match (why, path) {
        (Unavailable::Open(errno), Some(path)) => {
            let error = std::io::Error::from_raw_os_error(errno);
            anyhow!("cannot open {path}: {error}; a bar is the file resource2 of an ivshmem device")
        }
        (Unavailable::NoDevice, _) => {
            anyhow!(
                "{why}: add an ivshmem device to this machine (doc/virtual-machines.md), or name a bar with --ivshmem"
            )
        }
        _ => anyhow!("{why}"),
    }
}

impl Lease {
    /// `path` is that of the bar, if it was named.
    pub fn take(path: Option<&str>, time: Duration, resting_too: bool) -> Result<Lease> {
        let fd = bar::open().map_err(|why| refusal(path, why))?;
        // SAFETY: just opened, and nobody else's.
        #[expect(unsafe_code, reason = "the library hands out numbers")]
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let bar = Bar::open(file.as_raw_fd(), true)
            .map_err(|why| anyhow!("the bar cannot be used: {why}"))?;
        let id = bar::guest_id();
        if let Some(guest) = bar.find_guest(id) {
            let beat = || bar.pulse(guest).map(|(_, beat, _)| beat);
            let before = beat();
            if bar.pulse(guest).is_some_and(|(_, _, rests)| !rests) {
                sleep(WATCH);
            }
            if beat() != before {
                bail!(
                    "a broker runs for this machine already, or another machine is a copy of this one"
                );
            }
        }
        let guest = bar.enter_guest(id).context("the bar has no place for another machine")?;
        let beats = bar.beat(guest) + 1;
        let (looked, others) = (Instant::now(), vec![None; GUESTS as usize]);
        Ok(Lease { bar, file, guest, id, beats, looked, others, time, resting_too })
    }

    pub fn bar(&self) -> &Bar {
        &self.bar
    }

    /// Says that this machine lives, and frees what others have left. False if the place is not
    /// ours any more.
    pub fn beat(&mut self) -> bool {
        let alone = self
            .bar
            .pulse(self.guest)
            .is_some_and(|(id, beat, _)| (id, beat) == (self.id, self.beats));
        if !alone {
            return false;
        }
        self.beats = self.bar.beat(self.guest) + 1;
        let silent = self.reclaim();
        for guest in silent {
            if let (Some((id, ..)), false) =
                (self.bar.pulse(guest), self.bar.members().any(|(_, of)| of == guest))
            {
                self.bar.leave_guest(guest, id);
            }
        }
        true
    }

    /// For somebody who is about to need room. What the dead of two machines had is free once both
    /// have looked.
    pub fn make_room(&mut self) {
        if self.bar.is_short() && self.looked.elapsed() > SELDOM {
            self.reclaim();
        }
    }

    /// Frees what the dead have left; the machines that are silent.
    fn reclaim(&mut self) -> Vec<u32> {
        let silent: Vec<u32> = (0..GUESTS).filter(|&guest| self.is_silent(guest)).collect();
        self.bar.reclaim(|id| self.is_dead(id, &silent));
        self.looked = Instant::now();
        silent
    }

    /// Of this machine the kernel knows who lives, of others only their silence is known.
    fn is_dead(&self, member: u64, silent: &[u32]) -> bool {
        match self.bar.guest_of(member) {
            Some(guest) if guest == self.guest => {
                !bar::is_held(self.file.as_raw_fd(), Member::index(member))
            }
            // A machine that is not there has no processes.
            Some(guest) => silent.contains(&guest) || self.bar.pulse(guest).is_none(),
            None => true,
        }
    }

    fn is_silent(&mut self, guest: u32) -> bool {
        let Some(place) = self.others.get_mut(guest as usize).filter(|_| guest != self.guest)
        else {
            return false;
        };
        let Some((id, beat, rests)) = self.bar.pulse(guest) else {
            *place = None;
            return false;
        };
        let seen = place.get_or_insert(Seen { id, beat, at: Instant::now() });
        if (seen.id, seen.beat) != (id, beat) {
            *seen = Seen { id, beat, at: Instant::now() };
        }
        (!rests || self.resting_too) && seen.at.elapsed() >= self.time
    }

    /// The machine goes on without us: its processes must not be taken for dead.
    pub fn end(&mut self) {
        let own = |id| self.bar.guest_of(id) == Some(self.guest);
        self.bar.reclaim(|id| own(id) && self.is_dead(id, &[]));
        if self.bar.members().any(|(_, of)| of == self.guest) {
            self.bar.rest(self.guest);
        } else {
            self.bar.leave_guest(self.guest, self.id);
        }
    }
}
