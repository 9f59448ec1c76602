//! Answers to the question for an address: ARP (RFC 826) and neighbour solicitations (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::apps::headers::{ARP, ETHERNET, IPV6, Mac, be16};
use crate::batch::Batch;
use crate::packet::Packet;
use crate::registry::Registry;
use checksum::{ICMPV6, csum_ipv6_magic, csum_partial};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Neighbour>();
}

/// Stands between an interface ("south") and the rest ("north"). Questions from the south for its
/// addresses are answered there; everything else passes both ways.
pub struct Neighbour {
    args: NeighbourArgs,
    arp: u64,
    solicitations: u64,
}

/// Arguments of [`Neighbour`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourArgs {
    /// The MAC address that is told.
    pub mac: Mac,
    /// The addresses that are answered for.
    pub addresses: Vec<IpAddr>,
}

const SOUTH: usize = 0;
const NORTH: usize = 1;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

impl Kind for Neighbour {
    const NAME: &'static str = "Neighbour";
    const ABOUT: &'static str =
        "answers ARP and neighbour solicitations on 'south', passes the rest to 'north' and back";
    const INPUTS: Ports = Ports::Named(&["south", "north"]);
    const OUTPUTS: Ports = Ports::Named(&["south", "north"]);
    const COUNTERS: &'static [&'static str] = &["arp", "solicitations"];
    type Args = NeighbourArgs;

    fn new(args: NeighbourArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { args, arp: 0, solicitations: 0 })
    }

    fn reconfigure(&mut self, args: NeighbourArgs) -> Result<Reconfigured, AppError> {
        self.args = args;
        Ok(Reconfigured::Done)
    }
}

impl Neighbour {
    /// Turns a question for one of our addresses into its answer.
    fn answer(&mut self, packet: &mut Packet) -> bool {
        match be16(packet, 12) {
            Some(ARP) => self.answer_arp(packet),
            Some(IPV6) => self.answer_solicitation(packet),
            _ => false,
        }
    }

    fn answer_arp(&mut self, frame: &mut [u8]) -> bool {
        let Some(arp) = frame.get_mut(ETHERNET..ETHERNET + 28) else { return false };
        // Ethernet and IPv4 addresses, a request.
        if arp[..8] != [0, 1, 8, 0, 6, 4, 0, 1] {
            return false;
        }
        let target = Ipv4Addr::new(arp[24], arp[25], arp[26], arp[27]);
        if !self.args.addresses.contains(&target.into()) {
            return false;
        }
        arp[7] = 2;
        arp.copy_within(8..18, 18);
        arp[8..14].copy_from_slice(&self.args.mac.0);
        arp[14..18].copy_from_slice(&target.octets());
        self.readdress(frame);
        self.arp += 1;
        true
    }

    /// Back to the sender, from us.
    fn readdress(&self, frame: &mut [u8]) {
        frame.copy_within(6..12, 0);
        frame[6..12].copy_from_slice(&self.args.mac.0);
    }

    fn answer_solicitation(&mut self, packet: &mut Packet) -> bool {
        let Some((source, target)) = solicitation(packet) else { return false };
        if !self.args.addresses.contains(&target.into()) {
            return false;
        }
        // Somebody who checks an address for duplicates has none yet: the answer goes to all nodes,
        // unsolicited (RFC 4861, 7.2.4).
        let anonymous = source.is_unspecified();
        let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let destination = if anonymous { all_nodes } else { source };
        self.readdress(packet);
        if anonymous {
            packet[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
        }
        packet.truncate(ETHERNET + 40);
        packet[18..20].copy_from_slice(&32u16.to_be_bytes());
        packet[22..38].copy_from_slice(&target.octets());
        packet[38..54].copy_from_slice(&destination.octets());
        let mut message = [0; 32];
        message[0] = ADVERTISEMENT;
        // Solicited and override.
        message[4] = if anonymous { 0x20 } else { 0x60 };
        message[8..24].copy_from_slice(&target.octets());
        // Option 2, one unit of eight bytes: the target's link-layer address.
        message[24..26].copy_from_slice(&[2, 1]);
        message[26..].copy_from_slice(&self.args.mac.0);
        let sum = csum_partial(&message, 0);
        let check = csum_ipv6_magic(target.octets(), destination.octets(), 32, ICMPV6, sum);
        message[2..4].copy_from_slice(&check.to_ne_bytes());
        packet.append(&message);
        packet.flags = 0;
        self.solicitations += 1;
        true
    }
}

/// Source of a valid solicitation and what it asks for. The checks of RFC 4861, 7.1.1.
fn solicitation(frame: &[u8]) -> Option<(Ipv6Addr, Ipv6Addr)> {
    let header: &[u8; 40] = frame.get(ETHERNET..)?.first_chunk()?;
    let length = be16(header, 4)?;
    let message = frame.get(ETHERNET + 40..)?.get(..usize::from(length))?;
    let address = |bytes: &[u8]| bytes.first_chunk::<16>().copied();
    let (source, destination) = (address(&header[8..])?, address(&header[24..])?);
    let valid = header[0] >> 4 == 6
        && header[6] == ICMPV6
        && header[7] == 255
        && length >= 24
        && message[..2] == [SOLICITATION, 0]
        && csum_ipv6_magic(source, destination, length.into(), ICMPV6, csum_partial(message, 0))
            == 0;
    valid.then_some(())?;
    Some((source.into(), address(&message[8..])?.into()))
}

impl App for Neighbour {
    fn push(&mut self, io: &Io) {
        if let Some(north) = io.input(NORTH) {
            match io.output(SOUTH) {
                Some(south) => north.forward(south, usize::MAX),
                None => north.discard(),
            };
        }
        let Some(south) = io.input(SOUTH) else { return };
        let mut batch = Batch::new();
        let mut waiting = south.length();
        while waiting > 0 {
            waiting = waiting.saturating_sub(south.receive_batch(&mut batch));
            for mut packet in batch.drain() {
                let to = if self.answer(&mut packet) { SOUTH } else { NORTH };
                if let Some(output) = io.output(to) {
                    output.transmit(packet);
                }
            }
        }
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.arp, self.solicitations]);
    }
}
