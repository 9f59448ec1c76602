//! What the CLC targets do with their input.

use smc::clc::negotiate::{self, Local, Selection};
use smc::clc::{
    Accept, Confirm, Device, Devices, Eid, Eids, FirstContact, Gid, Header, MAX_LEN, Message,
    Proposal, SizeCode, SmcD, SmcDLevel, SmcDv2,
};

/// What decodes, encodes, and decodes to the same message.
pub fn decode(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else {
        return;
    };
    assert_eq!(Header::parse(bytes).map(|header| header.kind), Ok(message.kind()));

    let (canonical, len) = encode(&message);
    let canonical = &canonical[..len];
    assert_eq!(Message::decode(canonical), Ok(message));
    assert_eq!(Header::parse(canonical).map(|header| usize::from(header.length)), Ok(len));

    let (again, len) = encode(&message);
    assert_eq!(&again[..len], canonical);
    assert!(message.encode(&mut vec![0; len - 1]).is_err());
}

/// What the server chooses, the client accepts, and the server sees confirmed.
pub fn negotiate(bytes: &[u8]) {
    match Message::decode(bytes) {
        Ok(Message::Proposal(proposal)) => as_server(&proposal),
        Ok(Message::Accept(accept)) => as_client(&accept),
        Ok(Message::Confirm(confirm)) => confirmed(&confirm),
        Ok(Message::Decline(decline)) => drop(decline.diagnosis.to_string()),
        Err(_) => {}
    }
}

const LOOPBACK: Device = Device {
    gid: Gid { hi: 0x0123_4567_89ab_cdef, lo: 0xfedc_ba98_7654_3210 },
    chid: Device::LOOPBACK_CHID,
};
const ISM: Device = Device { gid: Gid { hi: 0x8877_6655_4433_2211, lo: 0 }, chid: 0x07c1 };
const DEVICES: [Device; 2] = [ISM, LOOPBACK];

fn as_server(proposal: &Proposal) {
    let ueids = [demo()];
    let local = Local {
        devices: &DEVICES,
        reachable: &|device, gid| device == 0 || gid == LOOPBACK.gid,
        ueids: &ueids,
        seid: Some(Eid::LOOPBACK_SEID),
        release: negotiate::RELEASE,
    };
    let first = negotiate::select(proposal, &local);
    let candidates = negotiate::candidates(proposal, &local);
    assert_eq!(first, candidates.map(|candidates| candidates[0]));
    let Ok(candidates) = candidates else { return };
    for selection in &candidates {
        assert_eq!(DEVICES[selection.device].chid, selection.chid);
        assert!(selection.release <= negotiate::RELEASE);

        let accept = answer(selection, DEVICES[selection.device].gid);
        let accepted = negotiate::check_accept(proposal, &accept).expect("what was proposed");
        assert_eq!(accepted.eid.unwrap_or_default(), selection.eid);
        assert_eq!(accepted.release, Some(selection.release));

        let confirm = answer(selection, selection.gid);
        assert_eq!(negotiate::check_confirm(selection, &confirm), Ok(()));
    }
}

fn as_client(accept: &Accept) {
    let mut devices = Devices::new();
    for device in DEVICES {
        devices.push(device).expect("room for two");
    }
    let eids = Eids::of(&[demo()]).expect("room for one");
    let proposal = Proposal::smcd(negotiate::RELEASE, eids, Some(Eid::LOOPBACK_SEID), devices);
    if let Ok(accepted) = negotiate::check_accept(&proposal, accept) {
        assert!(accepted.release.unwrap_or_default() <= negotiate::RELEASE);
        assert_eq!(accepted.first_contact, accept.first_contact());
    }
}

fn confirmed(confirm: &Confirm) {
    let selection = Selection {
        gid: LOOPBACK.gid,
        chid: LOOPBACK.chid,
        eid: demo(),
        release: negotiate::RELEASE,
        ..Selection::default()
    };
    if negotiate::check_confirm(&selection, confirm).is_ok() {
        assert_eq!(confirm.version(), selection.version);
    }
}

fn answer(selection: &Selection, gid: Gid) -> Accept {
    let first = FirstContact { release: selection.release, ..FirstContact::default() };
    let eid = Some(selection.eid);
    Accept::SmcD(SmcD {
        gid,
        token: 1,
        index: 0,
        size: SizeCode::MIN,
        link_id: [0; 4],
        level: SmcDLevel::V2(SmcDv2 { chid: selection.chid, eid, first_contact: Some(first) }),
    })
}

fn demo() -> Eid {
    Eid::user("DEMO-UEID-1").expect("a legal EID")
}

fn encode(message: &Message) -> ([u8; MAX_LEN], usize) {
    let mut bytes = [0xaa; MAX_LEN];
    let len = message.encode(&mut bytes).expect("the longest message fits");
    (bytes, len)
}
