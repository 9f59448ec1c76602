//! A TAP interface: the kernel's own stack as the other end of the wire.
//!
//! The interface is made if it does not exist and goes with the app, unless somebody made it
//! persistent before (`ip tuntap add NAME mode tap`). One packet per system call is all that the
//! kernel offers here.
//!
//! With `vnet-header` the kernel hands transport checksums over unfinished, which spares it a pass
//! over the data, and believes the engine's word for those that were verified. It also hands TCP
//! streams over uncut, up to 64 KiB per system call; they are cut here.
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use serde::{Deserialize, Serialize};

use super::presence::{Port, Presence, too_large};
use super::segment::{MOST, segment};
use super::vnet;
use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::arena::CONTROL;
use crate::args::ArgError;
use crate::batch::{BATCH, Batch};
use crate::link::Link;
use crate::netdev::{Netdev, named_request, request_name};
use crate::packet::Packet;
use crate::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Tap>();
}

/// Arguments of [`Tap`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TapArgs {
    /// Name of the interface; a `%d` in it becomes the first free number.
    pub interface: String,
    /// Set the interface up.
    #[serde(default = "yes")]
    pub up: bool,
    /// Set the interface's MTU: 68 to 1582.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Leave the interface behind when the app stops.
    #[serde(default)]
    pub persistent: bool,
    /// Exchange the state of checksums with the kernel, and take TCP streams from it uncut.
    #[serde(default)]
    pub vnet_header: bool,
}

fn yes() -> bool {
    true
}

/// What fits behind the headroom of any new packet, less the Ethernet header and a VLAN tag.
const MAX_MTU: u32 = 1582;

/// See the module documentation.
pub struct Tap {
    args: TapArgs,
    presence: Presence<Device>,
    counters: Counters,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    /// Packets longer than the engine's, and uncut ones that it cannot cut.
    rx_oversize: u64,
    /// Pieces for which there was no packet.
    rx_dropped: u64,
    /// Packets that the kernel refused, or that came while the interface was away.
    tx_dropped: u64,
}

struct Device {
    name: String,
    queue: OwnedFd,
    /// To read into.
    spare: Option<Packet>,
    /// Where the kernel puts what a packet has no room for. Uncut packets need much; without vnet
    /// headers one byte tells that a packet was too long.
    beyond: Box<[u8]>,
    vnet_header: bool,
}

/// Longest uncut packet, with its link-layer header.
const UNCUT: usize = 65536 + 64;

impl Port for Device {
    type Args = TapArgs;

    fn open(args: &TapArgs) -> Result<Device, AppError> {
        let failed = |what: &str, error: std::io::Error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => AppError::new(format!(
                "tap {}: this system has no /dev/net/tun: load the module with `modprobe tun`, or pass the device into the \
                 container",
                args.interface
            )),
            Some(libc::EPERM | libc::EACCES) => AppError::new(format!(
                "tap {}: not permitted: run as root, grant CAP_NET_ADMIN, or have the interface made for this user \
                 (`ip tuntap add {} mode tap user NAME`)",
                args.interface, args.interface
            )),
            Some(libc::EBUSY) => AppError::new(format!(
                "tap {}: another program has it open: stop that or use another name",
                args.interface
            )),
            Some(libc::EINVAL) => AppError::new(format!(
                "interface {} exists and is not a tap with one queue: use another name or delete it",
                args.interface
            )),
            _ => AppError::os(format!("tap {}: {what}", args.interface), error),
        };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let queue = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(|e| failed("open /dev/net/tun", e.into()))?;
        let name = attach(&queue, args).map_err(|error| failed("attach", error))?;
        if args.vnet_header {
            let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
            // Trains of UDP datagrams: Linux 6.2.
            let all = tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6;
            let set = |offloads: libc::c_uint| ioctl(&queue, libc::TUNSETOFFLOAD, offloads.into());
            set(all).or_else(|_| set(tcp)).map_err(|error| failed("set offloads", error))?;
        }
        if args.persistent {
            ioctl(&queue, libc::TUNSETPERSIST, 1)
                .map_err(|error| failed("make persistent", error))?;
        }
        let say = |error: crate::netdev::NetdevError| AppError::new(error.to_string());
        let netdev = Netdev::find(&name).map_err(say)?;
        if let Some(mtu) = args.mtu {
            netdev.set_mtu(mtu).map_err(say)?;
        }
        if args.up {
            netdev.set_up(true).map_err(say)?;
        }
        let beyond = vec![0; if args.vnet_header { UNCUT } else { 1 }].into();
        Ok(Device { name, queue, spare: None, beyond, vnet_header: args.vnet_header })
    }

    fn caution(&self) -> Option<String> {
        too_large(&Netdev::find(&self.name).ok()?, MAX_MTU as usize + 18)
    }

    /// Whoever moves the interface to another network namespace keeps it working. Its end is what a
    /// read or write tells.
    fn lost(&mut self) -> Option<String> {
        None
    }
}

/// Makes or joins the interface and gives its real name.
fn attach(queue: &OwnedFd, args: &TapArgs) -> std::io::Result<String> {
    let mut request = named_request(&args.interface);
    let vnet = if args.vnet_header { libc::IFF_VNET_HDR } else { 0 };
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | vnet) as i16;
    // SAFETY: the request is an `ifreq`, read and written within the call.
    let result = unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result == 0 { Ok(request_name(&request)) } else { Err(std::io::Error::last_os_error()) }
}

fn ioctl(queue: &OwnedFd, number: libc::Ioctl, value: libc::c_ulong) -> std::io::Result<()> {
    // SAFETY: the two requests used here take their argument by value.
    let result = unsafe { libc::ioctl(queue.as_raw_fd(), number, value) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// What the kernel gave.
enum Read {
    Packet(Packet),
    /// So many bytes in `beyond`, to be cut.
    Uncut(usize, vnet::Header),
    TooLong,
}

impl Device {
    fn receive(&mut self, output: &Link, counters: &mut Counters) -> Result<(), Errno> {
        let mut batch = Batch::new();
        let mut reads = 0;
        // The next one may be uncut.
        let result = loop {
            if reads == BATCH || batch.len() + MOST > output.room() {
                break Ok(());
            }
            reads += 1;
            match self.read() {
                Ok(Read::Packet(packet)) => batch.push_towards(output, packet),
                Ok(Read::TooLong) => counters.rx_oversize += 1,
                Ok(Read::Uncut(length, header)) => {
                    let frame = &self.beyond[..length];
                    match segment(frame, None, &header, |piece| batch.push_towards(output, piece)) {
                        Ok(lost) => counters.rx_dropped += lost,
                        Err(_) => counters.rx_oversize += 1,
                    }
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => break Ok(()),
                Err(errno) => break Err(errno),
            }
        };
        if !batch.is_empty() {
            output.transmit_batch(&mut batch);
        }
        result
    }

    #[inline]
    fn read(&mut self) -> Result<Read, Errno> {
        let mut packet = match self.spare.take() {
            Some(packet) => packet,
            None => Packet::allocate().ok_or(Errno::NOMEM)?,
        };
        let offset = CONTROL + packet.headroom();
        let room = packet.tailroom();
        let data = packet.as_mut_ptr();
        // SAFETY: the free room of an empty packet that is ours.
        let room = unsafe { std::slice::from_raw_parts_mut(data, room) };
        let mut bytes = [0; vnet::LENGTH];
        let skip = usize::from(!self.vnet_header);
        let (front, rest) = self.beyond.split_at_mut(if self.vnet_header { room.len() } else { 0 });
        let most = room.len() + rest.len();
        let mut parts = [IoSliceMut::new(&mut bytes), IoSliceMut::new(room), IoSliceMut::new(rest)];
        let got = rustix::io::readv(&self.queue, &mut parts[skip..]);
        let length = match got {
            Ok(got) => got.saturating_sub(if self.vnet_header { vnet::LENGTH } else { 0 }),
            Err(errno) => {
                self.spare = Some(packet);
                return Err(errno);
            }
        };
        let header = vnet::Header::parse(&bytes);
        if header.is_unsegmented() && length < most {
            let inside = length.min(room.len());
            front[..inside].copy_from_slice(&room[..inside]);
            self.spare = Some(packet);
            return Ok(Read::Uncut(length, header));
        }
        // The kernel cuts in silence what finds no room at all: a packet that filled it was too
        // long.
        if length > room.len() {
            self.spare = Some(packet);
            return Ok(Read::TooLong);
        }
        // SAFETY: the kernel wrote `length` bytes there, within the slot.
        let mut packet = unsafe { Packet::from_slot(packet.into_slot(), offset, length) };
        header.apply(&mut packet, 0);
        Ok(Read::Packet(packet))
    }

    fn send(&mut self, input: &Link, counters: &mut Counters) -> Result<(), Errno> {
        while let Some(mut packet) = input.receive() {
            let result = if self.vnet_header {
                let header = vnet::Header::of(&packet);
                rustix::io::writev(
                    self.queue.as_fd(),
                    &[IoSlice::new(&header), IoSlice::new(&packet)],
                )
            } else {
                vnet::finish(&mut packet);
                rustix::io::write(self.queue.as_fd(), &packet)
            };
            match result {
                Ok(_) => {}
                // Down, full, or no Ethernet frame at all: this packet alone is lost.
                Err(
                    Errno::IO
                    | Errno::AGAIN
                    | Errno::NOBUFS
                    | Errno::NOMEM
                    | Errno::INVAL
                    | Errno::INTR,
                ) => {
                    counters.tx_dropped += 1;
                }
                Err(errno) => {
                    counters.tx_dropped += 1;
                    return Err(errno);
                }
            }
        }
        Ok(())
    }
}

impl Kind for Tap {
    const NAME: &'static str = "Tap";
    const ABOUT: &'static str = "a TAP interface, made here or before, towards the kernel's stack";
    const INPUTS: Ports = Ports::Named(&["rx"]);
    const OUTPUTS: Ports = Ports::Named(&["tx"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] =
        &["rx_dropped", "rx_oversize", "tx_dropped", "reopened"];
    type Args = TapArgs;

    fn check(args: &TapArgs) -> Result<(), ArgError> {
        if args.mtu.is_some_and(|mtu| !(68..=MAX_MTU).contains(&mtu)) {
            return Err(ArgError::wrong(
                "mtu",
                format!("not from 68 to {MAX_MTU}, what a packet of the engine holds"),
            ));
        }
        crate::netdev::check_name(&args.interface)
            .map_err(|error| ArgError::wrong("interface", error.to_string()))
    }

    fn new(args: TapArgs, _context: &Context) -> Result<Self, AppError> {
        let presence = Presence::open(&args)?;
        Ok(Self { args, presence, counters: Counters::default() })
    }
}

impl App for Tap {
    fn pull(&mut self, io: &Io) {
        let (Some(device), Some(output)) = (self.presence.port(), io.output(0)) else { return };
        if let Err(errno) = device.receive(output, &mut self.counters) {
            self.fail(errno);
        }
    }

    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        let Some(device) = self.presence.port() else {
            self.counters.tx_dropped += input.discard() as u64;
            return;
        };
        if let Err(errno) = device.send(input, &mut self.counters) {
            self.fail(errno);
        }
    }

    fn tick(&mut self, io: &Io) {
        self.presence.tick(io.now(), &self.args, |_| {});
    }

    fn notice(&mut self) -> Option<String> {
        self.presence.notice()
    }

    fn counters(&self, values: &mut [u64]) {
        let Counters { rx_dropped, rx_oversize, tx_dropped } = self.counters;
        values.copy_from_slice(&[rx_dropped, rx_oversize, tx_dropped, self.presence.reopened]);
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.presence.describe(out, |device, out| {
            let header = if device.vnet_header { " with vnet headers" } else { "" };
            writeln!(out, "{} by /dev/net/tun{header}", device.name)
        })?;
        let Counters { rx_dropped, rx_oversize, tx_dropped } = self.counters;
        writeln!(
            out,
            "dropped: {rx_dropped} without memory, {rx_oversize} too long, {tx_dropped} to send"
        )
    }

    fn stop(&mut self) -> Result<(), AppError> {
        self.presence.stop();
        Ok(())
    }
}

impl Tap {
    #[cold]
    fn fail(&mut self, errno: Errno) {
        // EBADFD: the kernel has taken the interface from under the descriptor.
        let why = match errno {
            Errno::BADFD | Errno::NODEV => format!("interface {} was deleted", self.args.interface),
            errno => format!("interface {} fails: {errno}", self.args.interface),
        };
        self.presence.lose(why);
    }
}
