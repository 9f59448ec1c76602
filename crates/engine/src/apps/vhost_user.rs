//! A network card for a virtual machine: the device of a vhost-user socket, to which QEMU or
//! another front end connects.
//!
//! Packets are copied once between the guest's buffers and ours; there is no other work, and no
//! system call while the guest polls as well. A guest that goes and comes again, or an emulator
//! that does, is met again. What a guest writes into its memory can cost it its own connection.
#![allow(unsafe_code)]

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::app::{AppError, Context, Kind, Ports};
use crate::batch::{BATCH, Batch};
use crate::link::Link;
use crate::packet::Packet;
use crate::registry::Registry;

use super::peer::seat::{Copied, Counters, Hosted, Seat, Talk};
use super::peer::{Broken, Peer};
use super::unix_socket::meet::Role;
use super::vnet;

mod memory;
mod queue;
mod session;

use memory::Memory;
use queue::{Piece, Queue};
use session::Session;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<VhostUser>();
}

/// Arguments of [`VhostUser`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VhostUserArgs {
    /// Path of the Unix socket.
    pub path: PathBuf,
    /// Connect to the path, where the front end listens (QEMU: `server=on`), instead of listening
    /// there.
    #[serde(default)]
    pub connect: bool,
    /// Take memory that its owner could cut off, which would end this process by SIGBUS.
    #[serde(default)]
    pub unsealed: bool,
}

/// See the module documentation.
pub type VhostUser = Hosted<Session>;

/// `struct virtio_net_hdr_v1`: the header that the kernel uses, and a number of buffers, always
/// one.
const HEADER: usize = vnet::LENGTH + 2;

impl Kind for VhostUser {
    const NAME: &'static str = "VhostUser";
    const ABOUT: &'static str =
        "a virtio network card for a virtual machine (QEMU's -netdev vhost-user)";
    const INPUTS: Ports = Ports::Named(&["rx"]);
    const OUTPUTS: Ports = Ports::Named(&["tx"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] = Counters::NAMES;
    type Args = VhostUserArgs;

    fn new(args: VhostUserArgs, _context: &Context) -> Result<Self, AppError> {
        Self::open(args)
    }
}

impl Talk for Session {
    type Args = VhostUserArgs;
    type Desk = Vec<Piece>;
    const WHO: &'static str = "the front end";

    fn role(args: &VhostUserArgs) -> Role {
        if args.connect { Role::ConnectStream } else { Role::ListenStream }
    }

    fn path(args: &VhostUserArgs) -> &Path {
        &args.path
    }

    fn is_trusting(args: &VhostUserArgs) -> bool {
        args.unsealed
    }

    fn start(socket: Peer, args: &VhostUserArgs, _now: u64) -> Result<Self, Broken> {
        Ok(Session::new(socket, args.unsealed))
    }

    fn poll(&mut self, _args: &VhostUserArgs, _now: u64) -> Result<(), Broken> {
        self.answer_all()
    }

    fn is_met(&self) -> bool {
        true
    }

    /// Packets can be sent: a guest may start its queues one by one.
    fn is_running(&self) -> bool {
        self.takes_packets()
    }

    fn receive(&mut self, at: &mut Seat<'_, Self>, output: &Link) -> Result<(), Broken> {
        let (queue, memory) = self.transmitq();
        if !queue.is_running() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let mut result = Ok(());
        for _ in 0..output.room().min(BATCH) {
            match queue.take(memory, false, at.desk) {
                Ok(Some(head)) => {
                    if let Some(packet) = copy_out(at.desk).counted(at.counters) {
                        drop(batch.push(packet));
                    }
                    queue.give(head, 0);
                }
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        queue.show();
        if !batch.is_empty() {
            output.transmit_batch(&mut batch);
        }
        result
    }

    fn send(&mut self, at: &mut Seat<'_, Self>, input: &Link) -> Result<(), Broken> {
        let open = self.takes_open_checksums();
        let (queue, memory) = self.receiveq();
        let result = send(queue, memory, input, open, at.desk, &mut at.counters.tx_dropped);
        queue.show();
        result
    }

    fn describe(talk: Option<&Self>, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(match talk {
            None => "waiting for a front end",
            Some(talk) if talk.is_started() => "a guest's driver is at work",
            Some(_) => "connected; the guest's driver has not started",
        })
    }
}

fn send(
    queue: &mut Queue,
    memory: &Memory,
    input: &Link,
    open: bool,
    pieces: &mut Vec<Piece>,
    dropped: &mut u64,
) -> Result<(), Broken> {
    while !input.is_empty() {
        let Some(head) = queue.take(memory, true, pieces)? else { break };
        let Some(mut packet) = input.receive() else { break };
        let mut header = [0; HEADER];
        if open {
            header[..vnet::LENGTH].copy_from_slice(&vnet::Header::of(&packet));
        } else {
            vnet::finish(&mut packet);
        }
        header[vnet::LENGTH..].copy_from_slice(&1_u16.to_le_bytes());
        let room: usize = pieces.iter().map(|piece| piece.length).sum();
        if room < HEADER + packet.length() {
            *dropped += 1;
            queue.give(head, 0);
            continue;
        }
        let mut pieces = Cursor::new(pieces);
        pieces.write(&header);
        pieces.write(&packet);
        queue.give(head, (HEADER + packet.length()) as u32);
    }
    Ok(())
}

fn copy_out(pieces: &[Piece]) -> Copied {
    let length: usize = pieces.iter().map(|piece| piece.length).sum();
    let Some(length) = length.checked_sub(HEADER).filter(|length| *length > 0) else {
        return Copied::Unfit;
    };
    let Some(mut packet) = Packet::allocate() else { return Copied::NoMemory };
    if length > packet.tailroom() {
        return Copied::Unfit;
    }
    let offset = crate::arena::CONTROL + packet.headroom();
    let mut header = [0; HEADER];
    let mut from = Cursor::new(pieces);
    from.read(header.as_mut_ptr(), HEADER);
    from.read(packet.as_mut_ptr(), length);
    // SAFETY: `length` bytes were copied behind `offset`, where there is room for them.
    let mut packet = unsafe { Packet::from_slot(packet.into_slot(), offset, length) };
    let mut start = [0; vnet::LENGTH];
    start.copy_from_slice(&header[..vnet::LENGTH]);
    vnet::Header::parse(&start).apply(&mut packet, 0);
    Copied::Packet(packet)
}

/// A place in the pieces of a buffer, which the guest may be writing: bytes are copied and not
/// looked at.
struct Cursor<'a> {
    pieces: &'a [Piece],
    /// Bytes of the first piece that are done.
    done: usize,
}

impl<'a> Cursor<'a> {
    fn new(pieces: &'a [Piece]) -> Self {
        Self { pieces, done: 0 }
    }

    fn write(&mut self, bytes: &[u8]) {
        // SAFETY: reads the bytes of the slice, and writes into memory of the guest.
        self.each(bytes.len(), |at, done, count| unsafe {
            at.copy_from_nonoverlapping(bytes.as_ptr().wrapping_add(done), count);
        });
    }

    /// Fills `count` bytes at `to`, which must be there.
    fn read(&mut self, to: *mut u8, count: usize) {
        // SAFETY: reads memory of the guest; the caller has room for what is written.
        self.each(count, |at, done, count| unsafe {
            to.wrapping_add(done).copy_from_nonoverlapping(at, count)
        });
    }

    /// Goes over the next bytes: where they are, how many came before, how many they are.
    fn each(&mut self, mut left: usize, mut copy: impl FnMut(*mut u8, usize, usize)) {
        let mut before = 0;
        while left > 0 {
            let Some((first, rest)) = self.pieces.split_first() else { return };
            let count = left.min(first.length - self.done);
            copy(first.at.as_ptr().wrapping_add(self.done), before, count);
            (before, left, self.done) = (before + count, left - count, self.done + count);
            if self.done == first.length {
                (self.pieces, self.done) = (rest, 0);
            }
        }
    }
}
