//! A Unix socket as a port: to another program, a virtual machine, another engine.
//!
//! - `packet` (SOCK_SEQPACKET): a message is a packet. One end listens.
//! - `datagram` (SOCK_DGRAM): a message is a packet; each end has a path. QEMU's `-netdev dgram`.
//! - `stream` (SOCK_STREAM): before each packet its length, 32 bits in network order. QEMU's
//!   `-netdev stream`, passt.
//!
//! The other end may come later and come again. Until then packets for it are dropped and counted.

use std::fmt;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::args::ArgError;
use crate::batch::{BATCH, Batch};
use crate::link::Link;
use crate::registry::Registry;

use super::mmsg::{Mmsg, drop_front};
use super::peer::{self, Leaving};
use super::vnet;

pub(super) mod meet;
mod stream;

use meet::{Meeting, Role};
use stream::Stream;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<UnixSocket>();
}

/// Arguments of [`UnixSocket`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct UnixSocketArgs {
    /// Path of the socket: where to listen, or to connect to, or of the other end of datagrams.
    pub path: PathBuf,
    /// Listen at the path instead of connecting to it.
    #[serde(default)]
    pub listen: bool,
    /// How packets become bytes of the socket; both ends must agree.
    #[serde(default)]
    pub mode: SocketMode,
    /// With datagrams: the path of this end.
    #[serde(default)]
    pub local: Option<PathBuf>,
}

/// Type of the socket. See the module documentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketMode {
    /// SOCK_SEQPACKET.
    #[default]
    Packet,
    /// SOCK_DGRAM.
    Datagram,
    /// SOCK_STREAM, with the length before each packet.
    Stream,
}

/// See the module documentation.
pub struct UnixSocket {
    args: UnixSocketArgs,
    meeting: Meeting,
    leaving: Leaving,
    peer: Option<Peer>,
    messages: Mmsg,
    unsent: Batch,
    counters: Counters,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    /// Packets longer than the engine's.
    rx_oversize: u64,
    /// Packets that came while there was no other end, or that it did not take.
    tx_dropped: u64,
    connections: u64,
    /// Lengths of 0 in a stream, and datagrams of no bytes.
    rx_empty: u64,
}

/// The other end, while there is one.
enum Peer {
    Messages(peer::Peer),
    Stream(Box<Stream>),
}

impl Kind for UnixSocket {
    const NAME: &'static str = "UnixSocket";
    const ABOUT: &'static str =
        "a Unix socket: packets, datagrams or a stream with lengths (QEMU, passt)";
    const INPUTS: Ports = Ports::Named(&["rx"]);
    const OUTPUTS: Ports = Ports::Named(&["tx"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] =
        &["rx_oversize", "tx_dropped", "connections", "rx_empty"];
    type Args = UnixSocketArgs;

    fn check(args: &UnixSocketArgs) -> Result<(), ArgError> {
        match (args.mode, &args.local, args.listen) {
            (SocketMode::Datagram, None, _) => {
                Err(ArgError::wrong("local", "needed for datagrams: the other end answers to it"))
            }
            (SocketMode::Datagram, _, true) => Err(ArgError::wrong(
                "listen",
                "datagrams have no listening end: give both ends `path` and `local`",
            )),
            (SocketMode::Packet | SocketMode::Stream, Some(_), _) => {
                Err(ArgError::wrong("local", "only for mode \"datagram\""))
            }
            _ => Ok(()),
        }
    }

    fn new(args: UnixSocketArgs, _context: &Context) -> Result<Self, AppError> {
        let role = match (args.mode, args.listen) {
            (SocketMode::Packet, true) => Role::ListenPacket,
            (SocketMode::Packet, false) => Role::ConnectPacket,
            (SocketMode::Stream, true) => Role::ListenStream,
            (SocketMode::Stream, false) => Role::ConnectStream,
            (SocketMode::Datagram, _) => Role::Datagram,
        };
        let meeting = Meeting::new(role, &args.path, args.local.as_deref(), false)?;
        let (messages, unsent) = (Mmsg::new(), Batch::new());
        let (leaving, counters) = (Leaving::default(), Counters::default());
        let mut this = Self { args, meeting, leaving, peer: None, messages, unsent, counters };
        this.meet(0);
        Ok(this)
    }
}

impl UnixSocket {
    fn meet(&mut self, now: u64) {
        if !self.leaving.is_room() {
            return;
        }
        let Some(socket) = self.meeting.poll(now) else { return };
        let socket = peer::Peer::new(socket, &self.leaving, false);
        self.counters.connections += 1;
        self.peer = Some(match self.args.mode {
            SocketMode::Stream => Peer::Stream(Box::new(Stream::new(socket))),
            _ => Peer::Messages(socket),
        });
    }

    #[cold]
    fn part(&mut self) {
        self.peer = None;
        self.meeting.lost();
        self.counters.tx_dropped += self.unsent.len() as u64;
        self.unsent.clear();
    }

    fn receive(&mut self, output: &Link) -> Result<(), Errno> {
        let mut batch = Batch::new();
        let room = output.room().min(BATCH);
        let result = match &mut self.peer {
            None => return Ok(()),
            // What peers hand over may pile up no further.
            _ if !self.leaving.is_room() => return Ok(()),
            Some(Peer::Stream(stream)) => stream.receive(room, &mut batch, &mut self.counters),
            Some(Peer::Messages(socket)) => match self.messages.receive(socket, room, &mut batch) {
                Ok(lost) => {
                    self.counters.rx_oversize += lost as u64;
                    end_of_packets(&mut batch, self.args.mode, &mut self.counters)
                }
                Err(errno) => Err(errno),
            },
        };
        if !batch.is_empty() {
            output.transmit_batch(&mut batch);
        }
        match result {
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            other => other,
        }
    }

    fn send(&mut self, input: &Link) -> Result<(), Errno> {
        loop {
            if self.unsent.is_empty() {
                input.receive_batch(&mut self.unsent);
                self.unsent.iter_mut().for_each(vnet::finish);
            }
            let sent = match &mut self.peer {
                None => {
                    self.part();
                    self.counters.tx_dropped += input.discard() as u64;
                    return Ok(());
                }
                _ if self.unsent.is_empty() => return Ok(()),
                Some(Peer::Stream(stream)) => stream.send(&self.unsent),
                Some(Peer::Messages(socket)) => self.messages.send(socket.as_fd(), &self.unsent),
            };
            match sent {
                Ok(0) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return Ok(()),
                Ok(sent) => drop_front(&mut self.unsent, sent),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// A message of no bytes ends a connection of packets; of datagrams it is nothing.
fn end_of_packets(
    batch: &mut Batch,
    mode: SocketMode,
    counters: &mut Counters,
) -> Result<(), Errno> {
    let all = batch.len();
    batch.retain(|packet| !packet.is_empty());
    let empty = all - batch.len();
    if empty > 0 && mode == SocketMode::Packet {
        return Err(Errno::PIPE);
    }
    counters.rx_empty += empty as u64;
    Ok(())
}

impl App for UnixSocket {
    fn pull(&mut self, io: &Io) {
        let Some(output) = io.output(0) else { return };
        if self.receive(output).is_err() {
            self.part();
        }
    }

    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        if self.send(input).is_err() {
            self.part();
        }
    }

    fn tick(&mut self, io: &Io) {
        match self.peer {
            None => self.meet(io.now()),
            Some(_) => self.meeting.follow(io.now()),
        }
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[
            self.counters.rx_oversize,
            self.counters.tx_dropped,
            self.counters.connections,
            self.counters.rx_empty,
        ]);
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let state = if self.peer.is_some() { "connected" } else { "waiting for the other end" };
        writeln!(out, "{}: {state}", self.args.path.display())?;
        writeln!(
            out,
            "dropped: {} too long, {} empty, {} to send",
            self.counters.rx_oversize, self.counters.rx_empty, self.counters.tx_dropped
        )
    }

    fn stop(&mut self) -> Result<(), AppError> {
        self.part();
        self.meeting.stop();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixDatagram;
    use std::rc::Rc;

    use super::*;

    /// What has come by then.
    fn receive(app: &mut UnixSocket, now: u64) -> usize {
        let output = Rc::new(Link::new());
        let io = Io::new(vec![None], vec![Some(output.clone())], now);
        app.tick(&io);
        app.pull(&io);
        output.receive_batch(&mut Batch::new())
    }

    /// The kernel tells only who sends that a peer of datagrams has gone.
    #[test]
    fn another_peer_of_datagrams_reaches_an_app_that_only_receives() {
        let folder = tempfile::tempdir().unwrap();
        let (own, path) = (folder.path().join("own"), folder.path().join("other"));
        let args = UnixSocketArgs {
            path: path.clone(),
            listen: false,
            mode: SocketMode::Datagram,
            local: Some(own.clone()),
        };
        let context = Context { name: String::from("app"), thread: 0 };
        let mut app = UnixSocket::new(args, &context).unwrap();
        for turn in 1..=3 {
            let now = turn * 1_000_000_000;
            let peer = UnixDatagram::bind(&path).unwrap();
            assert_eq!(receive(&mut app, now), 0);
            peer.send_to(&[7; 60], &own).unwrap();
            assert_eq!(receive(&mut app, now + 1), 1);
            fs::remove_file(&path).unwrap();
        }
        app.stop().unwrap();
    }
}
