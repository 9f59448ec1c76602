//! A network card for a virtual machine: the device of a vhost-user socket, to which QEMU or
//! another front end connects.
//!
//! Packets are copied once between the guest's buffers and ours; there is no other work, and no
//! system call while the guest polls as well. A guest that goes and comes again, or an emulator
//! that does, is met again. What a guest writes into its memory can cost it its own connection.
#![allow(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::batch::{BATCH, Batch};
use crate::link::Link;
use crate::packet::Packet;
use crate::registry::Registry;

use super::peer::notices::Notices;
use super::peer::{Leaving, Peer};
use super::unix_socket::meet::{Meeting, Role};
use super::vnet;

mod memory;
mod queue;
mod session;

use memory::{Broken, Memory};
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
pub struct VhostUser {
    args: VhostUserArgs,
    meeting: Meeting,
    leaving: Leaving,
    session: Option<Session>,
    pieces: Vec<Piece>,
    counters: Counters,
    notices: Notices,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    /// Packets longer than the engine's, shorter than their header, or in too many pieces.
    rx_oversize: u64,
    /// Packets for which there was no memory.
    rx_dropped: u64,
    /// Packets that came while there was no guest, or for which its buffers were too small.
    tx_dropped: u64,
    connections: u64,
    /// Times that the front end or the guest broke the rules.
    violations: u64,
}

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
    const COUNTERS: &'static [&'static str] =
        &["rx_oversize", "rx_dropped", "tx_dropped", "connections", "violations"];
    type Args = VhostUserArgs;

    fn new(args: VhostUserArgs, _context: &Context) -> Result<Self, AppError> {
        let role = if args.connect { Role::ConnectStream } else { Role::ListenStream };
        let meeting = Meeting::new(role, &args.path, None)?;
        let counters = Counters::default();
        let leaving = Leaving::default();
        Ok(Self {
            args,
            meeting,
            leaving,
            session: None,
            pieces: Vec::new(),
            counters,
            notices: Notices::default(),
        })
    }
}

impl VhostUser {
    /// Looks at the socket.
    fn look(&mut self, now: u64) {
        let Some(session) = &mut self.session else {
            if self.leaving.is_room()
                && let Some(socket) = self.meeting.poll(now)
            {
                let socket = Peer::new(socket, &self.leaving, self.args.unsealed);
                self.counters.connections += 1;
                self.session = Some(Session::new(socket, self.args.unsealed));
            }
            return;
        };
        match session.poll() {
            Ok(true) if session.is_running() => self.notices.forget(),
            Ok(true) => {}
            Ok(false) => self.end(),
            Err(error) => self.part(&error, now),
        }
    }

    fn end(&mut self) {
        if let Some(session) = self.session.take() {
            session.leave();
        }
    }

    #[cold]
    fn part(&mut self, error: &Broken, now: u64) {
        self.counters.violations += 1;
        self.end();
        self.notices.tell(now, &error.to_string(), || {
            format!("the front end at {} is left: {error}", self.args.path.display())
        });
    }

    /// Packets from the guest.
    fn receive(&mut self, output: &Link) -> Result<(), Broken> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let (queue, memory) = session.transmitq();
        if !queue.is_running() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let mut result = Ok(());
        for _ in 0..output.room().min(BATCH) {
            match queue.take(memory, false, &mut self.pieces) {
                Ok(Some(head)) => {
                    match copy_out(&self.pieces) {
                        Copied::Packet(packet) => drop(batch.push(packet)),
                        Copied::Unfit => self.counters.rx_oversize += 1,
                        Copied::NoMemory => self.counters.rx_dropped += 1,
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

    /// Packets to the guest. What it has no buffers for waits in the link.
    fn send(&mut self, input: &Link) -> Result<(), Broken> {
        let open = self.session.as_ref().is_some_and(Session::takes_open_checksums);
        let Some((queue, memory)) =
            self.session.as_mut().map(Session::receiveq).filter(|(queue, _)| queue.is_running())
        else {
            self.counters.tx_dropped += input.discard() as u64;
            return Ok(());
        };
        let result =
            send(queue, memory, input, open, &mut self.pieces, &mut self.counters.tx_dropped);
        queue.show();
        result
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

/// What became of a buffer of the guest.
enum Copied {
    Packet(Packet),
    /// Too long, or shorter than its header.
    Unfit,
    NoMemory,
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

impl App for VhostUser {
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
        let state = match &self.session {
            None => "waiting for a front end",
            Some(session) if session.is_running() => "a guest's driver is at work",
            Some(_) => "connected; the guest's driver has not started",
        };
        let Counters { rx_oversize, rx_dropped, tx_dropped, .. } = self.counters;
        writeln!(out, "{}: {state}", self.args.path.display())?;
        writeln!(
            out,
            "dropped: {rx_dropped} without memory, {rx_oversize} of impossible length, {tx_dropped} to send"
        )
    }

    fn stop(&mut self) -> Result<(), AppError> {
        self.end();
        self.meeting.stop();
        Ok(())
    }
}
