//! Questions for a neighbour's MAC address and answers to them: ARP (RFC 826), neighbour
//! solicitations and advertisements (RFC 4861). Frames with VLAN tags are none of them.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::apps::headers::{ARP, ETHERNET, IPV6, Mac, be16};
use crate::packet::Packet;
use checksum::{ICMPV6, csum_ipv6_magic, csum_partial};

/// Bytes of an ARP message for IPv4 over Ethernet, and its first ones but for the operation.
const ARP_LENGTH: usize = 28;
const ARP_START: [u8; 7] = [0, 1, 8, 0, 6, 4, 0];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;

const IP: usize = 40;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options with the MAC address of the sender of a solicitation, and of an advertisement's target.
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// A message with one option.
const LENGTH: usize = 32;

pub(super) const BROADCAST: Mac = Mac([0xff; 6]);
/// Shortest frame, without its checksum: some links send no shorter ones.
const SHORTEST: usize = 60;

/// What an ARP message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arp {
    pub request: bool,
    pub sender: Ipv4Addr,
    pub sender_mac: Mac,
    pub target: Ipv4Addr,
}

/// An ARP message about Ethernet and IPv4 addresses.
pub(super) fn arp(frame: &[u8]) -> Option<Arp> {
    let message: &[u8; ARP_LENGTH] = frame.get(ETHERNET..)?.first_chunk()?;
    let known = be16(frame, 12)? == ARP
        && message[..7] == ARP_START
        && matches!(message[7], REQUEST | REPLY);
    let address =
        |at: usize| Ipv4Addr::new(message[at], message[at + 1], message[at + 2], message[at + 3]);
    let sender_mac = Mac(*message[8..].first_chunk()?);
    let request = message[7] == REQUEST;
    known.then_some(Arp { request, sender: address(14), sender_mac, target: address(24) })
}

/// Turns a request into the reply that `mac` has the address.
pub(super) fn arp_reply(frame: &mut Packet, mac: Mac) {
    let message = &mut frame[ETHERNET..ETHERNET + ARP_LENGTH];
    message[7] = REPLY;
    let (sender, target) = message[8..].split_at_mut(10);
    sender.swap_with_slice(&mut target[..10]);
    sender[..6].copy_from_slice(&mac.0);
    back(frame, mac);
}

/// Asks who has `target`: this station, or all.
pub(super) fn arp_request(
    from: (Ipv4Addr, Mac),
    target: Ipv4Addr,
    to: Option<Mac>,
) -> Option<Packet> {
    let (source, mac) = from;
    let mut frame = [0; SHORTEST];
    frame[..6].copy_from_slice(&to.unwrap_or(BROADCAST).0);
    frame[6..12].copy_from_slice(&mac.0);
    frame[12..14].copy_from_slice(&ARP.to_be_bytes());
    let message = &mut frame[ETHERNET..];
    message[..7].copy_from_slice(&ARP_START);
    message[7] = REQUEST;
    message[8..14].copy_from_slice(&mac.0);
    message[14..18].copy_from_slice(&source.octets());
    message[24..28].copy_from_slice(&target.octets());
    Packet::from_slice(&frame)
}

/// What a solicitation or an advertisement says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Discovery {
    pub solicitation: bool,
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
    pub target: Ipv6Addr,
    /// Of the source of a solicitation, or of the target of an advertisement.
    pub mac: Option<Mac>,
    /// Flags of an advertisement.
    pub solicited: bool,
    pub overrides: bool,
}

/// A valid message: the checks of RFC 4861, 7.1.1 and 7.1.2.
pub(super) fn discovery(frame: &[u8]) -> Option<Discovery> {
    let header: &[u8; IP] = frame.get(ETHERNET..)?.first_chunk()?;
    if be16(frame, 12)? != IPV6 || header[0] >> 4 != 6 || header[6..8] != [ICMPV6, 255] {
        return None;
    }
    let length = be16(header, 4)?;
    let message = frame.get(ETHERNET + IP..)?.get(..usize::from(length))?;
    let address = |bytes: &[u8]| bytes.first_chunk::<16>().copied();
    let (source, destination) = (address(&header[8..])?, address(&header[24..])?);
    let target = Ipv6Addr::from(address(message.get(8..)?)?);
    let solicitation = match message[..2] {
        [SOLICITATION, 0] => true,
        [ADVERTISEMENT, 0] => false,
        _ => return None,
    };
    let sum = csum_partial(message, 0);
    if target.is_multicast()
        || csum_ipv6_magic(source, destination, length.into(), ICMPV6, sum) != 0
    {
        return None;
    }
    let mac = option(&message[24..], if solicitation { SOURCE_OPTION } else { TARGET_OPTION })?;
    let (source, destination) = (Ipv6Addr::from(source), Ipv6Addr::from(destination));
    let flags = if solicitation { 0 } else { message[4] };
    let (solicited, overrides) = (flags & SOLICITED != 0, flags & OVERRIDE != 0);
    let to_all = solicited && destination.is_multicast();
    (!to_all).then_some(Discovery {
        solicitation,
        source,
        destination,
        target,
        mac,
        solicited,
        overrides,
    })
}

/// The MAC address in an option of this kind, if there is one; None if options are damaged.
fn option(mut options: &[u8], wanted: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        let length = usize::from(units) * 8;
        let option = options.get(..length).filter(|option| !option.is_empty())?;
        if kind == wanted {
            found = option[2..].first_chunk().map(|mac| Mac(*mac));
        }
        options = &options[length..];
    }
    options.is_empty().then_some(found)
}

/// Turns a solicitation into the advertisement of `mac`.
pub(super) fn advertise(frame: &mut Packet, asked: &Discovery, mac: Mac) {
    // Somebody who checks an address for duplicates has none yet: the answer goes to all nodes,
    // unsolicited (RFC 4861, 7.2.4).
    let anonymous = asked.source.is_unspecified();
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let destination = if anonymous { all_nodes } else { asked.source };
    back(frame, mac);
    if anonymous {
        frame[..6].copy_from_slice(&group(destination).0);
    }
    frame.truncate(ETHERNET + IP);
    let flags = if anonymous { OVERRIDE } else { SOLICITED | OVERRIDE };
    let message = message([ADVERTISEMENT, flags], asked.target, Some((TARGET_OPTION, mac)));
    finish(frame, asked.target, destination, message);
}

/// Asks who has `target`: this station, or all that may be it. A source that is unspecified asks
/// for whoever has none yet.
pub(super) fn solicit(from: (Ipv6Addr, Mac), target: Ipv6Addr, to: Option<Mac>) -> Option<Packet> {
    let (source, mac) = from;
    // The group of all whose addresses end in these three bytes: RFC 4291, 2.7.1.
    let mut solicited = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    solicited[13..].copy_from_slice(&target.octets()[13..]);
    let destination = if to.is_some() { target } else { solicited.into() };
    let mut frame = [0; ETHERNET + IP];
    frame[..6].copy_from_slice(&to.unwrap_or(group(destination)).0);
    frame[6..12].copy_from_slice(&mac.0);
    frame[12..14].copy_from_slice(&IPV6.to_be_bytes());
    frame[ETHERNET..ETHERNET + 8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, ICMPV6, 255]);
    let mut packet = Packet::from_slice(&frame)?;
    let option = (!source.is_unspecified()).then_some((SOURCE_OPTION, mac));
    finish(&mut packet, source, destination, message([SOLICITATION, 0], target, option));
    Some(packet)
}

/// The station of a multicast address: RFC 2464, 7.
pub(super) fn group(address: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = address.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// A message of this kind and with these flags, without its checksum; with no option it is shorter.
fn message(
    [kind, flags]: [u8; 2],
    target: Ipv6Addr,
    option: Option<(u8, Mac)>,
) -> ([u8; LENGTH], usize) {
    let mut message = [0; LENGTH];
    (message[0], message[4]) = (kind, flags);
    message[8..24].copy_from_slice(&target.octets());
    let Some((option, mac)) = option else { return (message, 24) };
    // One unit of eight bytes.
    message[24..26].copy_from_slice(&[option, 1]);
    message[26..].copy_from_slice(&mac.0);
    (message, LENGTH)
}

/// Puts a message behind an IPv6 header, which it completes.
fn finish(
    frame: &mut Packet,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    (mut message, length): ([u8; LENGTH], usize),
) {
    let (source, destination) = (source.octets(), destination.octets());
    frame[18..20].copy_from_slice(&(length as u16).to_be_bytes());
    frame[22..38].copy_from_slice(&source);
    frame[38..54].copy_from_slice(&destination);
    let sum = csum_partial(&message[..length], 0);
    let check = csum_ipv6_magic(source, destination, length as u32, ICMPV6, sum);
    message[2..4].copy_from_slice(&check.to_ne_bytes());
    frame.append(&message[..length]);
    frame.flags = 0;
}

/// To the station that it came from, from `mac`.
fn back(frame: &mut Packet, mac: Mac) {
    frame.copy_within(6..12, 0);
    frame[6..12].copy_from_slice(&mac.0);
}
