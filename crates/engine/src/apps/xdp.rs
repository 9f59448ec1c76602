//! An interface by AF_XDP: the fastest way to and from a network device that the kernel keeps.
//!
//! All packet memory of the process is one UMEM, so that a packet received here and sent on another
//! XDP port is never copied by the engine: its slot goes from ring to ring. In zero-copy mode the
//! driver reads and writes that memory itself; in copy mode the kernel copies between it and its
//! own buffers, once on the way in and once on the way out.
//!
//! The program that catches an interface's packets hangs on a descriptor of this process: when the
//! process ends, even when it is killed, the kernel detaches it and the interface is as before.
//!
//! Limits: frames up to 1792 bytes; no VLAN tags that the device has taken out, no checksums that
//! it was to fill in (switch both off with `ethtool -K IF rxvlan off tx off` at the sender if it is
//! on this machine); no jumbo frames.
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::presence::{Port, Presence, too_large};
use super::vnet;
use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::arena::{SLOT, arena};
use crate::args::ArgError;
use crate::batch::Batch;
use crate::link::Link;
use crate::netdev::{Netdev, Promiscuous};
use crate::packet::{NEEDS_CHECKSUM, Packet};
use crate::pool;
use crate::registry::Registry;
use crate::xdp::{Attachment, Copying, Filter, Mode, Options, Socket, Umem};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Xdp>();
}

const ETHERNET_HEADER: usize = 14;

/// All packet memory, as AF_XDP sockets see it.
static UMEM: LazyLock<Arc<Umem>> = LazyLock::new(|| {
    let arena = arena().pin();
    // SAFETY: the arena lives as long as the process.
    Arc::new(unsafe { Umem::new(arena.base().as_ptr(), arena.length(), SLOT as u32, 0) })
});

/// The memory that all XDP apps of this process share, for sockets beside them.
pub fn umem() -> &'static Arc<Umem> {
    &UMEM
}

/// Arguments of [`Xdp`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct XdpArgs {
    /// Name of the interface.
    pub interface: String,
    /// Receive and transmit queue of the interface. One app per queue.
    #[serde(default)]
    pub queue: u32,
    /// Where the program runs: in the driver (`native`), in the stack (`generic`), or what the
    /// driver allows (`auto`).
    #[serde(default)]
    pub mode: ModeArg,
    /// Whether the driver moves packets itself (`zero-copy`), the kernel does (`copy`), or what the
    /// driver allows (`auto`).
    #[serde(default)]
    pub copy: CopyArg,
    /// Packets in each ring: a power of two from 64 to 16384.
    #[serde(default = "default_ring")]
    pub ring: u32,
    /// Receive packets. Without, no program is attached and the interface stays with the kernel.
    #[serde(default = "yes")]
    pub receive: bool,
    /// Receive packets for other MAC addresses, too.
    #[serde(default = "yes")]
    pub promiscuous: bool,
    /// Take only packets of this IP protocol (a number, 17 is UDP) and leave the others to the
    /// kernel.
    #[serde(default)]
    pub protocol: Option<u8>,
    /// Take only packets to these UDP or TCP ports and leave the others to the kernel.
    #[serde(default)]
    pub ports: Vec<u16>,
}

/// Where the program runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeArg {
    /// In the driver if it can, else in the stack.
    #[default]
    Auto,
    /// In the driver (XDP_FLAGS_DRV_MODE).
    Native,
    /// In the kernel's stack, for any interface (XDP_FLAGS_SKB_MODE).
    Generic,
}

/// Who moves packets between the interface and the packet memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyArg {
    /// The driver if it can, else the kernel.
    #[default]
    Auto,
    /// The kernel, by a copy (XDP_COPY).
    Copy,
    /// The driver, without one (XDP_ZEROCOPY).
    ZeroCopy,
}

fn default_ring() -> u32 {
    2048
}

fn yes() -> bool {
    true
}

impl XdpArgs {
    fn filter(&self) -> Filter {
        Filter { protocol: self.protocol, ports: self.ports.clone() }
    }

    fn mode(&self) -> Option<Mode> {
        match self.mode {
            ModeArg::Auto => None,
            ModeArg::Native => Some(Mode::Native),
            ModeArg::Generic => Some(Mode::Generic),
        }
    }

    fn copying(&self) -> Copying {
        match self.copy {
            CopyArg::Auto => Copying::Auto,
            CopyArg::Copy => Copying::Copy,
            CopyArg::ZeroCopy => Copying::ZeroCopy,
        }
    }
}

/// What the kernel leaves free before a received frame.
const XDP_PACKET_HEADROOM: usize = 256;

/// A queue of an interface.
pub struct Xdp {
    args: XdpArgs,
    presence: Presence<Queue>,
    /// Packets that came while the interface was away.
    tx_dropped: u64,
    /// Frames for which the kernel had no buffer or no place, on this socket and on those before
    /// it.
    rx_dropped: u64,
    earlier: u64,
}

/// The open half of the app.
struct Queue {
    netdev: Netdev,
    socket: Socket,
    attachment: Option<Arc<Attachment>>,
    _promiscuous: Option<Promiscuous>,
    number: u32,
    /// Packets to send that were no Ethernet frames.
    too_short: u64,
}

impl Port for Queue {
    type Args = XdpArgs;

    fn open(args: &XdpArgs) -> Result<Queue, AppError> {
        let failed = |error: &dyn fmt::Display| {
            AppError::new(format!("interface {}: {error}", args.interface))
        };
        let netdev =
            Netdev::find(&args.interface).map_err(|error| AppError::new(error.to_string()))?;
        let options = Options {
            ifindex: netdev.index(),
            queue: args.queue,
            ring_size: args.ring,
            copying: args.copying(),
        };
        let attachment = match args.receive {
            true => Some(
                Attachment::open(netdev.index(), args.mode(), &args.filter())
                    .map_err(|e| failed(&e))?,
            ),
            false => None,
        };
        let socket = Socket::open(&UMEM, &options).map_err(|error| failed(&error))?;
        let promiscuous = match args.receive && args.promiscuous {
            true => Some(netdev.promiscuous().map_err(|error| AppError::new(error.to_string()))?),
            false => None,
        };
        let mut queue = Queue {
            netdev,
            socket,
            attachment,
            _promiscuous: promiscuous,
            number: args.queue,
            too_short: 0,
        };
        queue.refill(args.ring);
        if let Some(attachment) = &queue.attachment {
            // Only now, with buffers in the fill ring: a packet that arrived before would be
            // dropped.
            if let Err(error) = attachment.direct(args.queue, queue.socket.as_fd()) {
                let error = failed(&error);
                queue.close();
                return Err(error);
            }
        }
        Ok(queue)
    }

    fn caution(&self) -> Option<String> {
        // What AF_XDP leaves of a slot to a received frame.
        const MOST: usize = SLOT - XDP_PACKET_HEADROOM;
        self.attachment.as_ref().and_then(|_| too_large(&self.netdev, MOST))
    }

    fn lost(&mut self) -> Option<String> {
        (!self.netdev.exists())
            .then(|| format!("interface {} does not exist any more", self.netdev.name()))
    }

    fn close(self) {
        let Queue { socket, attachment, number, .. } = self;
        if let Some(attachment) = attachment {
            attachment.release(number);
        }
        let base = arena().base().as_ptr();
        pool::with(|pool| {
            socket.close(|chunk| pool.put_uncounted(base.wrapping_add(chunk as usize)))
        });
    }
}

impl Queue {
    /// Gives the kernel slots to receive into, up to `target`.
    #[inline]
    fn refill(&mut self, target: u32) {
        if self.attachment.is_none() {
            return;
        }
        let base = arena().base().as_ptr().addr();
        let socket = &mut self.socket;
        pool::with(|pool| {
            loop {
                let room = socket.fill_room(target).min(crate::arena::CHUNK as u32);
                let ready = pool.ready(room as usize);
                if ready == 0 {
                    break;
                }
                for _ in 0..ready {
                    // SAFETY: `ready` slots are.
                    let slot = unsafe { pool.take() };
                    // SAFETY: a slot of the arena, which is the UMEM, just taken.
                    unsafe { socket.fill((slot.addr() - base) as u64) };
                }
            }
        });
        self.socket.flush_fill();
    }

    #[inline]
    fn receive(&mut self, most: usize, batch: &mut Batch) {
        let base = arena().base();
        self.socket.receive(most.min(batch.room()) as u32, |frame| {
            // SAFETY: an offset within the UMEM, which is the arena.
            let slot = unsafe { base.add(frame.chunk as usize) };
            // SAFETY: the kernel wrote the frame there and gave the slot back.
            let packet =
                unsafe { Packet::from_slot(slot, frame.data as usize, frame.length as usize) };
            batch.push(packet);
        });
    }

    /// Takes back the slots of packets that were sent.
    #[inline]
    fn complete(&mut self) {
        let base = arena().base().as_ptr();
        let socket = &mut self.socket;
        pool::with(|pool| {
            socket
                .complete(u32::MAX, |chunk| pool.put_uncounted(base.wrapping_add(chunk as usize)));
        });
    }

    /// Sends what waits, as far as the ring has room; the rest stays in the link.
    fn send_all(&mut self, input: &Link) -> Result<(), Errno> {
        self.complete();
        loop {
            let sent = self.queue_packets(input);
            self.socket.flush_send()?;
            if sent == 0 || input.is_empty() {
                return Ok(());
            }
            self.complete();
        }
    }

    #[inline]
    fn queue_packets(&mut self, input: &Link) -> u32 {
        let base = arena().base().as_ptr().addr();
        let waiting = input.length() as u32;
        let count = self.socket.send_room(waiting).min(waiting);
        let mut bytes = 0;
        for _ in 0..count {
            let Some(packet) = input.receive() else { break };
            let (length, address) = (packet.length(), packet.as_ptr().addr() - base);
            if length < ETHERNET_HEADER || packet.flags & NEEDS_CHECKSUM != 0 {
                self.queue_odd(packet);
                continue;
            }
            packet.into_slot();
            // SAFETY: the packet's bytes within its slot of the UMEM, which was given up just now.
            unsafe { self.socket.send(address as u64, length as u32) };
            bytes += length as u64;
        }
        pool::with(|pool| pool.count_frees(count.into(), bytes));
        count
    }

    /// A packet that must be finished first, or is too short to be one: the kernel would skip it
    /// and keep its slot.
    #[cold]
    fn queue_odd(&mut self, mut packet: Packet) {
        if packet.length() < ETHERNET_HEADER {
            self.too_short += 1;
            return;
        }
        vnet::finish(&mut packet);
        let (length, address) =
            (packet.length(), packet.as_ptr().addr() - arena().base().as_ptr().addr());
        packet.into_slot();
        // SAFETY: the packet's bytes within its slot of the UMEM, which was given up just now.
        unsafe { self.socket.send(address as u64, length as u32) };
    }

    fn dropped(&self) -> u64 {
        self.socket.statistics().map_or(0, |counts| {
            // rx_dropped counts all of these; its parts are what can be told apart.
            counts.rx_dropped + counts.rx_ring_full.unwrap_or(0)
        })
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let copy = if self.socket.is_zero_copy() { "zero copy" } else { "copy" };
        write!(out, "{} queue {}, ", self.netdev.name(), self.number)?;
        match &self.attachment {
            None => writeln!(out, "transmit only, {copy}"),
            Some(attachment) => {
                write!(out, "{} mode, {copy}", attachment.mode().name())?;
                match attachment.fallback() {
                    Some(error) => writeln!(out, " (native mode was refused: {error})"),
                    None => writeln!(out),
                }
            }
        }
    }
}

impl Kind for Xdp {
    const NAME: &'static str = "XDP";
    const ABOUT: &'static str =
        "a network interface by AF_XDP, native or generic, without copies between ports";
    const INPUTS: Ports = Ports::Named(&["rx"]);
    const OUTPUTS: Ports = Ports::Named(&["tx"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] = &["rx_dropped", "tx_dropped", "reopened"];
    type Args = XdpArgs;

    fn check(args: &XdpArgs) -> Result<(), ArgError> {
        if !args.ring.is_power_of_two() || !(64..=16384).contains(&args.ring) {
            return Err(ArgError::wrong(
                "ring",
                format!("{} is not a power of two from 64 to 16384", args.ring),
            ));
        }
        if args.ports.len() > Filter::MAX_PORTS {
            return Err(ArgError::wrong("ports", format!("more than {} ports", Filter::MAX_PORTS)));
        }
        crate::netdev::check_name(&args.interface)
            .map_err(|error| ArgError::wrong("interface", error.to_string()))
    }

    fn new(args: XdpArgs, _context: &Context) -> Result<Self, AppError> {
        let presence = Presence::open(&args)?;
        Ok(Self { args, presence, tx_dropped: 0, rx_dropped: 0, earlier: 0 })
    }
}

impl App for Xdp {
    fn pull(&mut self, io: &Io) {
        let Some(queue) = self.presence.port() else { return };
        queue.complete();
        if let Some(output) = io.output(0) {
            let mut batch = Batch::new();
            queue.receive(output.room(), &mut batch);
            if !batch.is_empty() {
                output.transmit_batch(&mut batch);
            }
        }
        queue.refill(self.args.ring);
    }

    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        let Some(queue) = self.presence.port() else {
            self.tx_dropped += input.discard() as u64;
            return;
        };
        let result = queue.send_all(input);
        self.tx_dropped += std::mem::take(&mut queue.too_short);
        if let Err(errno) = result {
            self.fail(errno);
        }
    }

    fn tick(&mut self, io: &Io) {
        let (rx_dropped, earlier) = (&mut self.rx_dropped, self.earlier);
        self.presence.tick(io.now(), &self.args, |queue| *rx_dropped = earlier + queue.dropped());
        if self.presence.port().is_none() {
            self.earlier = self.rx_dropped;
        }
    }

    fn notice(&mut self) -> Option<String> {
        self.presence.notice()
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.rx_dropped, self.tx_dropped, self.presence.reopened]);
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.presence.describe(out, Queue::describe)?;
        writeln!(
            out,
            "dropped: {} received by the kernel, {} to send",
            self.rx_dropped, self.tx_dropped
        )
    }

    fn stop(&mut self) -> Result<(), AppError> {
        self.presence.stop();
        Ok(())
    }
}

impl Xdp {
    /// After an error of the transmit path. An interface that is only set down keeps its socket: it
    /// may come up again.
    #[cold]
    fn fail(&mut self, errno: Errno) {
        if let Some(why) = self.presence.port().and_then(Port::lost) {
            self.presence.lose(why);
        } else if errno != Errno::NETDOWN {
            self.presence
                .lose(format!("interface {} refuses to send: {errno}", self.args.interface));
        }
    }
}
