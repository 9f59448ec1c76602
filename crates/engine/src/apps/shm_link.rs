//! A link to an engine in another process, through memory that both share.
//!
//! The two meet at a Unix socket, over which the listening one hands a sealed memory file; packets
//! then move without system calls, one copy in and one out. When one end stops or dies the other
//! notices by the socket, drops and counts, and waits for the next. The other process can garble
//! its own packets and nothing else.

use std::fmt;
use std::mem::MaybeUninit;
use std::path::PathBuf;

use rustix::io::{Errno, IoSlice};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::args::ArgError;
use crate::batch::{BATCH, Batch};
use crate::link::Link;
use crate::registry::Registry;

use super::mmsg::drop_front;
use super::peer::{Leaving, Peer, Refused};
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
    leaving: Leaving,
    end: Option<End>,
    unsent: Batch,
    counters: Counters,
    notice: Option<String>,
}

/// The other end.
struct End {
    /// Silent after the start; its end is the other one's.
    socket: Peer,
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
        let meeting = Meeting::new(role, &args.path, None, true)?;
        let counters = Counters::default();
        let mut this = Self {
            args,
            meeting,
            leaving: Leaving::default(),
            end: None,
            unsent: Batch::new(),
            counters,
            notice: None,
        };
        this.meet(0);
        Ok(this)
    }
}

impl ShmLink {
    fn meet(&mut self, now: u64) {
        if !self.leaving.is_room() {
            return;
        }
        let Some(socket) = self.meeting.poll(now) else { return };
        let socket = Peer::new(socket, &self.leaving, false);
        if !self.args.listen {
            self.end = Some(End { socket, channel: None });
            return;
        }
        match Channel::create(self.args.slots)
            .and_then(|channel| hand_over(&socket, channel, self.args.slots))
        {
            Ok(channel) => {
                self.counters.connections += 1;
                self.end = Some(End { socket, channel: Some(channel) });
            }
            Err(errno) => {
                self.notice = Some(format!("cannot share memory with the other end: {errno}"))
            }
        }
    }

    /// Looks whether the other end is still there, and for the memory if it is yet to come.
    fn look(&mut self) {
        let Some(end) = &mut self.end else { return };
        match end.look() {
            Ok(true) => self.counters.connections += 1,
            Ok(false) => {}
            Err(why) => self.part(why),
        }
    }

    #[cold]
    fn part(&mut self, why: String) {
        self.leave();
        self.notice = Some(format!("{}: {why}; waiting for the next", self.args.path.display()));
        self.counters.tx_dropped += self.unsent.len() as u64;
        self.unsent.clear();
    }

    /// Memory is given up where that may take its time.
    fn leave(&mut self) {
        if let Some(end) = self.end.take() {
            self.leaving.drop(end);
        }
    }

    #[cold]
    fn violated(&mut self) {
        self.counters.violations += 1;
        self.part("the other end broke the rules of the link".into());
    }

    fn channel(&mut self) -> Option<&mut Channel> {
        self.end.as_mut()?.channel.as_mut()
    }

    fn send(&mut self, input: &Link) {
        loop {
            let Some(channel) = self.end.as_mut().and_then(|end| end.channel.as_mut()) else {
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

impl End {
    /// True when the memory came. An error is the end of the other side.
    fn look(&mut self) -> Result<bool, String> {
        if self.channel.is_none() {
            self.channel = take_over(&self.socket)?;
            return Ok(self.channel.is_some());
        }
        match self.socket.receive(&mut [0; 1], 0).map_err(reason)? {
            None => Ok(false),
            Some((0, _)) => Err(GONE.into()),
            Some(_) => Err("the other end speaks out of turn".into()),
        }
    }
}

const GONE: &str = "the other end is gone";
const STRANGER: &str = "at the other end is no ShmLink of this version";

fn reason(refused: Refused) -> String {
    match refused {
        Refused::Socket(Errno::CONNRESET) => GONE.into(),
        Refused::Socket(errno) => errno.to_string(),
        Refused::Files => STRANGER.into(),
    }
}

fn hand_over(socket: &Peer, mut channel: Channel, slots: u32) -> Result<Channel, Errno> {
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
fn take_over(socket: &Peer) -> Result<Option<Channel>, String> {
    let mut message = [0; HELLO.len() + 4];
    let Some((length, files)) = socket.receive(&mut message, 1).map_err(reason)? else {
        return Ok(None);
    };
    if length == 0 {
        return Err(GONE.into());
    }
    let (hello, slots) = message.split_at(HELLO.len());
    let (Some(file), Ok(slots)) = (files.into_iter().next(), slots.try_into()) else {
        return Err(STRANGER.into());
    };
    let memory = file.memory().filter(|_| hello == HELLO).ok_or(STRANGER)?;
    let channel = Channel::open(memory, u32::from_ne_bytes(slots))
        .map_err(|error| format!("the other end's memory cannot be used: {error}"))?;
    file.close_copy();
    Ok(Some(channel))
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
        match self.end {
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
        let joined = self.end.as_ref().is_some_and(|end| end.channel.is_some());
        let state = if joined { "joined" } else { "waiting for the other end" };
        writeln!(out, "{}: {state}", self.args.path.display())?;
        writeln!(
            out,
            "dropped: {} received, {} to send",
            self.counters.rx_dropped, self.counters.tx_dropped
        )
    }

    fn stop(&mut self) -> Result<(), AppError> {
        self.leave();
        self.unsent.clear();
        self.meeting.stop();
        Ok(())
    }
}
