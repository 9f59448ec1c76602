//! The census: one row for each link group, in the table that other processes of the user read.
//!
//! A row belongs to the process whose number it has; of a process that has ended it is free again.
//! `shortwire linkgroups` reads rows while they change and only shows them: a row that is caught in
//! between shows two groups mixed, no more.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::clc::{Eid, Hostname, Os};
use crate::sys;

/// Rows of a table: link groups that a fork family can show at a time. Further groups work all the
/// same.
pub const ROWS: usize = 1024;

/// What a link group is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// First contact is being made.
    Pending = 1,
    /// New connections may join.
    Ready = 2,
    /// It goes with its last connection.
    Dead = 3,
}

/// One link group. Zero is a free row.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Row {
    /// The process that has it; 0: nobody.
    pub pid: AtomicU32,
    /// Its number there.
    pub id: AtomicU32,
    /// A `State`.
    pub state: AtomicU32,
    /// CHID of the device.
    pub chid: AtomicU32,
    /// Whether that process is the server of its connections.
    pub server: AtomicU32,
    /// The process at the other end.
    pub peer_pid: AtomicU32,
    /// Its effective user.
    pub peer_uid: AtomicU32,
    /// Release of version 2 that is spoken.
    pub release: AtomicU32,
    /// Operating system of the peer, 0 while it is not known.
    pub os: AtomicU32,
    /// Whether a checksum goes along with what is copied.
    pub checked: AtomicU32,
    /// GID here and there, upper half first.
    pub gid: [AtomicU64; 2],
    /// See `gid`.
    pub peer_gid: [AtomicU64; 2],
    eid: [AtomicU64; 4],
    host: [AtomicU64; 4],
    pnet: [AtomicU64; 2],
}

const _: () = assert!(size_of::<Row>() == 192);

fn put<const N: usize>(to: &[AtomicU64; N], bytes: &[u8]) {
    for (word, bytes) in to.iter().zip(bytes.chunks_exact(8)) {
        word.store(u64::from_ne_bytes(bytes.try_into().unwrap_or_default()), Relaxed);
    }
}

fn get<const BYTES: usize, const N: usize>(from: &[AtomicU64; N]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (word, bytes) in from.iter().zip(bytes.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    bytes
}

impl Row {
    /// The EID that was agreed on.
    pub fn eid(&self) -> Eid {
        Eid(get(&self.eid))
    }

    /// What the peer calls its host.
    pub fn host(&self) -> Hostname {
        Hostname(get(&self.host))
    }

    /// The PNET id of the device, blank padded; zero if it has none.
    pub fn pnet(&self) -> [u8; 16] {
        get(&self.pnet)
    }

    /// What the peer said of itself.
    pub(crate) fn set_peer(&self, os: Os, host: &Hostname) {
        self.os.store(u32::from(os.number()), Relaxed);
        put(&self.host, &host.0);
    }

    pub(crate) fn set_terms(&self, eid: &Eid, release: u8) {
        put(&self.eid, &eid.0);
        self.release.store(u32::from(release), Relaxed);
    }

    pub(crate) fn set_pnet(&self, pnet: &[u8; 16]) {
        put(&self.pnet, pnet);
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u32, Relaxed);
    }

    /// The group is gone.
    pub(crate) fn leave(&self) {
        self.pid.store(0, Release);
    }
}

/// A row for a group of this process, everything but its number and process still that of the group
/// before; None when all are in use. Callers take turns within a process, and not between those of
/// a family.
pub(crate) fn enter(rows: &'static [Row], id: u32) -> Option<&'static Row> {
    let own = sys::getpid();
    // Those of ended processes only when there is no other: asking costs a system call each.
    let taken = [false, true].into_iter().find_map(|also_of_the_dead| {
        rows.iter().find(|row| {
            let of = row.pid.load(Acquire);
            let free = of == 0 || also_of_the_dead && of != own && sys::is_unknown(of);
            free && row.pid.compare_exchange(of, own, AcqRel, Relaxed).is_ok()
        })
    })?;
    taken.id.store(id, Relaxed);
    put(&taken.host, &[b' '; 32]);
    put(&taken.pnet, &[0; 16]);
    taken.os.store(0, Relaxed);
    taken.checked.store(0, Relaxed);
    Some(taken)
}

/// After an exec the program before had this number, and its groups are gone.
pub(crate) fn begin_anew(rows: &[Row]) {
    let own = sys::getpid();
    rows.iter().filter(|row| row.pid.load(Relaxed) == own).for_each(Row::leave);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_taken_and_left_and_taken_from_the_dead() {
        let rows = crate::table::get().expect("a table").groups();
        let row = enter(rows, 77).expect("a row");
        assert_eq!((row.id.load(Relaxed), row.pid.load(Relaxed)), (77, sys::getpid()));
        row.set_terms(&Eid::LOOPBACK_SEID, 1);
        row.set_peer(Os::ZOS, &Hostname::new("somewhere"));
        assert_eq!((row.eid(), row.host().to_string().as_str()), (Eid::LOOPBACK_SEID, "somewhere"));
        // All the others are taken: by a process that lives, and one by none that ever will.
        let others: Vec<&Row> = rows.iter().filter(|other| other.pid.load(Relaxed) == 0).collect();
        others.iter().for_each(|other| other.pid.store(1, Relaxed));
        assert!(enter(rows, 78).is_none());
        others[5].pid.store(i32::MAX as u32, Relaxed);
        assert!(core::ptr::eq(enter(rows, 79).expect("that of the dead"), others[5]));
        others.iter().for_each(|other| other.leave());
        begin_anew(rows);
        assert_eq!(row.pid.load(Relaxed), 0);
    }
}
