//! When a connection moves on: the upgrade's steps, counted by operations, and the switch of each
//! direction.

use core::sync::atomic::Ordering::*;

use smc::{meet, sys};

use crate::deferred;
use crate::fds::{self, Port};
use crate::transmit::transmit_deferred;

/// Counts an operation over TCP and takes the upgrade on when it is time.
#[inline]
pub fn after_op(port: Port, bytes: usize) {
    let c = port.conn;
    let ops = c.ops.load(Relaxed).wrapping_add(1);
    c.ops.store(ops, Relaxed);
    let total = c.tcp_bytes.load(Relaxed) + bytes as u64;
    c.tcp_bytes.store(total, Relaxed);
    let limit = smc::config::CONFIG.after_bytes.load(Relaxed);
    if ops >= c.next_try.load(Relaxed) && meet::is_due(c)
        || (total >= limit && total - (bytes as u64) < limit)
    {
        upgrade(port);
    }
}

/// How long a step of another thread is waited for, 50 us each: that thread may be put off by a
/// busy machine.
const STEPS: u32 = 10_000;

#[cold]
fn upgrade(port: Port) {
    let Port { index, conn, fd } = port;
    // A step needs more stack than a handler may have been given. It is taken up with the next
    // operation elsewhere.
    if meet::is_in_vain(conn) || shm::lock::on_signal_stack() {
        return;
    }
    if meet::step(conn, fd, || fds::is_shared(index)) && conn.switched() {
        fds::on_upgraded(port);
    }
}

/// The peer has switched but our last step is missing, without which we cannot arm doorbells. Take
/// it, or wait up to 0.5 s for the thread that does; else we would read what sleepers wait for and
/// could not wake them.
#[cold]
pub fn finish_upgrade(port: Port) {
    let c = port.conn;
    for _ in 0..STEPS {
        let elsewhere = c.is_upgraded_elsewhere();
        upgrade(port);
        if c.is_committed() || c.is_frozen() || c.is_closed() || !elsewhere {
            return;
        }
        sys::sleep_ns(50_000);
    }
}

/// Lets receives follow the peer off TCP. True when they come from the ring.
pub fn settle(port: Port) -> bool {
    let Port { conn: c, fd, .. } = port;
    let ph = c.phase();
    if ph.receives_on_ring() {
        if !ph.is_committed() {
            finish_upgrade(port);
        }
        return true;
    }
    if !ph.is_exposed() {
        return false;
    }
    if ph.may_switch_sends() {
        if c.try_switch_tx(fd) {
            fds::on_upgraded(port);
        }
        if deferred::any() {
            transmit_deferred(port);
        }
    }
    if !c.switch_due() {
        return false;
    }
    if !ph.is_committed() {
        // At the server: the client confirmed before it switched, so its Confirm is there to be
        // read.
        finish_upgrade(port);
    }
    if !c.settle_rx(fd) {
        return false;
    }
    fds::on_upgraded(port);
    true
}
