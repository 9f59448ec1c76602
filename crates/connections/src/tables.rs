//! Reads the tables of the library.
//!
//! A table belongs to the process that is looked at, which may be hostile or in the middle of a
//! change: it is read (not mapped, so that it cannot shrink under us), taken for plain numbers, and
//! only shown.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::fs::{SeekFrom, seek};
use serde::{Deserialize, Serialize};
use smc::census::{ROWS, Row};
use smc::conn::Conn;
use smc::inet::Addr;
use smc::kind::Kind;
use smc::stats::Counts;
use smc::stats::{BUCKETS, Direction, Stats};
use smc::table::{CAPACITY, GROUPS_AT, Header, MAGIC, SLOTS_AT, VERSION};

use super::processes::{FoundFile, FoundTable, Program};
use crate::numbers;

pub struct Table {
    pub programs: Vec<Program>,
    /// Names the memory as long as a process holds it.
    pub identity: String,
    /// Who made it, by the kernel's word.
    pub uid: u32,
    pub totals: Totals,
    /// How much of them is among what is kept of ended programs, too.
    pub given: Totals,
    /// Devices that were taken away, a bit for each, and what else was (`Header::removed`).
    pub removed: u32,
    /// What their library was built from, 0 if that is not known.
    pub build: u64,
    /// The file that says so.
    first: Option<FoundFile>,
    found: FoundTable,
    slots: Vec<Conn>,
    rows: Box<[Row]>,
}

/// The files of a table, kept open: what its programs counted can be read behind their end, however
/// they ended.
pub struct Held {
    found: FoundTable,
    _open: Vec<File>,
}

impl Held {
    /// Everything that was counted. None if it cannot be read.
    pub fn totals(&self) -> Option<Totals> {
        self.counted().map(|(totals, _)| totals)
    }

    /// The same, and how much of it is among what is kept of ended programs, too.
    pub fn counted(&self) -> Option<(Totals, Totals)> {
        read(&self.found).ok().map(|table| (table.totals, table.given))
    }
}

/// Files that cannot be read (any more) are left out. Without the first, which any of the family
/// can spoil, there are no counters and no link groups.
pub fn read(found: &FoundTable) -> Result<Table> {
    let (mut table, mut slots, mut why) = (None, None, None);
    for file in &found.files {
        match read_file(found, file) {
            Ok((first, more)) => {
                table = table.or(first);
                slots.get_or_insert_with(Vec::new).extend(more);
            }
            Err(error) => why = Some(error),
        }
    }
    let Some(slots) = slots else {
        return Err(why.unwrap_or_else(|| anyhow!("the table has no files")));
    };
    let mut table = table.unwrap_or_else(|| Table {
        programs: found.programs.clone(),
        identity: String::new(),
        uid: 0,
        totals: Totals::default(),
        given: Totals::default(),
        removed: 0,
        build: 0,
        first: None,
        found: found.clone(),
        slots: Vec::new(),
        rows: Box::default(),
    });
    table.slots = slots;
    table.totals = table.live().fold(table.totals.clone(), Totals::with_living);
    Ok(table)
}

/// The slots of a file, and the table that it is the first file of, without its slots.
fn read_file(found: &FoundTable, at: &FoundFile) -> Result<(Option<Table>, Box<[Conn]>)> {
    let file = at.open(false).with_context(|| format!("cannot open {}", at.path.display()))?;
    let [earlier, header] = numbers::read_twice::<Header>(&file)?;
    let (earlier, header) = earlier.first().zip(header.first()).context("the table is empty")?;
    header.stats.is_behind(&earlier.stats);
    header.given.is_behind(&earlier.given);
    ensure!(header.magic.load(Relaxed) == MAGIC, "the table is not complete");
    ensure!(
        header.version.load(Relaxed) == VERSION
            && header.conn_size.load(Relaxed) as usize == size_of::<Conn>(),
        "the table is that of another version of Shortwire"
    );
    let used = header.high_water.load(Relaxed).min(CAPACITY) as usize;
    let slots: Box<[Conn]> = living(&file, used)?;
    if header.first.load(Relaxed) != 1 {
        return Ok((None, slots));
    }
    let rows = numbers::read(&file, GROUPS_AT as u64, ROWS)?;
    let table = Table {
        programs: found.programs.clone(),
        identity: format!("{}:{}", at.identity.0, at.identity.1),
        uid: file.metadata()?.uid(),
        totals: Totals::of(&header.stats),
        given: Totals::of(&header.given),
        removed: header.removed.load(Relaxed),
        build: header.build.load(Relaxed),
        first: Some(at.clone()),
        found: found.clone(),
        slots: Vec::new(),
        rows,
    };
    Ok((Some(table), slots))
}

/// The slots in use. A sparse file of a page can say that it has all of them: what was never
/// written is not read, and only what lives is kept.
fn living(file: &File, used: usize) -> Result<Box<[Conn]>> {
    const AT_ONCE: usize = 256;
    let (mut living, mut next) = (Vec::new(), 0);
    while next < used {
        let at = (SLOTS_AT + next * size_of::<Conn>()) as u64;
        let Ok(written) = seek(file, SeekFrom::Data(at)) else { break };
        next += (written - at) as usize / size_of::<Conn>();
        let count = AT_ONCE.min(used.saturating_sub(next));
        let at = (SLOTS_AT + next * size_of::<Conn>()) as u64;
        let part: Box<[Conn]> = numbers::read(file, at, count)?;
        let lives = |conn: &Conn| conn.identity.gen_.load(Relaxed) % 2 == 1;
        living.extend(part.into_iter().filter(lives));
        next += count.max(1);
    }
    Ok(living.into_boxed_slice())
}

impl Table {
    /// Opens its first file for writing; an error, as if there were none, if that is another one by
    /// now.
    pub fn open_to_write(&self) -> io::Result<File> {
        let first = self.first.as_ref().ok_or(io::ErrorKind::NotFound)?;
        first.open(true)
    }

    /// Keeps its files open.
    pub fn hold(&self) -> Held {
        let mut open = Vec::new();
        let mut found = FoundTable { files: Vec::new(), programs: self.programs.clone() };
        for file in &self.found.files {
            if let Ok(opened) = file.open(false) {
                let path = format!("/proc/self/fd/{}", opened.as_raw_fd()).into();
                found.files.push(FoundFile { identity: file.identity, path });
                open.push(opened);
            }
        }
        Held { found, _open: open }
    }

    /// The files that it has, as `hold` would keep them.
    pub fn files(&self) -> usize {
        self.found.files.len()
    }

    /// Whether its programs had this device taken away.
    pub fn lost(&self, kind: Kind) -> bool {
        self.removed & kind.bit() != 0
    }

    /// Link groups, and rows that are free.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The connections in use now.
    pub fn live(&self) -> impl Iterator<Item = &Conn> {
        self.slots.iter().filter(|conn| conn.identity.gen_.load(Relaxed) % 2 == 1)
    }
}

/// None before the library has looked it up.
pub fn address(address: &Addr) -> Option<SocketAddr> {
    let ip = match i32::from(address.family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*address.ip.first_chunk::<4>()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(address.ip)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, address.port))
}

/// The counters of one table or of several, with what living connections have counted so far.
#[derive(Clone, Default, Debug, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub client: u64,
    pub server: u64,
    pub handshake_errors: u64,
    pub fallback: u64,
    /// By reason code.
    pub reasons: Vec<(u32, u64)>,
    pub link_groups: u64,
    pub violations: u64,
    #[serde(default)]
    pub damaged: u64,
    pub rx: Flow,
    pub tx: Flow,
    pub cork: u64,
    pub nodelay: u64,
    pub splice: u64,
    pub urgent: u64,
    #[serde(default)]
    pub wakeups: Wakeups,
}

/// By doorbells, of those whose time can be told.
#[derive(Clone, Copy, Default, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wakeups {
    pub all: u64,
    /// Those that took longer than 5 ms.
    pub late: u64,
    pub longest_us: u64,
}

#[derive(Clone, Default, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    pub bytes: u64,
    pub calls: u64,
    pub full: u64,
    pub doorbells: u64,
    pub reuse: u64,
    pub alloc: u64,
    /// Requests and buffers up to 8, 16, 32 ... 1024 KiB, and above.
    pub sizes: [u64; BUCKETS],
    pub buffers: [u64; BUCKETS],
}

impl Totals {
    pub(crate) fn of(stats: &Stats) -> Totals {
        Totals {
            client: stats.client.load(Relaxed),
            server: stats.server.load(Relaxed),
            handshake_errors: stats.handshake_errors.load(Relaxed),
            fallback: stats.fallback.load(Relaxed),
            reasons: stats.by_reason(),
            link_groups: stats.link_groups.load(Relaxed),
            violations: stats.violations.load(Relaxed),
            damaged: stats.damaged.load(Relaxed),
            rx: Flow::of(&stats.rx),
            tx: Flow::of(&stats.tx),
            cork: stats.cork.load(Relaxed),
            nodelay: stats.nodelay.load(Relaxed),
            splice: stats.splice.load(Relaxed),
            urgent: stats.urgent.load(Relaxed),
            wakeups: Wakeups::of(&stats.wakeups),
        }
    }

    /// The library adds a connection's counts to the sums only when it ends.
    fn with_living(mut self, conn: &Conn) -> Totals {
        if conn.is_committed() {
            self.rx.add_counts(&conn.rx.counts);
            self.tx.add_counts(&conn.tx.counts);
            self.wakeups.add(Wakeups::of(&conn.wakeups));
        }
        self
    }

    pub fn add(&mut self, other: &Totals) {
        self.combine(other, u64::saturating_add);
        self.wakeups.add(other.wakeups);
        for &(reason, count) in &other.reasons {
            match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => self.reasons.push((reason, count)),
            }
        }
    }

    /// Counts only rise. A look at the very moment in which a connection ends may find what it counted
    /// neither there nor in the sums, or at both places; behind one that found more nothing falls.
    pub fn at_least(&mut self, earlier: &Totals) {
        self.combine(earlier, u64::max);
        self.wakeups.all = self.wakeups.all.max(earlier.wakeups.all);
        self.wakeups.late = self.wakeups.late.max(earlier.wakeups.late);
        for &(reason, count) in &earlier.reasons {
            match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, now)) => *now = count.max(*now),
                None => self.reasons.push((reason, count)),
            }
        }
    }

    /// What has happened since `earlier`.
    pub fn since(&mut self, earlier: &Totals) {
        self.combine(earlier, u64::saturating_sub);
        // The longest may be an earlier one: nobody can tell.
        self.wakeups.all = self.wakeups.all.saturating_sub(earlier.wakeups.all);
        self.wakeups.late = self.wakeups.late.saturating_sub(earlier.wakeups.late);
        for (reason, count) in &mut self.reasons {
            let before = earlier
                .reasons
                .iter()
                .find(|(known, _)| known == reason)
                .map_or(0, |&(_, count)| count);
            *count = count.saturating_sub(before);
        }
        self.reasons.retain(|&(_, count)| count > 0);
    }

    fn combine(&mut self, other: &Totals, apply: fn(u64, u64) -> u64) {
        for (mine, theirs) in [
            (&mut self.client, other.client),
            (&mut self.server, other.server),
            (&mut self.handshake_errors, other.handshake_errors),
            (&mut self.fallback, other.fallback),
            (&mut self.link_groups, other.link_groups),
            (&mut self.violations, other.violations),
            (&mut self.damaged, other.damaged),
            (&mut self.cork, other.cork),
            (&mut self.nodelay, other.nodelay),
            (&mut self.splice, other.splice),
            (&mut self.urgent, other.urgent),
        ] {
            *mine = apply(*mine, theirs);
        }
        self.rx.combine(&other.rx, apply);
        self.tx.combine(&other.tx, apply);
    }
}

impl Wakeups {
    pub fn of(counted: &smc::stats::Wakeups) -> Wakeups {
        Wakeups {
            all: counted.all.load(Relaxed),
            late: counted.late.load(Relaxed),
            longest_us: counted.longest_us.load(Relaxed),
        }
    }

    pub fn add(&mut self, other: Wakeups) {
        self.all = self.all.saturating_add(other.all);
        self.late = self.late.saturating_add(other.late);
        self.longest_us = self.longest_us.max(other.longest_us);
    }

    /// None unless one in a thousand was late: now and then one is on any machine.
    pub fn complaint(&self) -> Option<String> {
        let Wakeups { all, late, longest_us } = *self;
        let often = late > 0 && late.saturating_mul(1000) >= all;
        often.then(|| {
            format!(
                "{late} of {all} wake-ups took longer than 5 ms, the longest {} ms",
                longest_us / 1000
            )
        })
    }
}

impl Flow {
    fn of(direction: &Direction) -> Flow {
        Flow {
            bytes: direction.bytes.load(Relaxed),
            calls: direction.calls.load(Relaxed),
            full: direction.full.load(Relaxed),
            doorbells: direction.doorbells.load(Relaxed),
            reuse: direction.reuse.load(Relaxed),
            alloc: direction.alloc.load(Relaxed),
            sizes: std::array::from_fn(|bucket| direction.sizes[bucket].load(Relaxed)),
            buffers: std::array::from_fn(|bucket| direction.buffers[bucket].load(Relaxed)),
        }
    }

    fn add_counts(&mut self, counts: &Counts) {
        let living = Flow {
            bytes: counts.bytes.load(Relaxed),
            calls: counts.calls.load(Relaxed),
            full: counts.full.load(Relaxed),
            doorbells: counts.doorbells.load(Relaxed),
            sizes: std::array::from_fn(|bucket| u64::from(counts.sizes[bucket].load(Relaxed))),
            ..Flow::default()
        };
        self.combine(&living, u64::saturating_add);
    }

    fn combine(&mut self, other: &Flow, apply: fn(u64, u64) -> u64) {
        let single = [
            (&mut self.bytes, other.bytes),
            (&mut self.calls, other.calls),
            (&mut self.full, other.full),
            (&mut self.doorbells, other.doorbells),
            (&mut self.reuse, other.reuse),
            (&mut self.alloc, other.alloc),
        ];
        let sizes = self.sizes.iter_mut().zip(other.sizes);
        let buffers = self.buffers.iter_mut().zip(other.buffers);
        for (mine, theirs) in single.into_iter().chain(sizes).chain(buffers) {
            *mine = apply(*mine, theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(client: u64, bytes: u64, reasons: &[(u32, u64)]) -> Totals {
        Totals {
            client,
            reasons: reasons.to_vec(),
            rx: Flow { bytes, sizes: [bytes; BUCKETS], ..Flow::default() },
            ..Totals::default()
        }
    }

    #[test]
    fn totals_add_up_and_subtract() {
        let mut sum = totals(1, 10, &[(5, 1)]);
        sum.add(&totals(2, 20, &[(6, 2), (5, 3)]));
        assert_eq!(sum, totals(3, 30, &[(5, 4), (6, 2)]));
        sum.since(&totals(1, 10, &[(5, 4)]));
        assert_eq!(sum, totals(2, 20, &[(6, 2)]));
        sum.since(&totals(9, 99, &[]));
        assert_eq!(
            (sum.client, sum.rx.bytes),
            (0, 0),
            "a table that began anew does not underflow"
        );
    }

    #[test]
    fn totals_do_not_fall() {
        let mut now = totals(3, 5, &[(5, 4), (7, 1)]);
        now.at_least(&totals(2, 20, &[(6, 2), (5, 9)]));
        assert_eq!(now, totals(3, 20, &[(5, 9), (7, 1), (6, 2)]));
    }

    #[test]
    fn late_wakeups_are_complained_of() {
        let woken = |all, late| Wakeups { all, late, longest_us: 40_123 }.complaint();
        assert_eq!(woken(0, 0), None);
        assert_eq!(woken(100_000, 99), None);
        let said = woken(100_000, 100).unwrap();
        assert_eq!(said, "100 of 100000 wake-ups took longer than 5 ms, the longest 40 ms");
    }

    #[test]
    fn addresses() {
        let mut ip = [0; 16];
        ip[..4].copy_from_slice(&[127, 0, 0, 1]);
        let v4 = Addr { family: libc::AF_INET as u16, port: 80, ip };
        assert_eq!(address(&v4).unwrap().to_string(), "127.0.0.1:80");
        assert_eq!(address(&Addr::default()), None);
    }
}
