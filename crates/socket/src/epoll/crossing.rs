//! What sets are told of a connection that leaves TCP, comes back to it, or gets more room.

use core::sync::atomic::Ordering::*;
use core::sync::atomic::fence;

use super::change::{go_back, hook, set_of};
use super::set::held;
use super::table::{of_conn, tables};
use crate::fds;

/// A direction of the connection has left TCP: its registrations change hands.
pub fn on_switched(conn: u32) {
    // SYNC: underway. Behind the switch and in front of the look at the notes; pairs with
    // `Underway::end`.
    fence(SeqCst);
    if fds::local(conn).regs.load(Acquire) == 0 {
        return;
    }
    let all = match tables() {
        Some(_tables) => of_conn(conn)
            .fold(true, |all, (i, e)| set_of(e).is_none_or(|(at, s)| hook(at, s, i)) && all),
        None => false,
    };
    if !all {
        // A registration whose descriptor was closed while another one lives cannot be changed any
        // more, nor can any in a signal handler that interrupted a change: the kernel's readiness
        // must stay the truth.
        go_back(conn, fds::local(conn).fd.load(Relaxed) as i32);
    }
}

/// The application lets more bytes be under way than before: who sleeps until there is room looks
/// again.
pub fn on_more_room(conn: u32) {
    if fds::local(conn).regs.load(Acquire) == 0 {
        return;
    }
    let Some(_tables) = tables() else { return };
    for (i, e) in of_conn(conn) {
        let Some((s, mut h)) = set_of(e).and_then(|(at, s)| Some((s, held(at, s)?))) else {
            continue;
        };
        let Some((_, st)) = h.state(i).filter(|(_, st)| st.hooked && !st.dormant) else { continue };
        st.look_for_space_anew(fds::conn(conn));
        h.heat(i);
        // SYNC: sleepers. After the change; a sleeper counts itself before it looks, both under the
        // lock.
        if s.sleepers.any() {
            h.kick(i);
        }
    }
}

/// Both directions are back on TCP: the kernel's registrations become the application's again.
pub fn on_reverted(conn: u32) {
    if fds::local(conn).regs.load(Acquire) == 0 {
        return;
    }
    let Some(_tables) = tables() else { return };
    if fds::conn(conn).needs_us() {
        return;
    }
    for (i, e) in of_conn(conn) {
        if let Some(mut h) = set_of(e).and_then(|(at, s)| held(at, s)) {
            h.revert(i);
        }
    }
}
