//! A link to an engine in another process, through memory that both share.
//!
//! The two meet at a Unix socket, over which the listening one hands a sealed memory file; packets
//! then move without system calls, one copy in and one out. When one end stops or dies the other
//! notices by the socket, drops and counts, and waits for the next. The other process can garble
//! its own packets and nothing else.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::args::ArgError;
use crate::batch::{BATCH, Batch};
use crate::link::Link;
use crate::registry::Registry;

use super::mmsg::drop_front;
use super::unix_socket::meet::{Meeting, Role};

mod channel;

use channel::{Channel, SLOTS};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<ShmLink>();
}

/// Arguments of [`ShmLink`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ShmLinkArgs {
    /// Path of the Unix socket where the two ends meet.
    pub path: PathBuf,
    /// Listen at the path; exactly one end does.
    #[serde(default)]
    pub listen: bool,
    /// Packets that each direction holds; the listening end's number counts. 16 to 65536.
    #[serde(default = "default_slots")]
    pub slots: u32,
}

fn default_slots() -> u32 {
    1024
}

/// See the module documentation.
pub struct ShmLink {
    args: ShmLinkArgs,
    meeting: Meeting,
    peer: Option<Peer>,
    unsent: Batch,
    counters: Counters,
    notice: Option<String>,
}

struct Peer {
    /// Silent after the start; its end is the peer's.
    socket: OwnedFd,
    /// None until the memory has come.
    channel: Option<Channel>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    /// Packets for which there was no memory.
    rx_dropped: u64,
    /// Packets that came while there was no other end.
    tx_dropped: u64,
    connections: u64,
    /// Times that the other end broke the rules.
    violations: u64,
}

/// What goes with the memory file.
const HELLO: &[u8; 12] = b"shortwire-1 ";

impl Kind for ShmLink {
    const NAME: &'static str = "ShmLink";
    const ABOUT: &'static str = "a link to an engine in another process, through shared memory";
    const INPUTS: Ports = Ports::Named(&["rx"]);
    const OUTPUTS: Ports = Ports::Named(&["tx"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] =
        &["rx_dropped", "tx_dropped", "connections", "violations"];
    type Args = ShmLinkArgs;

    fn check(args: &ShmLinkArgs) -> Result<(), ArgError> {
        if SLOTS.contains(&args.slots) {
            return Ok(());
        }
        Err(ArgError::wrong(
            "slots",
            format!("{} is not from {} to {}", args.slots, SLOTS.start(), SLOTS.end()),
        ))
    }

    fn new(args: ShmLinkArgs, _context: &Context) -> Result<Self, AppError> {
        let role = if args.listen { Role::ListenPacket } else { Role::ConnectPacket };
        let meeting = Meeting::new(role, &args.path, None)?;
        let counters = Counters::default();
        let mut this =
            Self { args, meeting, peer: None, unsent: Batch::new(), counters, notice: None };
        this.meet(0);
        Ok(this)
    }
}

impl ShmLink {
    fn meet(&mut self, now: u64) {
        let Some(socket) = self.meeting.poll(now) else { return };
        if !self.args.listen {
            self.peer = Some(Peer { socket, channel: None });
            return;
        }
        match Channel::create(self.args.slots)
            .and_then(|channel| hand_over(&socket, channel, self.args.slots))
        {
            Ok(channel) => {
                self.counters.connections += 1;
                self.peer = Some(Peer { socket, channel: Some(channel) });
            }
            Err(errno) => {
                self.notice = Some(format!("cannot share memory with the other end: {errno}"))
            }
        }
    }

    /// Looks whether the other end is still there, and for the memory if it is yet to come.
    fn look(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        match peer.look() {
            Ok(true) => self.counters.connections += 1,
            Ok(false) => {}
            Err(why) => self.part(why),
        }
    }

    #[cold]
    fn part(&mut self, why: String) {
        self.peer = None;
        self.notice = Some(format!("{}: {why}; waiting for the next", self.args.path.display()));
        self.counters.tx_dropped += self.unsent.len() as u64;
        self.unsent.clear();
    }

    #[cold]
    fn violated(&mut self) {
        self.counters.violations += 1;
        self.part("the other end broke the rules of the link".into());
    }

    fn channel(&mut self) -> Option<&mut Channel> {
        self.peer.as_mut()?.channel.as_mut()
    }

    fn send(&mut self, input: &Link) {
        loop {
            let Some(channel) = self.peer.as_mut().and_then(|peer| peer.channel.as_mut()) else {
                self.counters.tx_dropped += input.discard() as u64;
                return;
            };
            if self.unsent.is_empty() && input.receive_batch(&mut self.unsent) == 0 {
                return;
            }
            match channel.send(&self.unsent) {
                Ok(0) => return,
                Ok(sent) => drop_front(&mut self.unsent, sent),
                Err(_) => return self.violated(),
            }
        }
    }
}

impl Peer {
    /// True when the memory came. An error is the end of the other side.
    fn look(&mut self) -> Result<bool, String> {
        if self.channel.is_none() {
            self.channel = take_over(&self.socket)?;
            return Ok(self.channel.is_some());
        }
        match recv(&self.socket, &mut [0u8; 1], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Ok((0, _)) | Err(Errno::CONNRESET) => Err("the other end is gone".into()),
            Ok(_) => Err("the other end speaks out of turn".into()),
            Err(errno) => Err(errno.to_string()),
        }
    }
}

fn hand_over(socket: &OwnedFd, mut channel: Channel, slots: u32) -> Result<Channel, Errno> {
    let memory = channel.memory().ok_or(Errno::BADF)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let memory = [memory];
    ancillary.push(SendAncillaryMessage::ScmRights(&memory));
    let slots = slots.to_ne_bytes();
    let parts = [IoSlice::new(HELLO), IoSlice::new(&slots)];
    sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    channel.forget_memory();
    Ok(channel)
}

/// The channel, if the other end has sent it.
fn take_over(socket: &OwnedFd) -> Result<Option<Channel>, String> {
    let (mut hello, mut slots) = ([0; HELLO.len()], [0; 4]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut hello), IoSliceMut::new(&mut slots)];
    match recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC)
    {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno.to_string()),
        Ok(message) if message.bytes == 0 => return Err("the other end is gone".into()),
        Ok(_) => {}
    }
    let memory = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    match memory {
        Some(memory) if hello == *HELLO => Channel::open(memory.as_fd(), u32::from_ne_bytes(slots))
            .map(Some)
            .map_err(|error| format!("the other end's memory cannot be used: {error}")),
        _ => Err("at the other end is no ShmLink of this version".into()),
    }
}

impl App for ShmLink {
    fn pull(&mut self, io: &Io) {
        let Some(output) = io.output(0) else { return };
        let Some(channel) = self.channel() else { return };
        let mut batch = Batch::new();
        match channel.receive(output.room().min(BATCH), &mut batch) {
            Ok(lost) => self.counters.rx_dropped += lost,
            Err(_) => self.violated(),
        }
        if !batch.is_empty() {
            output.transmit_batch(&mut batch);
        }
    }

    fn push(&mut self, io: &Io) {
        if let Some(input) = io.input(0) {
            self.send(input);
        }
    }

    fn tick(&mut self, io: &Io) {
        match self.peer {
            Some(_) => self.look(),
            None => self.meet(io.now()),
        }
    }

    fn notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    fn counters(&self, values: &mut [u64]) {
        let Counters { rx_dropped, tx_dropped, connections, violations } = self.counters;
        values.copy_from_slice(&[rx_dropped, tx_dropped, connections, violations]);
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let joined = self.peer.as_ref().is_some_and(|peer| peer.channel.is_some());
        let state = if joined { "joined" } else { "waiting for the other end" };
        writeln!(out, "{}: {state}", self.args.path.display())?;
        writeln!(
            out,
            "dropped: {} received, {} to send",
            self.counters.rx_dropped, self.counters.tx_dropped
        )
    }

    fn stop(&mut self) -> Result<(), AppError> {
        self.peer = None;
        self.unsent.clear();
        self.meeting.stop();
        Ok(())
    }
}
