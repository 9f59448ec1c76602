//! Accept and Confirm for SMC-D: the examples, lengths and what is refused.

use super::*;
use crate::clc::fixtures::{self, accept, confirm, hex};
use crate::clc::{Hostname, MAX_LEN, Message, Os};

fn smcd(accept: Accept) -> SmcD {
    match accept {
        Accept::SmcD(smcd) => smcd,
        Accept::SmcR(other) => panic!("{other:?}"),
    }
}

fn v2(smcd: &SmcD) -> SmcDv2 {
    match smcd.level {
        SmcDLevel::V2(v2) => v2,
        SmcDLevel::V1 { .. } => panic!("version 1"),
    }
}

fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = [0xaa; MAX_LEN];
    let len = message.encode(&mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// Example C of the facts.
#[test]
fn first_contact_of_release_1() {
    let bytes = hex(fixtures::ACCEPT_FIRST);
    let given = smcd(accept(fixtures::ACCEPT_FIRST));
    assert_eq!(bytes.len(), 130);
    assert_eq!((given.gid, given.token), (fixtures::LOOPBACK.gid, 0x1111_1111_1111_1111));
    assert_eq!((given.index, given.size.bytes(), given.link_id), (0, 65536, [0, 1, 0, 0]));
    let v2 = v2(&given);
    assert_eq!((v2.chid, v2.eid), (0xffff, Some(Eid::user("DEMO-UEID-1").unwrap())));
    let first = v2.first_contact.unwrap();
    assert_eq!((first.os, first.release, first.v2_direct), (Os::LINUX, 1, false));
    assert_eq!((first.hostname, first.features), (Hostname::new("hosta"), 1));
    assert_eq!((first.max_conns, first.max_links, first.vendor), (0, 0, [0; 4]));
    assert_eq!(encode(&Message::Accept(Accept::SmcD(given))), bytes);
}

#[test]
fn the_matching_confirm() {
    let text = fixtures::confirm_first();
    let given = confirm(&text);
    assert_eq!(smcd(given).token, 0x2222_2222_2222_2222);
    assert_eq!(smcd(given).link_id, [0, 2, 0, 0]);
    assert!(given.first_contact());
    assert_eq!(encode(&Message::Confirm(given)), hex(&text));
}

/// Example D of the facts.
#[test]
fn link_group_reused() {
    let bytes = hex(fixtures::ACCEPT_REUSE);
    let given = smcd(accept(fixtures::ACCEPT_REUSE));
    assert_eq!(bytes.len(), 78);
    assert_eq!((given.token, given.size.bytes()), (0x3333_3333_3333_3333, 1 << 20));
    assert_eq!((given.gid, v2(&given).first_contact), (fixtures::LOOPBACK.gid, None));
    assert_eq!(encode(&Message::Accept(Accept::SmcD(given))), bytes);
}

/// Example F of the facts.
#[test]
fn version_1() {
    let bytes = hex(fixtures::ACCEPT_V1);
    let given = smcd(accept(fixtures::ACCEPT_V1));
    assert_eq!(bytes.len(), 48);
    assert_eq!((given.token, given.size.bytes()), (0x00c0_ffee_0000_0001, 65536));
    assert_eq!(given.gid, Gid { hi: 0x1122_3344_5566_7788, lo: 0 });
    assert_eq!((given.version(), given.first_contact()), (Version::V1, true));
    assert_eq!((given.index, given.link_id), (0, [0, 1, 0, 0]));
    assert_eq!(encode(&Message::Accept(Accept::SmcD(given))), bytes);
}

#[test]
fn first_contact_of_release_0_has_114_bytes() {
    let mut given = smcd(accept(fixtures::ACCEPT_FIRST));
    let mut level = v2(&given);
    let first = FirstContact { os: Os::LINUX, ..FirstContact::default() };
    level.first_contact = Some(first);
    given.level = SmcDLevel::V2(level);
    let bytes = encode(&Message::Accept(Accept::SmcD(given)));
    assert_eq!(bytes.len(), 114);
    assert_eq!(Message::decode(&bytes), Ok(Message::Accept(Accept::SmcD(given))));
}

#[test]
fn a_hardware_device_has_no_lower_half() {
    let mut bytes = hex(fixtures::ACCEPT_REUSE);
    bytes[32..34].copy_from_slice(&[0x07, 0xc1]);
    let Ok(Message::Accept(given)) = Message::decode(&bytes) else { panic!("refused") };
    assert_eq!(smcd(given).gid.lo, 0);
}

#[test]
fn no_eid_is_all_zero() {
    let mut bytes = hex(fixtures::ACCEPT_REUSE);
    bytes[34..66].fill(0);
    let Ok(Message::Accept(given)) = Message::decode(&bytes) else { panic!("refused") };
    assert_eq!(v2(&smcd(given)).eid, None);
    assert_eq!(encode(&Message::Accept(given)), bytes);
}

fn patched(text: &str, at: usize, value: u8) -> Result<Message, Malformed> {
    let mut bytes = hex(text);
    bytes[at] = value;
    Message::decode(&bytes)
}

#[test]
fn what_was_chosen_must_be_one_path() {
    assert_eq!(patched(fixtures::ACCEPT_V1, 7, 0x1a), Err(Malformed::Path));
    assert_eq!(patched(fixtures::ACCEPT_V1, 7, 0x1b), Err(Malformed::Path));
    assert_eq!(patched(fixtures::ACCEPT_V1, 47, 0), Err(Malformed::Trailer));
}

#[test]
fn first_contact_needs_its_extension() {
    assert_eq!(patched(fixtures::ACCEPT_REUSE, 7, 0x29), Err(Malformed::Length));
    // Release 1 in the length of release 0.
    let mut bytes = hex(fixtures::ACCEPT_FIRST);
    bytes.truncate(110);
    bytes.extend([0xe2, 0xd4, 0xc3, 0xc4]);
    bytes[6] = 114;
    assert_eq!(Message::decode(&bytes), Err(Malformed::Length));
    bytes[75] = 0x20;
    assert!(Message::decode(&bytes).is_ok());
}

#[test]
fn version_1_is_exact_and_version_2_a_minimum() {
    let longer = |text: &str, by: usize| {
        let mut bytes = hex(text);
        let trailer = bytes.split_off(bytes.len() - TRAILER_LEN);
        bytes.extend(vec![0x77; by]);
        bytes.extend(trailer);
        let length = u16::try_from(bytes.len()).unwrap();
        bytes[5..7].copy_from_slice(&length.to_be_bytes());
        bytes
    };
    assert_eq!(Message::decode(&longer(fixtures::ACCEPT_V1, 4)), Err(Malformed::Length));
    for text in [fixtures::ACCEPT_REUSE, fixtures::ACCEPT_FIRST] {
        let plain = Ok(Message::Accept(accept(text)));
        assert_eq!(Message::decode(&longer(text, 7)), plain);
        // Longer than any buffer has to be: the first bytes will do, without a trailer.
        assert_eq!(Message::decode(&longer(text, 2000)[..MAX_LEN]), plain);
        assert_eq!(Message::decode(&longer(text, 2000)[..MAX_LEN - 1]), Err(Malformed::Short));
    }
}

#[test]
fn lengths_below_the_minimum_are_refused() {
    for (text, bits) in [(fixtures::ACCEPT_REUSE, 0x21), (fixtures::ACCEPT_REUSE, 0x20)] {
        let mut bytes = hex(text);
        bytes.truncate(73);
        bytes.extend([0xe2, 0xd4, 0xc3, 0xc4]);
        (bytes[6], bytes[7]) = (77, bits);
        assert_eq!(Message::decode(&bytes), Err(Malformed::Length));
    }
}
