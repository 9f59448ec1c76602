//! memif 2.0, VPP's packet interface in shared memory, in both of its roles: to VPP, to DPDK's
//! net_memif, to libmemif, to another engine.
//!
//! A packet is copied once, between the shared buffers and ours, with no system call while the peer
//! looks by itself. A peer that goes and comes again is met again. What a peer writes into the
//! shared memory can cost it its own connection.
#![allow(unsafe_code)]

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::app::{AppError, Context, Kind, Ports};
use crate::args::ArgError;
use crate::batch::{BATCH, Batch};
use crate::link::Link;
use crate::packet::Packet;
use crate::registry::Registry;

use super::peer::seat::{Copied, Counters, Hosted, Seat, Talk};
use super::peer::{Broken, MOST_PIECES, Peer};
use super::unix_socket::meet::Role;
use super::vnet;

mod flow;
mod message;
mod region;
mod ring;
mod session;

use ring::Piece;
use session::Session;

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
pub type Memif = Hosted<Session>;

/// What stays when a peer leaves.
#[derive(Default)]
pub struct Desk {
    pieces: Vec<Piece>,
    /// A packet for which its ring had no room.
    waiting: Option<Packet>,
    /// The ring to be read first, so that none starves.
    first: usize,
}

impl Kind for Memif {
    const NAME: &'static str = "Memif";
    const ABOUT: &'static str = "memory shared with VPP, DPDK or another engine (memif 2.0)";
    const INPUTS: Ports = Ports::Named(&["rx"]);
    const OUTPUTS: Ports = Ports::Named(&["tx"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] = Counters::NAMES;
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
        Self::open(args)
    }
}

impl Talk for Session {
    type Args = MemifArgs;
    type Desk = Desk;
    const WHO: &'static str = "the peer";

    fn role(args: &MemifArgs) -> Role {
        if args.listen { Role::ListenPacket } else { Role::ConnectPacket }
    }

    fn path(args: &MemifArgs) -> &Path {
        &args.path
    }

    fn is_trusting(args: &MemifArgs) -> bool {
        args.unsealed
    }

    fn start(socket: Peer, args: &MemifArgs, now: u64) -> Result<Self, Broken> {
        Session::new(socket, args, now)
    }

    fn poll(&mut self, args: &MemifArgs, now: u64) -> Result<(), Broken> {
        self.answer(args, now)
    }

    fn is_met(&self) -> bool {
        self.is_joined()
    }

    fn is_running(&self) -> bool {
        self.is_joined() && !self.transmit.is_empty()
    }

    fn tell(&self, why: &str) {
        self.say_why(why);
    }

    fn receive(&mut self, at: &mut Seat<'_, Self>, output: &Link) -> Result<(), Broken> {
        if !self.is_joined() {
            return Ok(());
        }
        let Desk { pieces, first, .. } = &mut *at.desk;
        let mut batch = Batch::new();
        let mut room = output.room().min(BATCH);
        let mut result = Ok(());
        let count = self.receive.len();
        for turn in 0..count {
            let ring = &mut self.receive[(*first + turn) % count];
            while room > 0 && result.is_ok() {
                match ring.take(&self.regions, pieces) {
                    Ok(0) => break,
                    // A long chain is the work of several packets.
                    Ok(count) => {
                        room = room.saturating_sub(count.div_ceil(MOST_PIECES));
                        if let Some(packet) = copy_out(pieces).counted(at.counters) {
                            drop(batch.push(packet));
                        }
                    }
                    Err(error) => result = Err(error),
                }
            }
            ring.show();
        }
        *first = (*first + 1) % count.max(1);
        if !batch.is_empty() {
            output.transmit_batch(&mut batch);
        }
        result
    }

    fn send(&mut self, at: &mut Seat<'_, Self>, input: &Link) -> Result<(), Broken> {
        let result = loop {
            let next = at.desk.waiting.take().or_else(|| {
                let mut packet = input.receive()?;
                vnet::finish(&mut packet);
                Some(packet)
            });
            let Some(packet) = next else { break Ok(()) };
            let queues = self.transmit.len();
            // Packets of a flow stay in order: they take one ring.
            let queue = if queues == 1 { 0 } else { flow::hash(&packet) as usize % queues };
            match self.transmit[queue].put(&self.regions, &packet) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => at.counters.tx_dropped += 1,
                Ok(None) => {
                    at.desk.waiting = Some(packet);
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        self.transmit.iter_mut().for_each(ring::Ring::show);
        result
    }

    fn clear(desk: &mut Desk) -> u64 {
        u64::from(desk.waiting.take().is_some())
    }

    fn describe(talk: Option<&Self>, out: &mut dyn fmt::Write) -> fmt::Result {
        match talk {
            None => write!(out, "waiting for a peer"),
            Some(talk) if talk.is_joined() => {
                let (from, to) = (talk.receive.len(), talk.transmit.len());
                write!(out, "joined with {}, {from} rings from it, {to} to it", talk.peer)
            }
            Some(_) => write!(out, "connected; the rings are not joined yet"),
        }
    }
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
