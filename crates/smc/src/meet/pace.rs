//! How often an end looks for the other one, and how long.
//!
//! By operations first: whoever makes many pays for few looks. But an end that made thousands
//! before its peer ran at all, and is slow since, would make its next thousand in minutes. So a
//! look is also due when a part of the time has gone by that it looks already; whether it is costs
//! a look at the clock: at every 16th operation, and at each one where sixteen take long.

use super::*;

/// Operations after which an end stops waiting for its peer, if it has waited for `PATIENCE_MS`
/// too.
pub(super) const GIVE_UP: u32 = 1 << 16;
/// Operations after which an end stops waiting in a rendezvous directory: most connections that
/// leave the network namespace also leave the machine.
pub(super) const GIVE_UP_FAR: u32 = 1 << 12;
/// Looks at every operation before the distance between looks doubles.
pub(super) const EAGER: u32 = 8;

/// Whoever never waits makes `GIVE_UP` operations while a busy machine keeps its peer from running
/// once.
pub(super) const PATIENCE_MS: u32 = 5000;
/// Operations between two looks at the clock.
const CLOCK: u32 = 16;
/// No two looks are closer for the sake of time alone.
const LEAST_MS: u32 = 10;

/// With its next operation a step is to be taken.
pub(super) fn soon(conn: &Conn) {
    let next = conn.ops.load(Relaxed).saturating_add(1);
    conn.upgrade.due_ops.store(next, Relaxed);
    conn.next_try.store(next, Relaxed);
}

/// Whether a step is to be taken now that `next_try` is reached. If not, the clock is looked at
/// again later.
#[cold]
pub fn is_due(conn: &Conn) -> bool {
    let (ops, due) = (conn.ops.load(Relaxed), conn.upgrade.due_ops.load(Relaxed));
    let now = sys::coarse_ms();
    let early = conn.upgrade.due_ms.load(Relaxed).wrapping_sub(now);
    if ops >= due || early == 0 || early > u32::MAX / 2 {
        return true;
    }
    let slow = now.wrapping_sub(conn.upgrade.clock_ms.swap(now, Relaxed)) >= LEAST_MS;
    conn.next_try.store(due.min(ops.saturating_add(if slow { 1 } else { CLOCK })), Relaxed);
    false
}

/// The next look of a connection that has come no further.
pub(super) fn schedule(conn: &Conn) {
    let stage = conn.upgrade.stage();
    if stage == Stage::Over {
        conn.next_try.store(u32::MAX, Relaxed);
        return;
    }
    let (ops, now) = (conn.ops.load(Relaxed), sys::coarse_ms());
    let at = &conn.upgrade;
    let looks = at.looks.fetch_add(1, Relaxed);
    if looks == 0 {
        at.since_ops.store(ops, Relaxed);
        at.since_ms.store(now, Relaxed);
    }
    let has_met = matches!(conn.upgrade.meeting(), Meeting::Met(_));
    let (gap, why) = if stage == Stage::Meeting && !has_met {
        seeking(conn, ops, looks)
    } else {
        // Those who met late have their time, too.
        let made = ops.wrapping_sub(at.since_ops.load(Relaxed));
        (
            rendezvous::often(ops, looks),
            is_patient_no_more(conn, made).then_some(reason::PEER_NO_SMC),
        )
    };
    if let Some(why) = why {
        return stay_tcp(conn, why);
    }
    let waited = now.wrapping_sub(at.since_ms.load(Relaxed));
    at.due_ops.store(ops.saturating_add(gap), Relaxed);
    at.due_ms.store(now.wrapping_add(LEAST_MS.max(waited / 8)), Relaxed);
    conn.next_try.store(ops.saturating_add(gap.min(CLOCK)), Relaxed);
}

/// Whether an end that has made so many operations has waited for long enough.
pub(super) fn is_patient_no_more(conn: &Conn, ops: u32) -> bool {
    ops > GIVE_UP
        && sys::coarse_ms().wrapping_sub(conn.upgrade.since_ms.load(Relaxed)) > PATIENCE_MS
}

/// While the ends look for each other: operations until the next look, and why there is none, if
/// so.
fn seeking(conn: &Conn, ops: u32, looks: u32) -> (u32, Option<Reason>) {
    let (at, why) = (rendezvous::of(conn), conn.reason());
    let has_begun = conn.upgrade.meeting() != Meeting::Nowhere;
    let is_unsaid = !matches!(why, reason::NO_BROKER | reason::BROKER);
    let tired = at.tires(conn, ops);
    if tired.is_none() && looks >= EAGER && has_begun && at.is_alone() && is_unsaid {
        // For whoever looks meanwhile; the peer may still come.
        conn.set_reason(reason::PEER_NO_SMC);
    }
    // Whoever shares it usually closes it soon, and looking costs nothing.
    let gap = if !has_begun && why == reason::SHARED_FD { 4 } else { at.gap(ops, looks) };
    (gap, tired)
}
