//! memif 2.0, VPP's packet interface in shared memory, in both of its roles: to VPP, to DPDK's
//! net_memif, to libmemif, to another engine.
//!
//! A packet is copied once, between the shared buffers and ours, with no system call while the peer
//! looks by itself. A peer that goes and comes again is met again. What a peer writes into the
//! shared memory can cost it its own connection.
#![allow(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::args::ArgError;
use crate::batch::{BATCH, Batch};
use crate::link::Link;
use crate::packet::Packet;
use crate::registry::Registry;

use super::peer::notices::Notices;
use super::peer::{Leaving, MOST_PIECES, Peer};
use super::unix_socket::meet::{Meeting, Role};
use super::vnet;

mod flow;
mod message;
mod region;
mod ring;
mod session;

use ring::Piece;
use session::{Broken, Session};

/// Most queues of a direction.
const MAX_QUEUES: u16 = 64;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Memif>();
}

/// Arguments of [`Memif`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MemifArgs {
    /// Path of the Unix socket.
    pub path: PathBuf,
    /// Listen there: memif's server (master). Otherwise the client (slave), whose memory it is.
    #[serde(default)]
    pub listen: bool,
    /// Which of the interfaces behind the socket.
    #[serde(default)]
    pub id: u32,
    /// What a server asks of its clients, up to 23 bytes; empty: nothing.
    #[serde(default)]
    pub secret: String,
    /// Rings of each direction: as many a client makes, as many a server takes at most.
    #[serde(default = "one")]
    pub queues: u16,
    /// Entries of a ring, for a client to say: a power of two, up to 16384.
    #[serde(default = "ring_size")]
    pub ring: u32,
    /// Bytes of a buffer, for a client to say.
    #[serde(default = "buffer_size")]
    pub buffer: u32,
    /// Take memory that its owner could cut off, which would end this process by SIGBUS.
    #[serde(default)]
    pub unsealed: bool,
}

fn one() -> u16 {
    1
}

fn ring_size() -> u32 {
    1024
}

fn buffer_size() -> u32 {
    2048
}

/// See the module documentation.
pub struct Memif {
    args: MemifArgs,
    meeting: Meeting,
    leaving: Leaving,
    session: Option<Session>,
    pieces: Vec<Piece>,
    /// A packet for which its ring had no room.
    waiting: Option<Packet>,
    /// The ring to be read first, so that none starves.
    first: usize,
    counters: Counters,
    notices: Notices,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    /// Packets longer than the engine's, empty, or in too many pieces.
    rx_oversize: u64,
    /// Packets for which there was no memory.
    rx_dropped: u64,
    /// Packets that came while there was no peer, or that do not fit in a whole ring of its.
    tx_dropped: u64,
    /// Peers whose rings were joined.
    connections: u64,
    /// Times that a peer broke the rules.
    violations: u64,
}

impl Kind for Memif {
    const NAME: &'static str = "Memif";
    const ABOUT: &'static str = "memory shared with VPP, DPDK or another engine (memif 2.0)";
    const INPUTS: Ports = Ports::Named(&["rx"]);
    const OUTPUTS: Ports = Ports::Named(&["tx"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] =
        &["rx_oversize", "rx_dropped", "tx_dropped", "connections", "violations"];
    type Args = MemifArgs;

    fn check(args: &MemifArgs) -> Result<(), ArgError> {
        let wrong = |key: &str, problem: &str| Err(ArgError::wrong(key, problem));
        if args.secret.len() > 23 || args.secret.contains('\0') {
            return wrong("secret", "up to 23 bytes");
        }
        if !(1..=MAX_QUEUES).contains(&args.queues) {
            return wrong("queues", "from 1 to 64");
        }
        if !args.ring.is_power_of_two() || !(2..=16384).contains(&args.ring) {
            return wrong("ring", "a power of two from 2 to 16384");
        }
        if !args.buffer.is_multiple_of(64) || !(64..=16384).contains(&args.buffer) {
            return wrong("buffer", "a multiple of 64, from 64 to 16384");
        }
        // Places in a region are of 32 bits.
        let buffers =
            2 * u64::from(args.queues) * u64::from(args.ring) * u64::from(args.buffer + 16);
        if buffers > 1 << 31 {
            return wrong("queues", "with this `ring` and `buffer` more than 2 GiB");
        }
        Ok(())
    }

    fn new(args: MemifArgs, _context: &Context) -> Result<Self, AppError> {
        let role = if args.listen { Role::ListenPacket } else { Role::ConnectPacket };
        let meeting = Meeting::new(role, &args.path, None)?;
        Ok(Self {
            args,
            meeting,
            leaving: Leaving::default(),
            session: None,
            pieces: Vec::new(),
            waiting: None,
            first: 0,
            counters: Counters::default(),
            notices: Notices::default(),
        })
    }
}

impl Memif {
    /// Looks at the socket.
    fn look(&mut self, now: u64) {
        let result = match &mut self.session {
            None if !self.leaving.is_room() => return,
            None => match self.meeting.poll(now) {
                None => return,
                Some(socket) => {
                    let socket = Peer::new(socket, &self.leaving, self.args.unsealed);
                    Session::new(socket, &self.args, now).map(|new| self.session = Some(new))
                }
            },
            Some(session) => {
                let was = session.is_joined();
                let result = session.poll(&self.args, now);
                if !was && session.is_joined() {
                    self.counters.connections += 1;
                    self.notices.forget();
                }
                result
            }
        };
        if let Err(error) = result {
            self.part(&error, now);
        }
    }

    #[cold]
    fn part(&mut self, error: &Broken, now: u64) {
        let Some(session) = self.session.take() else { return };
        if error.is_violation() {
            self.counters.violations += 1;
            session.tell(&error.to_string());
        }
        session.leave();
        self.counters.tx_dropped += u64::from(self.waiting.take().is_some());
        self.notices.tell(now, &error.reason(), || {
            format!("the peer at {} is left: {error}", self.args.path.display())
        });
    }

    /// Packets from the peer.
    fn receive(&mut self, output: &Link) -> Result<(), Broken> {
        let Some(session) = self.session.as_mut().filter(|session| session.is_joined()) else {
            return Ok(());
        };
        let mut batch = Batch::new();
        let mut room = output.room().min(BATCH);
        let mut result = Ok(());
        let count = session.receive.len();
        for turn in 0..count {
            let ring = &mut session.receive[(self.first + turn) % count];
            while room > 0 && result.is_ok() {
                match ring.take(&session.regions, &mut self.pieces) {
                    Ok(0) => break,
                    // A long chain is the work of several packets.
                    Ok(count) => {
                        room = room.saturating_sub(count.div_ceil(MOST_PIECES));
                        match copy_out(&self.pieces) {
                            Copied::Packet(packet) => drop(batch.push(packet)),
                            Copied::Unfit => self.counters.rx_oversize += 1,
                            Copied::NoMemory => self.counters.rx_dropped += 1,
                        }
                    }
                    Err(error) => result = Err(error),
                }
            }
            ring.show();
        }
        self.first = (self.first + 1) % count.max(1);
        if !batch.is_empty() {
            output.transmit_batch(&mut batch);
        }
        result
    }

    /// Packets to the peer. What it has no buffers for waits in the link.
    fn send(&mut self, input: &Link) -> Result<(), Broken> {
        let session = self.session.as_mut();
        let Some(session) =
            session.filter(|session| session.is_joined() && !session.transmit.is_empty())
        else {
            self.counters.tx_dropped += input.discard() as u64;
            return Ok(());
        };
        let result = loop {
            let next = self.waiting.take().or_else(|| {
                let mut packet = input.receive()?;
                vnet::finish(&mut packet);
                Some(packet)
            });
            let Some(packet) = next else { break Ok(()) };
            let queues = session.transmit.len();
            // Packets of a flow stay in order: they take one ring.
            let queue = if queues == 1 { 0 } else { flow::hash(&packet) as usize % queues };
            match session.transmit[queue].put(&session.regions, &packet) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => self.counters.tx_dropped += 1,
                Ok(None) => {
                    self.waiting = Some(packet);
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        session.transmit.iter_mut().for_each(ring::Ring::show);
        result
    }
}

/// What became of a packet of the peer.
enum Copied {
    Packet(Packet),
    /// Too long, or nothing.
    Unfit,
    NoMemory,
}

fn copy_out(pieces: &[Piece]) -> Copied {
    let length: usize = pieces.iter().map(|piece| piece.length).sum();
    if length == 0 {
        return Copied::Unfit;
    }
    let Some(mut packet) = Packet::allocate() else { return Copied::NoMemory };
    if length > packet.tailroom() {
        return Copied::Unfit;
    }
    let offset = crate::arena::CONTROL + packet.headroom();
    let (to, mut done) = (packet.as_mut_ptr(), 0);
    for piece in pieces {
        // SAFETY: reads shared memory that the piece was checked to be, and writes behind the start
        // of the packet, where there is room for the sum of all pieces.
        unsafe { to.wrapping_add(done).copy_from_nonoverlapping(piece.at.as_ptr(), piece.length) };
        done += piece.length;
    }
    // SAFETY: `length` bytes were copied behind `offset`, where there is room for them.
    Copied::Packet(unsafe { Packet::from_slot(packet.into_slot(), offset, length) })
}

impl App for Memif {
    fn pull(&mut self, io: &Io) {
        let Some(output) = io.output(0) else { return };
        if let Err(error) = self.receive(output) {
            self.part(&error, io.now());
        }
    }

    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        if let Err(error) = self.send(input) {
            self.part(&error, io.now());
        }
    }

    fn tick(&mut self, io: &Io) {
        self.look(io.now());
    }

    fn notice(&mut self) -> Option<String> {
        self.notices.take()
    }

    fn counters(&self, values: &mut [u64]) {
        let Counters { rx_oversize, rx_dropped, tx_dropped, connections, violations } =
            self.counters;
        values.copy_from_slice(&[rx_oversize, rx_dropped, tx_dropped, connections, violations]);
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{}: ", self.args.path.display())?;
        match &self.session {
            None => writeln!(out, "waiting for a peer")?,
            Some(session) if session.is_joined() => {
                let (from, to) = (session.receive.len(), session.transmit.len());
                writeln!(out, "joined with {}, {from} rings from it, {to} to it", session.peer)?;
            }
            Some(_) => writeln!(out, "connected; the rings are not joined yet")?,
        }
        let Counters { rx_oversize, rx_dropped, tx_dropped, .. } = self.counters;
        writeln!(
            out,
            "dropped: {rx_dropped} without memory, {rx_oversize} of impossible length, {tx_dropped} to send"
        )
    }

    fn stop(&mut self) -> Result<(), AppError> {
        if let Some(session) = self.session.take() {
            session.tell("the engine ends");
            session.leave();
        }
        self.waiting = None;
        self.meeting.stop();
        Ok(())
    }
}
