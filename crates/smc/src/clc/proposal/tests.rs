//! Proposals: the examples, lengths and bounds.

use super::*;
use crate::clc::fixtures::{self, hex};
use crate::clc::{Device, Gid, Ipv6Prefix, MAX_EIDS, MAX_LEN, Message};

fn decode(bytes: &[u8]) -> Result<Proposal, Malformed> {
    match Message::decode(bytes)? {
        Message::Proposal(proposal) => Ok(proposal),
        other => panic!("{other:?}"),
    }
}

fn encode(proposal: &Proposal) -> Vec<u8> {
    let mut bytes = [0xaa; MAX_LEN];
    let len = proposal.encode(&mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// Example B of the facts.
#[test]
fn version_2_1_with_a_loopback_device() {
    let bytes = hex(fixtures::PROPOSAL_V2);
    let proposal = decode(&bytes).unwrap();
    assert_eq!(bytes.len(), 224);
    assert_eq!((proposal.version, proposal.v1), (Version::V2, None));
    assert_eq!((proposal.typev1(), proposal.typev2()), (PathType::Neither, PathType::SmcD));
    assert_eq!(proposal.roce, RoceV1::default());
    let v2 = proposal.v2.unwrap();
    assert_eq!((v2.release, v2.smcr, v2.features), (1, false, FEATURE_EMULATED_ISM));
    assert_eq!((v2.roce_gid, v2.max_conns, v2.max_links), ([0; 16], 0, 0));
    assert_eq!(*v2.eids, [Eid::user("DEMO-UEID-1").unwrap()]);
    let smcd = v2.smcd.unwrap();
    assert_eq!(smcd.seid, None);
    let gid = Gid { hi: 0x0123_4567_89ab_cdef, lo: 0xfedc_ba98_7654_3210 };
    assert_eq!(smcd.devices.as_slice(), [Device { gid, chid: 0xffff }]);
    assert_eq!(encode(&proposal), bytes);
    assert_eq!(encode(&Proposal::smcd(1, v2.eids, None, smcd.devices)), bytes);
}

/// Example F of the facts.
#[test]
fn version_1_with_a_hardware_device() {
    let bytes = hex(fixtures::PROPOSAL_V1);
    let proposal = decode(&bytes).unwrap();
    assert_eq!(bytes.len(), 92);
    assert_eq!((proposal.version, proposal.v2), (Version::V1, None));
    let v1 = proposal.v1.unwrap();
    assert_eq!((v1.smcr, v1.native.unwrap().chid), (false, 0x07c1));
    assert_eq!(v1.native.unwrap().gid, 0x1122_3344_5566_7788);
    assert_eq!((v1.ip.subnet, v1.ip.prefix_len, v1.ip.v6.len()), ([10, 1, 2, 0], 24, 0));
    assert_eq!(encode(&proposal), bytes);
}

fn full() -> Proposal {
    let mut v1 =
        OfferV1 { smcr: true, native: Some(NativeIsm { gid: 1, chid: 2 }), ..OfferV1::default() };
    while v1.ip.v6.push(Ipv6Prefix { addr: [0x20; 16], len: 64 }).is_ok() {}
    let mut devices = Devices::new();
    for chid in 1..=8 {
        devices.push(Device { gid: Gid { hi: 3, lo: 0 }, chid }).unwrap();
    }
    let eids = Eids::of(&[Eid::user("FULL").unwrap(); MAX_EIDS]).unwrap();
    let mut proposal = Proposal::smcd(1, eids, Some(Eid::LOOPBACK_SEID), devices);
    proposal.v1 = Some(v1);
    proposal.v2.as_mut().unwrap().smcr = true;
    proposal
}

#[test]
fn the_longest_message_has_652_bytes() {
    let bytes = encode(&full());
    assert_eq!(bytes.len(), MAX_LEN);
    assert_eq!(bytes[7], 0x2f);
    assert_eq!(decode(&bytes), Ok(full()));
    assert_eq!(full().encode(&mut [0; MAX_LEN - 1]), Err(Full));
}

#[test]
fn a_version_1_offer_of_smcr_has_no_smcd_block() {
    let v1 = OfferV1 { smcr: true, ..OfferV1::default() };
    let proposal =
        Proposal { version: Version::V1, roce: RoceV1::default(), v1: Some(v1), v2: None };
    let bytes = encode(&proposal);
    assert_eq!((bytes.len(), &bytes[38..40], bytes[7]), (52, &[0, 0][..], 0x10));
    assert_eq!(decode(&bytes), Ok(proposal));
    // A newer sender has the block all the same.
    let mut newer = hex(fixtures::PROPOSAL_V1);
    newer[7] = 0x10;
    let v1 = decode(&newer).unwrap().v1.unwrap();
    assert_eq!((v1.smcr, v1.native, v1.ip.prefix_len), (true, None, 24));
    let mut cut = bytes;
    cut[7] = 0x11;
    assert_eq!(decode(&cut), Err(Malformed::Offset), "SMC-D needs the block");
    cut[7] = 0x12;
    assert_eq!(decode(&cut), Err(Malformed::Path), "an offer of nothing");
}

#[test]
fn a_version_1_header_cannot_carry_version_2() {
    let mut proposal = full();
    proposal.version = Version::V1;
    assert_eq!(decode(&encode(&proposal)), Ok(full()));
    proposal.v1 = Some(OfferV1::default());
    assert_eq!(decode(&encode(&proposal)).unwrap().v1, None, "an offer of nothing is none");
}

fn patched(at: usize, value: u8) -> Result<Proposal, Malformed> {
    let mut bytes = encode(&full());
    bytes[at] = value;
    decode(&bytes)
}

#[test]
fn bounds_are_enforced() {
    let ext = 224;
    for value in (0..=u8::MAX).filter(|value| *value != 40) {
        assert_eq!(patched(39, value), Err(Malformed::Offset), "IP area at {value}");
    }
    assert_eq!(patched(38, 1), Err(Malformed::Offset));
    assert_eq!(patched(87, 9), Err(Malformed::Count), "IPv6 prefixes");
    assert_eq!(patched(50, 1), Err(Malformed::Offset), "v2 extension");
    assert_eq!(patched(51, 173), Err(Malformed::Offset));
    assert_eq!(patched(51, 171), Err(Malformed::Offset));
    assert_eq!(patched(ext, 9), Err(Malformed::Count), "EIDs");
    assert_eq!(patched(ext + 1, 9), Err(Malformed::Count), "GID entries");
    assert_eq!(patched(ext + 6, 2), Err(Malformed::Offset), "SMC-Dv2 extension");
    assert_eq!(patched(ext + 7, 33), Err(Malformed::Offset));
    assert_eq!(patched(ext + 7, 31), Err(Malformed::Offset));
    // Fewer than were sent: the length is no longer exact, or the next part is elsewhere.
    assert_eq!(patched(87, 7), Err(Malformed::Offset));
    assert_eq!(patched(ext, 7), Err(Malformed::Offset));
    assert_eq!(patched(ext + 1, 7), Err(Malformed::Length));
    // Fewer parts than were sent.
    assert_eq!(patched(7, 0x2b), Err(Malformed::Length), "no version 2");
    assert_eq!(patched(7, 0x23), Err(Malformed::Length), "no SMC-Dv2");
    assert_eq!(patched(7, 0x2e), Err(Malformed::Offset), "no version 1");
    assert_eq!(patched(651, 0), Err(Malformed::Trailer));
    assert_eq!(patched(6, 0x8b), Err(Malformed::Length), "651 bytes");
    assert_eq!(patched(6, 0x8d), Err(Malformed::Length), "653 bytes");
}

#[test]
fn unused_offsets_are_bounded_too() {
    let mut bytes = hex(fixtures::PROPOSAL_V2);
    bytes[39] = 40;
    assert!(decode(&bytes).is_ok());
    bytes[39] = 41;
    assert_eq!(decode(&bytes), Err(Malformed::Offset));
}

#[test]
fn a_length_beyond_the_contents_is_refused() {
    let mut bytes = hex(fixtures::PROPOSAL_V2);
    bytes.extend([0; 500]);
    assert_eq!(decode(&bytes), decode(&bytes[..224]), "what follows the message is not part of it");
    for (length, wrong) in
        [(225u16, Malformed::Length), (652, Malformed::Length), (700, Malformed::Length)]
    {
        bytes[5..7].copy_from_slice(&length.to_be_bytes());
        assert_eq!(decode(&bytes), Err(wrong));
    }
}
