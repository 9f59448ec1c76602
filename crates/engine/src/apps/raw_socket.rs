//! An interface by packet sockets, AF_PACKET: works with every driver, beside the kernel's own
//! stack.
//!
//! It receives copies: the kernel still gets every packet. Receiving reads a ring in shared memory
//! (TPACKET_V2), but for packets that are longer than the interface's MTU, which are uncut.
//! Sending takes up to 128 packets per system call and goes to the driver past the queueing
//! discipline.
//!
//! What the kernel has taken out of a packet or left open is restored: VLAN tags, transport
//! checksums, and the segments of packets that a sender on this machine left uncut (TSO, USO) or
//! the kernel put together (GRO).
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use super::mmsg::{Mmsg, drop_front};
use super::presence::{Port, Presence, too_large};
use super::segment::{MOST, segment};
use super::vnet;
use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::arena::MAX_LENGTH;
use crate::args::ArgError;
use crate::batch::{BATCH, Batch};
use crate::link::Link;
use crate::netdev::{Netdev, Promiscuous};
use crate::packet::Packet;
use crate::registry::Registry;

mod ring;

use ring::{Frame, Ring, option};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<RawSocket>();
}

/// Arguments of [`RawSocket`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RawSocketArgs {
    /// Name of the interface.
    pub interface: String,
    /// Receive packets for other MAC addresses, too.
    #[serde(default = "yes")]
    pub promiscuous: bool,
    /// Mebibytes of the receive ring, 1 to 1024.
    #[serde(default = "default_ring")]
    pub ring: u32,
    /// Send past the interface's queueing discipline.
    #[serde(default = "yes")]
    pub bypass: bool,
}

fn default_ring() -> u32 {
    16
}

fn yes() -> bool {
    true
}

/// See the module documentation.
pub struct RawSocket {
    args: RawSocketArgs,
    presence: Presence<Sockets>,
    counters: Counters,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    /// Packets for which the ring had no place.
    rx_dropped: u64,
    /// Packets longer than the engine's, and uncut ones that it cannot cut.
    rx_oversize: u64,
    /// Packets that the kernel refused, or that came while the interface was away.
    tx_dropped: u64,
}

struct Sockets {
    netdev: Netdev,
    /// Receives only. Kept apart from the sending one, which must receive nothing.
    receiver: OwnedFd,
    ring: Ring,
    sender: OwnedFd,
    messages: Mmsg,
    /// Taken from the link and refused by the kernel for now.
    unsent: Batch,
    _promiscuous: Option<Promiscuous>,
}

impl Port for Sockets {
    type Args = RawSocketArgs;

    fn open(args: &RawSocketArgs) -> Result<Sockets, AppError> {
        let netdev =
            Netdev::find(&args.interface).map_err(|error| AppError::new(error.to_string()))?;
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => AppError::new(format!(
                "interface {}: packet sockets need the capability CAP_NET_RAW: run as root or grant it",
                args.interface
            )),
            _ => AppError::os(format!("interface {}: packet socket", args.interface), error),
        };
        let receiver = socket().map_err(failed)?;
        let fd = receiver.as_fd();
        option(fd, libc::PACKET_VNET_HDR, &1i32).map_err(failed)?;
        // Linux 4.20; the type of each packet tells the same, only later.
        let _ = option(fd, libc::PACKET_IGNORE_OUTGOING, &1i32);
        let mtu = netdev.mtu().map_err(|error| AppError::new(error.to_string()))?;
        let ring = Ring::new(fd, (args.ring as usize) << 20, mtu).map_err(failed)?;
        let sender = socket().map_err(failed)?;
        if args.bypass {
            option(sender.as_fd(), libc::PACKET_QDISC_BYPASS, &1i32).map_err(failed)?;
        }
        bind(&sender, &netdev, 0).map_err(failed)?;
        let promiscuous = match args.promiscuous {
            true => Some(netdev.promiscuous().map_err(|error| AppError::new(error.to_string()))?),
            false => None,
        };
        // Last, as packets come from now on.
        bind(&receiver, &netdev, libc::ETH_P_ALL as u16).map_err(failed)?;
        let (messages, unsent) = (Mmsg::new(), Batch::new());
        Ok(Sockets { netdev, receiver, ring, sender, messages, unsent, _promiscuous: promiscuous })
    }

    fn caution(&self) -> Option<String> {
        too_large(&self.netdev, MAX_LENGTH)
    }

    fn lost(&mut self) -> Option<String> {
        (!self.netdev.exists())
            .then(|| format!("interface {} does not exist any more", self.netdev.name()))
    }
}

fn socket() -> std::io::Result<OwnedFd> {
    // Protocol 0: nothing is received before `bind` names one.
    Ok(rustix::net::socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn bind(socket: &OwnedFd, netdev: &Netdev, protocol: u16) -> std::io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: netdev.index() as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    use std::os::fd::AsRawFd;
    // SAFETY: the kernel reads one `sockaddr_ll`.
    let result = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

impl Sockets {
    fn receive(&mut self, output: &Link, counters: &mut Counters) {
        let mut batch = Batch::new();
        let mut taken = 0;
        // The next one may be uncut.
        while taken < BATCH && batch.len() + MOST <= output.room() {
            let Some(frame) = self.ring.next(self.receiver.as_fd()) else { break };
            if frame.outgoing {
                continue;
            }
            taken += 1;
            if frame.header.is_unsegmented() {
                let each = |piece| batch.push_towards(output, piece);
                match segment(frame.bytes, frame.tag(), &frame.header, each) {
                    Ok(lost) => counters.rx_dropped += lost,
                    Err(_) => counters.rx_oversize += 1,
                }
                continue;
            }
            match packet_of(&frame) {
                Ok(packet) => batch.push_towards(output, packet),
                Err(Refused::TooLong) => counters.rx_oversize += 1,
                Err(Refused::NoPacket) => counters.rx_dropped += 1,
            }
        }
        if !batch.is_empty() {
            output.transmit_batch(&mut batch);
        }
    }

    fn send(&mut self, input: &Link, counters: &mut Counters) -> Result<(), Errno> {
        loop {
            if self.unsent.is_empty() && input.receive_batch(&mut self.unsent) == 0 {
                return Ok(());
            }
            for packet in self.unsent.iter_mut() {
                vnet::finish(packet);
            }
            let sent = match self.messages.send(self.sender.as_fd(), &self.unsent) {
                Ok(sent) => sent,
                // The send buffer is full: what is left waits for the next breath.
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                // This packet alone is refused: the driver's queue is full, or it is longer than
                // the MTU.
                Err(Errno::NOBUFS | Errno::MSGSIZE | Errno::INVAL) => {
                    counters.tx_dropped += 1;
                    1
                }
                Err(errno) => {
                    counters.tx_dropped += self.unsent.len() as u64;
                    self.unsent.clear();
                    return Err(errno);
                }
            };
            drop_front(&mut self.unsent, sent);
        }
    }
}

enum Refused {
    TooLong,
    NoPacket,
}

/// Ethernet addresses, behind which a VLAN tag stands.
const ADDRESSES: usize = 12;

fn packet_of(frame: &Frame) -> Result<Packet, Refused> {
    if frame.length > frame.bytes.len() {
        return Err(Refused::TooLong);
    }
    let mut packet = Packet::allocate().ok_or(Refused::NoPacket)?;
    let (addresses, rest) = frame.bytes.split_at(ADDRESSES.min(frame.bytes.len()));
    let mut fits = packet.append(addresses);
    if let Some(tag) = frame.tag() {
        fits &= packet.append(&tag);
    }
    if !(fits && packet.append(rest)) {
        return Err(Refused::TooLong);
    }
    frame.header.apply(&mut packet, if frame.vlan.is_some() { 4 } else { 0 });
    Ok(packet)
}

impl Kind for RawSocket {
    const NAME: &'static str = "RawSocket";
    const ABOUT: &'static str =
        "a network interface by packet sockets (AF_PACKET), beside the kernel's stack";
    const INPUTS: Ports = Ports::Named(&["rx"]);
    const OUTPUTS: Ports = Ports::Named(&["tx"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] =
        &["rx_dropped", "rx_oversize", "tx_dropped", "reopened"];
    type Args = RawSocketArgs;

    fn check(args: &RawSocketArgs) -> Result<(), ArgError> {
        if !(1..=1024).contains(&args.ring) {
            return Err(ArgError::wrong(
                "ring",
                format!("{} is not from 1 to 1024 mebibytes", args.ring),
            ));
        }
        crate::netdev::check_name(&args.interface)
            .map_err(|error| ArgError::wrong("interface", error.to_string()))
    }

    fn new(args: RawSocketArgs, _context: &Context) -> Result<Self, AppError> {
        let presence = Presence::open(&args)?;
        Ok(Self { args, presence, counters: Counters::default() })
    }
}

impl App for RawSocket {
    fn pull(&mut self, io: &Io) {
        if let (Some(sockets), Some(output)) = (self.presence.port(), io.output(0)) {
            sockets.receive(output, &mut self.counters);
        }
    }

    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        let Some(sockets) = self.presence.port() else {
            self.counters.tx_dropped += input.discard() as u64;
            return;
        };
        match sockets.send(input, &mut self.counters) {
            // An interface that is down may come up again.
            Ok(()) | Err(Errno::NETDOWN) => {}
            Err(errno) => self
                .presence
                .lose(format!("interface {} refuses to send: {errno}", self.args.interface)),
        }
    }

    fn tick(&mut self, io: &Io) {
        let dropped = &mut self.counters.rx_dropped;
        self.presence.tick(io.now(), &self.args, |sockets| {
            *dropped +=
                ring::drops(sockets.receiver.as_fd()) + std::mem::take(&mut sockets.ring.lost)
        });
    }

    fn notice(&mut self) -> Option<String> {
        self.presence.notice()
    }

    fn counters(&self, values: &mut [u64]) {
        let counters = &self.counters;
        let reopened = self.presence.reopened;
        values.copy_from_slice(&[
            counters.rx_dropped,
            counters.rx_oversize,
            counters.tx_dropped,
            reopened,
        ]);
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.presence.describe(out, |sockets, out| {
            writeln!(out, "{} by AF_PACKET", sockets.netdev.name())
        })?;
        let counters = &self.counters;
        write!(
            out,
            "dropped: {} received by the kernel, {} too long, ",
            counters.rx_dropped, counters.rx_oversize
        )?;
        writeln!(out, "{} to send", counters.tx_dropped)
    }

    fn stop(&mut self) -> Result<(), AppError> {
        self.presence.stop();
        Ok(())
    }
}
