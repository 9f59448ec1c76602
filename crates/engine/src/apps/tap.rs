//! A TAP interface: the kernel's own stack as the other end of the wire.
//!
//! The interface is made if it does not exist and goes with the app, unless somebody made it persistent before (`ip tuntap
//! add NAME mode tap`). One packet per system call is all that the kernel offers here.
//!
//! With `vnet-header` the kernel hands transport checksums over unfinished, which spares it a pass over the data, and
//! believes the engine's word for those that were verified.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use serde::{Deserialize, Serialize};

use super::presence::{Port, Presence};
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
    /// Exchange checksum state with the kernel.
    #[serde(default)]
    pub vnet_header: bool,
}

fn yes() -> bool {
    true
}

/// What fits behind the headroom of any new packet, less the Ethernet header and a VLAN tag.
const MAX_MTU: u32 = 1582;

pub struct Tap {
    args: TapArgs,
    presence: Presence<Device>,
    counters: Counters,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    /// Packets longer than the engine's.
    rx_oversize: u64,
    /// Packets that the kernel refused, or that came while the interface was away.
    tx_dropped: u64,
}

struct Device {
    name: String,
    queue: OwnedFd,
    vnet_header: bool,
    /// To read into.
    spare: Option<Packet>,
}

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
            // Checksums only: packets that are yet to be cut would not fit.
            ioctl(&queue, libc::TUNSETOFFLOAD, libc::TUN_F_CSUM.into())
                .map_err(|error| failed("set offloads", error))?;
        }
        if args.persistent {
            ioctl(&queue, libc::TUNSETPERSIST, 1).map_err(|error| failed("make persistent", error))?;
        }
        let say = |error: crate::netdev::NetdevError| AppError::new(error.to_string());
        let netdev = Netdev::find(&name).map_err(say)?;
        if let Some(mtu) = args.mtu {
            netdev.set_mtu(mtu).map_err(say)?;
        }
        if args.up {
            netdev.set_up(true).map_err(say)?;
        }
        Ok(Device { name, queue, vnet_header: args.vnet_header, spare: None })
    }

    /// Whoever moves the interface to another network namespace keeps it working. Its end is what a read or write tells.
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

impl Device {
    fn receive(&mut self, output: &Link, counters: &mut Counters) -> Result<(), Errno> {
        let mut batch = Batch::new();
        let room = output.room().min(BATCH);
        let result = loop {
            if batch.len() == room {
                break Ok(());
            }
            match self.read(counters) {
                Ok(Some(packet)) => drop(batch.push(packet)),
                Ok(None) => {}
                Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => break Ok(()),
                Err(errno) => break Err(errno),
            }
        };
        if !batch.is_empty() {
            output.transmit_batch(&mut batch);
        }
        result
    }

    /// One packet; none if it was too long.
    #[inline]
    fn read(&mut self, counters: &mut Counters) -> Result<Option<Packet>, Errno> {
        let mut packet = match self.spare.take() {
            Some(packet) => packet,
            None => Packet::allocate().ok_or(Errno::NOMEM)?,
        };
        let offset = CONTROL + packet.headroom();
        let room = packet.tailroom();
        let data = packet.as_mut_ptr();
        // SAFETY: the free room of an empty packet that is ours.
        let room = unsafe { std::slice::from_raw_parts_mut(data, room) };
        let mut header = [0; vnet::LENGTH];
        let skip = usize::from(!self.vnet_header);
        // A byte more than fits: the kernel cuts in silence, and a packet that fills it was too long.
        let mut more = [0; 1];
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(room), IoSliceMut::new(&mut more)];
        let got = rustix::io::readv(&self.queue, &mut parts[skip..]);
        let full = parts[1].len();
        let length = match got {
            Ok(got) => got.saturating_sub(if self.vnet_header { vnet::LENGTH } else { 0 }),
            Err(errno) => {
                self.spare = Some(packet);
                return Err(errno);
            }
        };
        if length > full {
            counters.rx_oversize += 1;
            self.spare = Some(packet);
            return Ok(None);
        }
        // SAFETY: the kernel wrote `length` bytes there, within the slot.
        let mut packet = unsafe { Packet::from_slot(packet.into_slot(), offset, length) };
        vnet::Header::parse(&header).apply(&mut packet, 0);
        Ok(Some(packet))
    }

    fn send(&mut self, input: &Link, counters: &mut Counters) -> Result<(), Errno> {
        while let Some(mut packet) = input.receive() {
            let result = if self.vnet_header {
                let header = vnet::Header::of(&packet);
                rustix::io::writev(self.queue.as_fd(), &[IoSlice::new(&header), IoSlice::new(&packet)])
            } else {
                vnet::finish(&mut packet);
                rustix::io::write(self.queue.as_fd(), &packet)
            };
            match result {
                Ok(_) => {}
                // Down, full, or no Ethernet frame at all: this packet alone is lost.
                Err(Errno::IO | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INVAL | Errno::INTR) => {
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
    const COUNTERS: &'static [&'static str] = &["rx_oversize", "tx_dropped", "reopened"];
    type Args = TapArgs;

    fn check(args: &TapArgs) -> Result<(), ArgError> {
        if args.mtu.is_some_and(|mtu| !(68..=MAX_MTU).contains(&mtu)) {
            return Err(ArgError::wrong("mtu", format!("not from 68 to {MAX_MTU}, what a packet of the engine holds")));
        }
        crate::netdev::check_name(&args.interface).map_err(|error| ArgError::wrong("interface", error.to_string()))
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
        values.copy_from_slice(&[self.counters.rx_oversize, self.counters.tx_dropped, self.presence.reopened]);
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.presence.describe(out, |device, out| {
            let header = if device.vnet_header { " with vnet headers" } else { "" };
            writeln!(out, "{} by /dev/net/tun{header}", device.name)
        })?;
        writeln!(out, "dropped: {} too long, {} to send", self.counters.rx_oversize, self.counters.tx_dropped)
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
