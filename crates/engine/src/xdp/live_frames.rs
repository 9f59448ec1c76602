//! Traffic that the kernel makes by itself: the fastest source and sink there is on an interface,
//! and so the ceiling that every program in user space is measured against, where there is no
//! pktgen.
//!
//! The source runs an XDP program on copies of one frame (BPF_PROG_TEST_RUN with live frames, Linux
//! 5.18) that sends each out of an interface. On a veth pair they arrive at the peer, which must
//! have an XDP program or GRO. The frames cost one processor; no packet passes user space.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bpf::{Link, NATIVE, Program};
use super::program::{Action, constant, redirect_to_interface};

/// Frames per call: a tenth of a second or less, after which [`Source::run`] looks whether it is to
/// stop.
const PER_CALL: u32 = 1 << 20;
/// The kernel's unit of work.
const BATCH: u32 = 64;

/// Sends copies of one frame out of an interface.
#[derive(Debug)]
pub struct Source {
    program: Program,
    frame: Vec<u8>,
}

impl Source {
    /// `frame` without checksum, 14 bytes or more. The calling thread's network namespace is where
    /// `ifindex` is looked up.
    pub fn new(ifindex: u32, frame: &[u8]) -> io::Result<Source> {
        let program = Program::load("shortwire_live", &redirect_to_interface(ifindex))?;
        Ok(Source { program, frame: frame.to_vec() })
    }

    /// Sends `count` frames and returns when the kernel has taken them; the interface may drop
    /// some.
    pub fn send(&self, count: u32) -> io::Result<()> {
        match self.program.run_live_frames(&self.frame, count, BATCH) {
            // A signal cut it short.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other,
        }
    }

    /// Sends until `stop` is set.
    pub fn run(&self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            self.send(PER_CALL)?;
        }
        Ok(())
    }
}

/// Drops all that arrives on an interface, in its driver, until the result is dropped. The
/// interface counts the packets.
pub fn drop_all(ifindex: u32) -> io::Result<Link> {
    Program::load("shortwire_drop", &constant(Action::Drop))?.attach(ifindex, NATIVE)
}

/// Forwards all that arrives on an interface out of another, in the kernel.
pub fn forward_all(from: u32, to: u32) -> io::Result<Link> {
    Program::load("shortwire_fwd", &redirect_to_interface(to))?.attach(from, NATIVE)
}

/// Gives all that arrives to the kernel's stack. A veth's peer can be redirected to only if the
/// veth has a program.
pub fn pass_all(ifindex: u32) -> io::Result<Link> {
    Program::load("shortwire_pass", &constant(Action::Pass))?.attach(ifindex, NATIVE)
}
