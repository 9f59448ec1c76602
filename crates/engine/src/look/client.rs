//! The looker's side.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send,
};

use super::listener::{GRANTED, MESSAGE, Request, reach};
use super::ring::{Copied, Kind, Reader};
use crate::bpf::{Program, compile};
use crate::counters::Process;

/// How long an engine may take to answer: it looks about 30 times a second, if no app keeps it.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why there is nothing to be seen.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// No thread has a socket: an engine of a version without.
    #[error("process {0} cannot be looked into: it is no engine, or of an older version")]
    NoSocket(u32),
    /// The socket is another user's.
    #[error("process {0} belongs to another user: look as that user, or as root")]
    Denied(u32),
    /// The engine does not breathe.
    #[error("process {0} does not answer: an app may be stuck (`shortwire engine top {0}`)")]
    Silent(u32),
    /// What the engine said.
    #[error("{0}")]
    Refused(String),
    /// The system refused something.
    #[error("cannot look into process {0}: {1}")]
    Os(u32, std::io::Error),
}

/// What was seen.
#[derive(Debug)]
pub struct Entry {
    /// What happened.
    pub kind: Kind,
    /// When: nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    /// Whole length of the packet.
    pub length: u32,
    /// Which packet, of those that are followed.
    pub number: u32,
    /// Of a copy: which one was copied.
    pub parent: u32,
    label: usize,
    bytes: Vec<u8>,
}

impl Entry {
    /// The link, or the app. Without characters that a terminal would obey.
    pub fn label(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes[..self.label]).into_owned();
        text.replace(char::is_control, "?")
    }

    /// The packet, or its beginning.
    pub fn packet(&self) -> &[u8] {
        &self.bytes[self.label..]
    }
}

/// A view of one thread of an engine, until it is dropped.
pub struct Look {
    socket: OwnedFd,
    ring: Reader,
}

impl Look {
    /// All packets that go into a link, from now on. The thread that sends into it is found.
    pub fn capture(process: &Process, link: &str) -> Result<Look, LookError> {
        let (looks, refused) = ask(process, &Request::Capture(link.to_string()))?;
        let refused = refused.into_iter().next().unwrap_or_else(|| format!("no such link: {link}"));
        looks.into_iter().next().ok_or(LookError::Refused(refused))
    }

    /// The ways of so many packets through each thread.
    pub fn trace(process: &Process, packets: u32) -> Result<Vec<Look>, LookError> {
        let (looks, refused) = ask(process, &Request::Trace(packets))?;
        match refused.into_iter().next() {
            Some(why) if looks.is_empty() => Err(LookError::Refused(why)),
            _ => Ok(looks),
        }
    }

    /// What comes next; None: nothing yet.
    pub fn next_entry(&mut self) -> Option<Entry> {
        let Copied { kind, time, length, number, parent, label, bytes } = self.ring.next()?;
        Some(Entry { kind, time, length, number, parent, label, bytes })
    }

    /// What came faster than it was read.
    pub fn missed(&self) -> u64 {
        self.ring.missed
    }

    /// The engine has ended, or does not have the link any more.
    pub fn is_over(&self) -> bool {
        let mut byte = [0];
        !matches!(
            recv(&self.socket, &mut byte[..], RecvFlags::DONTWAIT),
            Err(Errno::AGAIN | Errno::INTR)
        )
    }
}

/// Asks each thread; gives those that show something, and what the others said.
fn ask(process: &Process, request: &Request) -> Result<(Vec<Look>, Vec<String>), LookError> {
    let pid = process.pid;
    let os = |errno: Errno| LookError::Os(pid, errno.into());
    let (mut asked, mut problem) = (Vec::new(), LookError::NoSocket(pid));
    let threads = std::fs::read_dir(process.path.join("engine")).into_iter().flatten().flatten();
    for thread in threads {
        match reach(&thread.path()) {
            Ok(socket) => match send(&socket, request.to_text().as_bytes(), SendFlags::NOSIGNAL) {
                Ok(_) => asked.push(socket),
                Err(errno) => problem = os(errno),
            },
            // A thread that ended, or an engine without.
            Err(Errno::NOENT | Errno::CONNREFUSED) => {}
            Err(Errno::ACCESS | Errno::PERM) => problem = LookError::Denied(pid),
            Err(Errno::AGAIN) => problem = LookError::Silent(pid),
            Err(errno) => problem = os(errno),
        }
    }
    if asked.is_empty() {
        return Err(problem);
    }
    let (mut looks, mut refused, mut failed) = (Vec::new(), Vec::new(), None);
    // All together have so long: a thread that is stuck does not hide the others.
    let end = Instant::now() + PATIENCE;
    for socket in asked {
        match answer(socket, pid, end.saturating_duration_since(Instant::now())) {
            Ok(Ok(look)) => looks.push(look),
            Ok(Err(why)) => refused.push(why),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if looks.is_empty() => Err(error),
        _ => Ok((looks, refused)),
    }
}

fn answer(
    socket: OwnedFd,
    pid: u32,
    patience: Duration,
) -> Result<Result<Look, String>, LookError> {
    let os = |errno: Errno| LookError::Os(pid, errno.into());
    let patience =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let mut waits = [PollFd::new(&socket, PollFlags::IN)];
    match poll(&mut waits, Some(&patience)) {
        Ok(0) => return Err(LookError::Silent(pid)),
        other => other.map_err(os)?,
    };
    let mut text = [0; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let said =
        recvmsg(&socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, flags).map_err(os)?;
    let memory = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let said = &text[..said.bytes];
    match memory {
        Some(memory) if said == GRANTED => match Reader::open(&memory.as_fd()) {
            Ok(ring) => Ok(Ok(Look { socket, ring })),
            Err(error) => Ok(Err(format!("the engine's memory cannot be used: {error}"))),
        },
        _ if said.is_empty() => Ok(Err("the engine has ended, or sent this look away".into())),
        _ => Ok(Err(String::from_utf8_lossy(said).replace(char::is_control, "?"))),
    }
}

/// An expression as for tcpdump, for packets that were copied here: the engine has no part in it.
pub struct Filter(Program);

/// Why an expression cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FilterError(String);

impl Filter {
    /// Compiles it, by libpcap.
    pub fn new(expression: &str) -> Result<Self, FilterError> {
        compile(expression).map(Self).map_err(|error| FilterError(error.to_string()))
    }

    /// Whether a packet is one of those.
    pub fn matches(&self, packet: &[u8]) -> bool {
        self.0.run(packet) != 0
    }
}
