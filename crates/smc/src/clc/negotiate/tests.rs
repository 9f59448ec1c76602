//! The decisions of both sides, and the reason for each refusal.

use super::*;
use crate::clc::fixtures::{self, accept, confirm, proposal};
use crate::clc::{Devices, Eids, FirstContact, MAX_LEN, Message, NativeIsm, OfferV1, SmcD};

const LOOPBACK: Device = fixtures::LOOPBACK;
const ISM: Device = Device { gid: Gid { hi: 0x1122_3344_5566_7788, lo: 0 }, chid: 0x07c1 };
const OTHER: Gid = Gid { hi: 1, lo: 2 };

fn demo() -> Eid {
    Eid::user("DEMO-UEID-1").unwrap()
}

fn offer(eids: &[Eid], seid: Option<Eid>, devices: &[Device]) -> Proposal {
    let mut list = Devices::new();
    for device in devices {
        list.push(*device).unwrap();
    }
    Proposal::smcd(RELEASE, Eids::of(eids).unwrap(), seid, list)
}

fn local(devices: &[Device]) -> Local<'_> {
    Local {
        devices,
        reachable: &|_, gid| gid != OTHER,
        ueids: &[],
        seid: Some(Eid::LOOPBACK_SEID),
        release: RELEASE,
    }
}

fn ordinary() -> Proposal {
    offer(&[], Some(Eid::LOOPBACK_SEID), &[LOOPBACK, ISM])
}

#[test]
fn the_clients_order_decides() {
    let found = candidates(&ordinary(), &local(&[ISM, LOOPBACK])).unwrap();
    let of = |c: &Selection| (c.device, c.proposed, c.chid, c.gid);
    let loopback = (1, Proposed::Listed(0), 0xffff, LOOPBACK.gid);
    let ism = (0, Proposed::Listed(1), 0x07c1, ISM.gid);
    assert_eq!(found.iter().map(of).collect::<Vec<_>>(), [loopback, ism]);
    let first = select(&ordinary(), &local(&[ISM, LOOPBACK])).unwrap();
    assert_eq!(first, found[0]);
    assert_eq!((first.eid, first.version), (Eid::LOOPBACK_SEID, Version::V2));
}

#[test]
fn the_native_device_comes_first() {
    let mut proposal = ordinary();
    let native = NativeIsm { gid: 5, chid: 0x07c2 };
    proposal.v1 = Some(OfferV1 { native: Some(native), ..OfferV1::default() });
    let ours = Device { gid: OTHER, chid: 0x07c2 };
    let chosen = select(&proposal, &local(&[LOOPBACK, ours])).unwrap();
    assert_eq!((chosen.device, chosen.proposed), (1, Proposed::Native));
    assert_eq!(chosen.gid, Gid { hi: 5, lo: 0 });
    // Without a CHID it is a device of version 1 only.
    proposal.v1 =
        Some(OfferV1 { native: Some(NativeIsm { gid: 5, chid: 0 }), ..OfferV1::default() });
    let none = Device { gid: OTHER, chid: 0 };
    assert_eq!(select(&proposal, &local(&[none])), Err(reason::NO_SMCD2_DEV));
}

#[test]
fn a_device_of_ours_stands_for_one_candidate() {
    let twins = [LOOPBACK, Device { gid: Gid { hi: 7, lo: 7 }, ..LOOPBACK }];
    let mut proposal = ordinary();
    let bytes = fixtures::entries(&twins);
    let devices = Devices::decode(&bytes, 4).unwrap();
    proposal.v2.as_mut().unwrap().smcd.as_mut().unwrap().devices = devices;
    assert_eq!(candidates(&proposal, &local(&[LOOPBACK])).unwrap().len(), 1);
    assert_eq!(candidates(&proposal, &local(&twins)).unwrap().len(), 2);
}

#[test]
fn each_failure_has_its_reason() {
    let ours = [LOOPBACK];
    let fails = |proposal: &Proposal| select(proposal, &local(&ours)).unwrap_err();

    let mut nothing = ordinary();
    nothing.v2 = None;
    assert_eq!(fails(&nothing), reason::PEER_NO_SMC);
    let mut v1_only = nothing;
    v1_only.v1 = Some(OfferV1 { native: Some(NativeIsm::default()), ..OfferV1::default() });
    assert_eq!(fails(&v1_only), reason::NO_V2_EXT);
    assert_eq!(fails(&proposal(fixtures::PROPOSAL_V1)), reason::NO_V2_EXT);
    let mut smcr_only = ordinary();
    smcr_only.v2 = Some(OfferV2 { smcr: true, smcd: None, ..smcr_only.v2.unwrap() });
    assert_eq!(fails(&smcr_only), reason::NO_V2D_EXT);
    assert_eq!(fails(&offer(&[], None, &[LOOPBACK])), reason::NO_UEID);
    assert_eq!(fails(&offer(&[demo()], None, &[LOOPBACK])), reason::NO_SEID);
    let seid = Some(Eid::LOOPBACK_SEID);
    assert_eq!(fails(&offer(&[], seid, &[ISM])), reason::NO_SMCD2_DEV);
    assert_eq!(fails(&offer(&[], seid, &[])), reason::NO_SMCD2_DEV);
    let unreachable = Device { gid: OTHER, ..LOOPBACK };
    assert_eq!(fails(&offer(&[], seid, &[unreachable])), reason::NO_SMCD2_DEV);
    assert_eq!(fails(&offer(&[], Some(demo()), &[LOOPBACK])), reason::NO_SMCD_DEV);
    let mut both = offer(&[], Some(demo()), &[LOOPBACK]);
    both.v2.as_mut().unwrap().smcr = true;
    assert_eq!(fails(&both), reason::NO_SMC_DEV);
    // The device is looked at before the EID.
    assert_eq!(fails(&offer(&[demo()], None, &[ISM])), reason::NO_SMCD2_DEV);
    assert_eq!(select(&ordinary(), &local(&[])), Err(reason::NO_ISM2_SUPP));
}

#[test]
fn system_eid_goes_before_user_defined_ones() {
    let other = Eid::user("OTHER").unwrap();
    let ours = [LOOPBACK];
    let ueids = [demo(), other];
    let with_both = Local { ueids: &ueids, ..local(&ours) };
    let seid = Some(Eid::LOOPBACK_SEID);
    let eid = |proposal: &Proposal, local: &Local<'_>| select(proposal, local).map(|s| s.eid);
    assert_eq!(eid(&offer(&[demo()], seid, &ours), &with_both), Ok(Eid::LOOPBACK_SEID));
    let seid_off = Local { seid: None, ..with_both };
    assert_eq!(eid(&offer(&[other, demo()], seid, &ours), &seid_off), Ok(other));
    assert_eq!(eid(&offer(&[demo()], None, &ours), &with_both), Ok(demo()));
    let unknown = Eid::user("UNKNOWN").unwrap();
    assert_eq!(eid(&offer(&[unknown], None, &ours), &with_both), Err(reason::NO_SMCD_DEV));
}

#[test]
fn the_lower_release_is_spoken() {
    for (theirs, ours, spoken) in [(0, 1, 0), (1, 1, 1), (15, 1, 1), (1, 0, 0)] {
        let mut proposal = ordinary();
        proposal.v2.as_mut().unwrap().release = theirs;
        let local = Local { release: ours, ..local(&[LOOPBACK]) };
        assert_eq!(select(&proposal, &local).unwrap().release, spoken);
    }
}

fn edit(accept: Accept, change: impl Fn(&mut SmcD, &mut SmcDv2)) -> Accept {
    let Accept::SmcD(mut smcd) = accept else { panic!("not SMC-D") };
    let SmcDLevel::V2(mut v2) = smcd.level else { panic!("not version 2") };
    change(&mut smcd, &mut v2);
    Accept::SmcD(SmcD { level: SmcDLevel::V2(v2), ..smcd })
}

#[test]
fn the_client_takes_what_it_asked_for() {
    let asked = proposal(fixtures::PROPOSAL_V2);
    let first = check_accept(&asked, &accept(fixtures::ACCEPT_FIRST)).unwrap();
    assert_eq!((first.proposed, first.eid), (Proposed::Listed(0), Some(demo())));
    assert_eq!((first.release, first.first_contact), (Some(1), true));
    let reused = check_accept(&asked, &accept(fixtures::ACCEPT_REUSE)).unwrap();
    assert_eq!((reused.release, reused.first_contact), (None, false));
    let v1 = check_accept(&proposal(fixtures::PROPOSAL_V1), &accept(fixtures::ACCEPT_V1)).unwrap();
    assert_eq!((v1.proposed, v1.version), (Proposed::Native, Version::V1));
}

#[test]
fn the_client_refuses_what_it_did_not_ask_for() {
    let asked = proposal(fixtures::PROPOSAL_V2);
    let v1 = proposal(fixtures::PROPOSAL_V1);
    let given = accept(fixtures::ACCEPT_FIRST);
    assert_eq!(check_accept(&v1, &given), Err(reason::MODE_UNSUPP));
    assert_eq!(check_accept(&asked, &accept(fixtures::ACCEPT_V1)), Err(reason::MODE_UNSUPP));
    let smcr = accept(&fixtures::smcr_accept());
    assert_eq!(check_accept(&asked, &smcr), Err(reason::MODE_UNSUPP));
    let mut with_smcr = asked;
    with_smcr.v2.as_mut().unwrap().smcr = true;
    assert_eq!(check_accept(&with_smcr, &smcr), Err(reason::NO_SMCR_DEV));
    let chid = edit(given, |_, v2| v2.chid = 0x07c1);
    assert_eq!(check_accept(&asked, &chid), Err(reason::VIOLATION));
    let eid = edit(given, |_, v2| v2.eid = Some(Eid::LOOPBACK_SEID));
    assert_eq!(check_accept(&asked, &eid), Err(reason::VIOLATION));
    let release = FirstContact { release: 2, ..FirstContact::default() };
    let newer = edit(given, |_, v2| v2.first_contact = Some(release));
    assert_eq!(check_accept(&asked, &newer), Err(reason::RELEASE_ERR));
}

#[test]
fn the_server_checks_the_confirm() {
    let ueids = [demo()];
    let ours = [LOOPBACK];
    let local = Local { ueids: &ueids, ..local(&ours) };
    let selection = select(&proposal(fixtures::PROPOSAL_V2), &local).unwrap();
    let given = confirm(&fixtures::confirm_first());
    assert_eq!(check_confirm(&selection, &given), Ok(()));
    let check =
        |change: fn(&mut SmcD, &mut SmcDv2)| check_confirm(&selection, &edit(given, change));
    assert_eq!(check(|_, v2| v2.first_contact = None), Ok(()));
    assert_eq!(check(|_, v2| v2.chid = 1), Err(reason::VIOLATION));
    assert_eq!(check(|_, v2| v2.eid = None), Err(reason::VIOLATION));
    assert_eq!(check(|smcd, _| smcd.gid.lo ^= 1), Err(reason::VIOLATION));
    let older = |_: &mut SmcD, v2: &mut SmcDv2| v2.first_contact = Some(FirstContact::default());
    assert_eq!(check(older), Err(reason::RELEASE_ERR));
    assert_eq!(check_confirm(&selection, &accept(fixtures::ACCEPT_V1)), Err(reason::VIOLATION));
}

/// Every decision over the messages of the kernel is the one that the kernel has made. Our Proposal in
/// place of its own is the same byte for byte; Accept and Confirm are written again as they came.
#[test]
fn the_kernels_own_handshake() {
    let encoded = |message: Message| {
        let mut bytes = [0xaa; MAX_LEN];
        let len = message.encode(&mut bytes).unwrap();
        bytes[..len].to_vec()
    };
    let gid = Gid { hi: 0x0a09_9265_c066_46da, lo: 0x8777_7055_6730_18f8 };
    let device = Device { gid, chid: Device::LOOPBACK_CHID };
    let eid = Eid::user("SHORTWIRE").unwrap();
    let ours = offer(&[eid], None, &[device]);
    assert_eq!(encoded(Message::Proposal(ours)), fixtures::hex(fixtures::KERNEL_PROPOSAL));

    let asked = proposal(fixtures::KERNEL_PROPOSAL);
    let (ueids, devices) = ([eid], [device]);
    let local = Local { ueids: &ueids, ..local(&devices) };
    let selection = select(&asked, &local).unwrap();
    assert_eq!((selection.chid, selection.gid, selection.eid), (device.chid, gid, eid));

    let given = accept(fixtures::KERNEL_ACCEPT);
    let agreed = check_accept(&asked, &given).unwrap();
    assert_eq!((agreed.release, agreed.first_contact), (Some(selection.release), true));
    assert_eq!(encoded(Message::Accept(given)), fixtures::hex(fixtures::KERNEL_ACCEPT));

    let confirmed = confirm(fixtures::KERNEL_CONFIRM);
    assert_eq!(check_confirm(&selection, &confirmed), Ok(()));
    assert_eq!(encoded(Message::Confirm(confirmed)), fixtures::hex(fixtures::KERNEL_CONFIRM));
}
