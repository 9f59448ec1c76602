//! The matrix of the handshake, over a real rendezvous: versions, releases and EIDs, in
//! `matrix/devices.rs` PNET ids, partitions, devices and their order; and each Decline that our
//! ends have a reason for.

mod common;
#[path = "matrix/devices.rs"]
mod devices;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use common::raw::{
    self, SEALED, accept_of, arena, confirm_of, half, hear_clc, memfd, say, v2, with_trailer, write,
};
use common::{End, pair, serial, tcp, upgrade};
use smc::census::State;
use smc::clc::{
    Accept, Decline, Device, Devices, Eid, Eids, Message, NativeIsm, OfferV1, OfferV2, Proposal,
    SmcDLevel, Version,
};
use smc::config::CONFIG;
use smc::reason::{self, Reason};
use smc::{group, table};

/// Settings for one test; afterwards they are what they were.
struct Set(Vec<&'static str>);

impl Set {
    fn new(settings: &[(&'static str, &str)]) -> Set {
        for (name, value) in settings {
            smc::setting::set(name.as_bytes(), value.as_bytes());
        }
        Set(settings.iter().map(|(name, _)| *name).collect())
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        for name in &self.0 {
            match *name {
                "MAX_MEMORY" => CONFIG.max_memory.store(0, Relaxed),
                "PARTITION" => smc::setting::set(b"PARTITION", b"0"),
                name => {
                    smc::setting::set(name.as_bytes(), if name == "SEID" { b"on" } else { b"" })
                }
            }
        }
    }
}

fn offer(change: impl FnOnce(&mut Proposal)) -> Proposal {
    let mut proposal = raw::proposal(0xffff);
    change(&mut proposal);
    proposal
}

fn offer_v2(change: impl FnOnce(&mut OfferV2)) -> Proposal {
    offer(|proposal| change(proposal.v2.as_mut().expect("made as version 2")))
}

fn offered_eids(ueids: &[&str], seid: Option<Eid>) -> Proposal {
    let ueids: Vec<Eid> = ueids.iter().map(|name| Eid::user(name).expect("an EID")).collect();
    offer_v2(|v2| {
        v2.eids = Eids::of(&ueids).expect("few");
        v2.smcd.as_mut().expect("SMC-D").seid = seid;
    })
}

/// Our server and a stranger that proposes this: the server, the channel, its answer as it came,
/// and what came with it.
fn proposed(proposal: Proposal) -> (End, i32, OwnedFd, Vec<u8>, Option<OwnedFd>) {
    let (mine, other) = tcp(false);
    let end = End::new(mine);
    end.step();
    let ch = raw::connect(other).expect("the server listens");
    say(&ch, &write(&Message::Proposal(proposal), other), &[]);
    end.step();
    let (answer, passed) = raw::hear(ch.as_raw_fd(), false).expect("an answer");
    (end, other, ch, answer, passed)
}

/// What our server says to a Proposal and how it ends up; the Decline as it came.
fn declined(proposal: Proposal) -> (Reason, Vec<u8>) {
    let (end, other, _ch, answer, _) = proposed(proposal);
    let Ok(Message::Decline(decline)) = Message::decode(&answer) else {
        panic!("accepted: {answer:02x?}");
    };
    assert_eq!((end.reason(), end.conn.is_committed()), (decline.diagnosis, false));
    end.close();
    smc::sys::close(other);
    raw::next_stranger();
    (decline.diagnosis, answer)
}

/// What our server accepts.
fn accepted(proposal: Proposal) -> smc::clc::SmcD {
    let (end, other, _ch, answer, _) = proposed(proposal);
    let said = Message::decode(&answer).expect("CLC");
    let Message::Accept(Accept::SmcD(accept)) = said else { panic!("{said:?}") };
    end.close();
    smc::sys::close(other);
    raw::next_stranger();
    accept
}

fn level(accept: &smc::clc::SmcD) -> &smc::clc::SmcDv2 {
    let SmcDLevel::V2(v2) = &accept.level else { panic!("version 1") };
    v2
}

#[test]
fn a_proposal_of_version_1_is_declined_in_version_1() {
    let _serial = serial();
    let native = NativeIsm { gid: 7, chid: 0x07c1 };
    for (smcr, native) in [(false, Some(native)), (true, None), (true, Some(native))] {
        let old = Proposal {
            version: Version::V1,
            v1: Some(OfferV1 { smcr, native, ..OfferV1::default() }),
            v2: None,
            ..offer(|_| ())
        };
        let (why, answer) = declined(old);
        assert_eq!(why, reason::NO_V2_EXT);
        let mut expected = vec![0; 100];
        let n =
            Message::Decline(Decline::new(Version::V1, why)).encode(&mut expected).expect("room");
        assert_eq!(
            (n, &answer[..], answer[7]),
            (28, &expected[..n], 0x10),
            "as the facts have it, in 28 bytes"
        );
    }
    // In a header of version 2 the same offer is answered in version 2.
    let (why, answer) = declined(offer(|proposal| {
        proposal.v1 = Some(OfferV1 { native: Some(native), ..OfferV1::default() });
        proposal.v2 = None;
    }));
    assert_eq!((why, answer.len(), answer[7]), (reason::NO_V2_EXT, 44, 0x20));
}

/// A client that knows both versions, and one that knows SMC-R too, is served in version 2; a
/// native device of version 1 that we have not is passed over.
#[test]
fn a_proposal_of_both_versions_is_accepted_in_version_2() {
    let _serial = serial();
    for (smcr, native) in [(false, Some(NativeIsm { gid: 7, chid: 0x07c1 })), (true, None)] {
        let both = offer(|proposal| {
            proposal.v1 = Some(OfferV1 { smcr, native, ..OfferV1::default() });
            proposal.v2.as_mut().expect("version 2").smcr = smcr;
        });
        let accept = accepted(both);
        assert_eq!(
            (level(&accept).chid, level(&accept).first_contact.map(|first| first.release)),
            (0xffff, Some(1))
        );
    }
}

/// A Proposal in the TCP stream is for nobody here: no option on our SYN asked for it, and the
/// application gets every byte.
#[test]
fn a_proposal_in_band_is_payload() {
    let _serial = serial();
    let bytes = raw::encode(&Message::Proposal(raw::proposal(0xffff)));
    for mine_is_server in [false, true] {
        let (low, high) = tcp(false);
        let (mine, other) = if mine_is_server { (low, high) } else { (high, low) };
        let end = End::new(mine);
        assert_eq!(common::raw_send(other, &bytes), Ok(bytes.len()));
        (0..10).for_each(|_| end.step());
        let mut got = vec![0; 2 * bytes.len()];
        let n = end.recv(&mut got, 0).expect("the bytes");
        assert_eq!(&got[..n], bytes);
        assert!(
            !end.conn.switched() && common::raw_recv(other, &mut got, 0) == Err(libc::EAGAIN),
            "and no answer"
        );
        end.close();
        smc::sys::close(other);
    }
}

#[test]
fn each_proposal_that_cannot_be_accepted_has_its_code() {
    let _serial = serial();
    let said = |proposal| declined(proposal).0;
    assert_eq!(
        said(offer(|proposal| proposal.v2 = None)),
        reason::PEER_NO_SMC,
        "of neither version"
    );
    let smcr = offer_v2(|v2| (v2.smcr, v2.smcd) = (true, None));
    assert_eq!(said(smcr), reason::NO_V2D_EXT);
    assert_eq!(said(offered_eids(&[], None)), reason::NO_UEID);
    assert_eq!(said(offered_eids(&["OTHER"], None)), reason::NO_SEID);
    assert_eq!(said(raw::proposal(0xff0a)), reason::NO_SMCD2_DEV);
    let elsewhere = Some(Eid(*b"IBM-SYSZ-ISMSEID0000000012340000"));
    assert_eq!(said(offered_eids(&[], elsewhere)), reason::NO_SMCD_DEV);
    let mut both = offered_eids(&[], elsewhere);
    both.v2.as_mut().expect("version 2").smcr = true;
    assert_eq!(said(both), reason::NO_SMC_DEV);
    {
        let _no_device = Set::new(&[("PNETID", "loopback=NET1,ism=NET2,lo=NET3")]);
        assert_eq!(said(raw::proposal(0xffff)), reason::NO_ISM2_SUPP);
    }
    let _no_memory = Set::new(&[("MAX_MEMORY", "1")]);
    assert_eq!(said(raw::proposal(0xffff)), reason::MAX_DMB);
}

#[test]
fn a_client_without_a_device_says_so() {
    let _serial = serial();
    let _foreign = Set::new(&[("PNETID", "loopback=NET1,ism=NET1,lo=NET2")]);
    let (server, client) = pair();
    server.step();
    client.step();
    server.step();
    assert_eq!(client.reason(), reason::NO_SMC_DEV);
    assert_eq!((server.reason(), server.peer_reason()), (reason::PEER_DECL, reason::NO_SMC_DEV));
}

#[test]
fn eids_decide_who_is_accepted() {
    let _serial = serial();
    let seid = Some(Eid::LOOPBACK_SEID);
    let eid = |proposal| level(&accepted(proposal)).eid;
    assert_eq!(eid(offered_eids(&["SHOP.1"], seid)), seid, "the system's goes before");
    {
        let _ueids = Set::new(&[("UEID", "SHOP.1,SHOP.2")]);
        let of = |name| Eid::user(name).ok();
        assert_eq!(
            eid(offered_eids(&["SHOP.2", "SHOP.1"], None)),
            of("SHOP.2"),
            "the client's order"
        );
        assert_eq!(eid(offered_eids(&["OTHER"], seid)), seid);
        assert_eq!(declined(offered_eids(&["OTHER"], None)).0, reason::NO_SMCD_DEV);
        let _off = Set::new(&[("SEID", "off")]);
        assert_eq!(eid(offered_eids(&["SHOP.1"], seid)), of("SHOP.1"));
        assert_eq!(
            declined(offered_eids(&[], seid)).0,
            reason::NO_SMCD_DEV,
            "the system's is switched off"
        );
    }
    let _off = Set::new(&[("SEID", "off")]);
    let (server, client) = pair();
    for end in [&server, &client, &server, &client] {
        end.step();
    }
    assert_eq!(
        (client.reason(), client.peer_reason()),
        (reason::PEER_DECL, reason::NO_UEID),
        "{}",
        server.describe()
    );
}

/// Both ends ours, with a user-defined EID alone: it is what the link group is held to, and what
/// the census shows.
#[test]
fn a_link_group_has_the_eid_that_was_agreed_on() {
    let _serial = serial();
    // No group of an earlier test is to be joined: a fork child has other devices.
    let _eids = Set::new(&[("UEID", "SHOP.9"), ("SEID", "off"), ("PREFER", "ism")]);
    let (server, client) = pair();
    upgrade(&server, &client);
    for end in [&server, &client] {
        let id = end.conn.identity.group.load(Relaxed);
        let (_, kind, terms) = group::peer_of(id).expect("the group lives");
        assert_eq!(kind.name(), "ism");
        let rows = table::get().expect("a table").groups();
        let row = rows
            .iter()
            .find(|row| row.id.load(Relaxed) == id && row.pid.load(Relaxed) == smc::sys::getpid())
            .expect("a row");
        assert_eq!((row.eid(), row.release.load(Relaxed)), (terms.eid, u32::from(terms.release)));
        assert_eq!(
            (row.chid.load(Relaxed), row.state.load(Relaxed)),
            (0xff00, State::Ready as u32)
        );
        assert_eq!(row.server.load(Relaxed) == 1, end.is_server());
        assert_eq!(terms.eid, Eid::user("SHOP.9").expect("an EID"));
        assert_eq!(row.os.load(Relaxed), 2, "the peer said that it is Linux");
    }
}

/// Version 2.0: the first contact extension is the short one, and release 0 is spoken to the end.
#[test]
fn a_client_of_release_0_is_served() {
    let _serial = serial();
    let (end, other, ch, answer, passed) = proposed(offer_v2(|v2| v2.release = 0));
    assert!(passed.is_some());
    let Ok(Message::Accept(Accept::SmcD(accept))) = Message::decode(&answer) else {
        panic!("{answer:02x?}")
    };
    assert_eq!(level(&accept).first_contact.map(|first| first.release), Some(0));
    assert_eq!(u16::from_be_bytes([answer[5], answer[6]]), 114);
    let mut mine = half();
    v2(&mut mine).first_contact.as_mut().expect("first contact").release = 0;
    let memory = memfd(arena(4), SEALED);
    say(&ch, &with_trailer(raw::encode(&confirm_of(mine)), 0, 0), &[memory.as_raw_fd()]);
    end.step();
    assert!(end.conn.is_committed(), "{}", end.describe());
    let (.., terms) =
        group::peer_of(end.conn.identity.group.load(Relaxed)).expect("the group lives");
    assert_eq!(terms.release, 0);
    end.close();
    smc::sys::close(other);
    raw::next_stranger();
}

#[test]
fn a_server_of_release_0_is_answered() {
    let _serial = serial();
    let (other, mine) = tcp(false);
    let end = End::new(mine);
    let listener = raw::listen(other);
    end.step();
    let ch = raw::accept(&listener);
    assert!(matches!(hear_clc(&ch), Some(Message::Proposal(_))));
    let mut theirs = half();
    v2(&mut theirs).first_contact.as_mut().expect("first contact").release = 0;
    let memory = memfd(arena(4), SEALED);
    say(&ch, &write(&accept_of(theirs), other), &[memory.as_raw_fd()]);
    end.step();
    let (answer, _) = raw::hear(ch.as_raw_fd(), false).expect("an answer");
    let Ok(Message::Confirm(Accept::SmcD(confirm))) = Message::decode(&answer) else {
        panic!("{answer:02x?}")
    };
    assert_eq!(level(&confirm).first_contact.map(|first| first.release), Some(0));
    end.close();
    smc::sys::close(other);
    raw::next_stranger();
}
