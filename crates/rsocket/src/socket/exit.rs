//! The end of the program. What it leaves open ends in order, as the kernel ends TCP connections:
//! a peer would otherwise take a program that has returned from `main` for one that was killed, and
//! read ECONNRESET behind the last of its bytes.
#![allow(unsafe_code)]

use super::{Meeting, Phase, Socket};
use crate::stream::How;
use crate::table;
use std::time::{Duration, Instant};

/// How long the ends of RDMA connections may hold up the end of the program, but for the last of
/// them.
const PATIENCE: Duration = Duration::from_secs(2);

/// A destructor, and no function of `atexit`: those that the application registered before its first
/// rsocket run behind any of ours, and may still send.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    part_all(true);
}

/// Where it is, for who links statically: nothing else would take this file from the archive.
pub fn is_linked() {
    core::hint::black_box(&AT_EXIT);
}

/// To be called when the process is about to end without its destructors, from a signal handler perhaps:
/// connections over verbs, whose ends need their library, are left to the kernel.
pub fn before_exit() {
    part_all(false);
}

fn part_all(waits: bool) {
    // The child of a `vfork` has the table of its parent, which goes on.
    if table::is_own_process() {
        let start = Instant::now();
        table::each(|socket| socket.part(waits && start.elapsed() < PATIENCE));
    }
}

impl Socket {
    fn part(&self, may_wait: bool) {
        match self.streaming() {
            Some(stream) if stream.endpoint.is_verbs() => {
                // Bytes that the device still has end with the process, unless it waits for them.
                let is_due = may_wait && self.maker == std::process::id();
                let _ = is_due.then(|| stream.shutdown(How::Both));
            }
            // The kernel ends its socket when the process has ended; all that was sent is there.
            Some(stream) => stream.endpoint.announce_end(),
            None if self.phase() == Phase::Accepting => self.part_unmet(),
            None => {}
        }
    }

    /// Of a connection that was accepted, and not used. A lock whose owner was killed must not keep
    /// the process from ending.
    fn part_unmet(&self) {
        let Some(_held) = self.setup.try_lock() else { return };
        // SAFETY: under `setup`.
        if let Meeting::Answer(answer) = unsafe { &*self.meeting.get() } {
            answer.part();
        }
    }
}
