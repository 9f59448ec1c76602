//! What a connection finds out about others: that its device reaches the peer no more, or was taken
//! away. A connection knows nothing of link groups. The connections that this concerns end at once,
//! and `group` is left word, which it takes before it does anything else: a group that is believed
//! alive would be joined by the next connection.

use core::sync::atomic::AtomicBool;

use super::*;
use crate::{sys, table};

/// What has come of a group, or of all groups of a device.
pub(crate) enum Verdict {
    /// The link group of this number has ended.
    Group(u32),
    /// All link groups of this device have ended.
    Device(Kind),
}

/// Groups that have ended; 0: none. Where there is no room, the group's next connection fails to
/// attach.
static GROUPS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// Devices whose groups have ended, by `Kind::bit`.
static DEVICES: AtomicU32 = AtomicU32::new(0);
/// Whether `GROUPS` or `DEVICES` holds something that was not taken.
static NEWS: AtomicBool = AtomicBool::new(false);

/// Whether there is something to take.
#[inline]
pub(crate) fn is_due() -> bool {
    NEWS.load(Relaxed)
}

/// Something that was not taken before.
#[inline]
pub(crate) fn take() -> Option<Verdict> {
    if is_due() { take_slowly() } else { None }
}

#[cold]
fn take_slowly() -> Option<Verdict> {
    // SYNC: verdict. An exchange, so that what was noted before NEWS was set is seen, or it would
    // be lost with the mark; before looking, so that what is noted meanwhile sets the mark again.
    NEWS.swap(false, SeqCst);
    let group = GROUPS
        .iter()
        .map(|group| group.swap(0, Relaxed))
        .find(|group| *group != 0)
        .map(Verdict::Group);
    let device = || {
        let kind = Kind::ALL.into_iter().find(|kind| DEVICES.load(Relaxed) & kind.bit() != 0)?;
        DEVICES.fetch_and(!kind.bit(), Relaxed);
        Some(Verdict::Device(kind))
    };
    let taken = group.or_else(device);
    if taken.is_some() {
        // SYNC: verdict. There may be more, and it may have been noted just now: an exchange, so that
        // who takes this mark sees what the mark before it was set for.
        NEWS.swap(true, SeqCst);
    }
    taken
}

/// The device of this process's group `id` does not reach the peer any more: the group's
/// connections end now.
pub(crate) fn end_group(id: u32) {
    // The connections that end here come by, too.
    if GROUPS.iter().any(|group| group.load(Relaxed) == id) {
        return;
    }
    if GROUPS.iter().any(|group| group.compare_exchange(0, id, Relaxed, Relaxed).is_ok()) {
        // SYNC: verdict. Behind the number; pairs with the exchange in `take_slowly`.
        NEWS.swap(true, SeqCst);
    }
    end_all(|conn| conn.link_group() == id, false);
}

/// A device was taken away: its connections end now. Peers, which it still reaches, are told.
pub(crate) fn end_device(kind: Kind) {
    DEVICES.fetch_or(kind.bit(), Relaxed);
    // SYNC: verdict. Behind the bit; pairs with the exchange in `take_slowly`.
    NEWS.swap(true, SeqCst);
    end_all(|conn| conn.kind() == kind, true);
}

/// Ends with ECONNRESET what `which` chooses of the connections that this process has upgraded, at
/// the peer too if it is to be told.
fn end_all(which: impl Fn(&Conn) -> bool, tell: bool) {
    let Some(table) = table::get() else { return };
    let own = sys::getpid();
    let live =
        table.here().map(|(_, conn)| conn).filter(|conn| conn.identity.gen_.load(Acquire) & 1 == 1);
    let ours = live.filter(|conn| conn.identity.pid.load(Relaxed) == own && conn.tokens()[0] != 0);
    let concerned =
        ours.filter(|conn| which(conn) && conn.needs_device() && !conn.phase().has(p::BROKEN));
    concerned.for_each(|conn| conn.break_now(tell));
}
