//! Generators of every legal value, for the properties.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::smcr::SmcR;
use super::*;
use crate::reason::Reason;

fn list<T, const N: usize>(item: impl Strategy<Value = T>) -> impl Strategy<Value = List<T, N>>
where
    T: Copy + Default + std::fmt::Debug,
{
    vec(item, 0..=N).prop_map(|items| List::of(&items).expect("no more than N"))
}

fn eid() -> impl Strategy<Value = Eid> {
    let user = "[A-Z0-9][A-Z0-9-]{0,31}".prop_map(|name| Eid::user(&name).expect("legal"));
    prop_oneof![user, Just(Eid::LOOPBACK_SEID), any::<[u8; 32]>().prop_map(Eid)]
}

/// An EID that is not zero, as zero says on the wire that there is none.
fn chosen_eid() -> impl Strategy<Value = Option<Eid>> {
    option::of(eid().prop_filter("zero is none", |eid| !eid.is_zero()))
}

fn device() -> impl Strategy<Value = Device> {
    let chid = prop_oneof![any::<u16>(), 0xff00..=0xffffu16];
    (any::<u64>(), any::<u64>(), chid).prop_map(|(hi, lo, chid)| {
        let lo = if is_emulated(chid) { lo } else { 0 };
        Device { gid: Gid { hi, lo }, chid }
    })
}

fn devices() -> impl Strategy<Value = Devices> {
    vec(device(), 0..=10).prop_map(|candidates| {
        let mut devices = Devices::new();
        for device in candidates {
            let _ = devices.push(device);
        }
        devices
    })
}

fn offer_v1() -> impl Strategy<Value = OfferV1> {
    let native = option::of((any::<u64>(), any::<u16>()));
    let prefix = (any::<[u8; 16]>(), any::<u8>()).prop_map(|(addr, len)| Ipv6Prefix { addr, len });
    (any::<bool>(), native, any::<[u8; 4]>(), any::<u8>(), list(prefix)).prop_map(
        |(smcr, native, subnet, prefix_len, v6)| OfferV1 {
            smcr: smcr || native.is_none(),
            native: native.map(|(gid, chid)| NativeIsm { gid, chid }),
            ip: IpArea { subnet, prefix_len, v6 },
        },
    )
}

fn offer_v2() -> impl Strategy<Value = OfferV2> {
    let smcd = (option::of(eid()), devices());
    let smcd = option::of(smcd.prop_map(|(seid, devices)| SmcDOffer { seid, devices }));
    let roce = (any::<bool>(), any::<[u8; 16]>(), any::<u8>(), any::<u8>(), any::<u16>());
    (0..16u8, list(eid()), smcd, roce).prop_map(|(release, eids, smcd, roce)| {
        let (smcr, roce_gid, max_conns, max_links, features) = roce;
        let smcr = smcr || smcd.is_none();
        OfferV2 { release, eids, smcd, smcr, roce_gid, max_conns, max_links, features }
    })
}

pub(super) fn proposal() -> impl Strategy<Value = Message> {
    let roce = (any::<[u8; 8]>(), any::<[u8; 16]>(), any::<[u8; 6]>());
    let offers = (any::<bool>(), option::of(offer_v1()), option::of(offer_v2()));
    (roce, offers).prop_map(|((peer_id, gid, mac), (old, v1, v2))| {
        let version = if old && v1.is_some() { Version::V1 } else { Version::V2 };
        let v2 = v2.filter(|_| version == Version::V2);
        Message::Proposal(Proposal { version, roce: RoceV1 { peer_id, gid, mac }, v1, v2 })
    })
}

fn first_contact(smcr: bool) -> impl Strategy<Value = Option<FirstContact>> {
    let first = (any::<bool>(), 0..16u8, 0..16u8, any::<[u8; 32]>());
    let later = (any::<u8>(), any::<u8>(), any::<u16>(), any::<[u8; 4]>());
    option::of((first, later).prop_map(move |((v2_direct, os, release, hostname), later)| {
        let short = release == 0 && !smcr;
        let (max_conns, max_links, features, vendor) =
            if short { Default::default() } else { later };
        let (os, hostname) = (Os::new(os), Hostname(hostname));
        FirstContact { v2_direct, os, release, hostname, max_conns, max_links, features, vendor }
    }))
}

fn size() -> impl Strategy<Value = SizeCode> {
    (0..16u8).prop_map(|code| SizeCode::new(code).expect("four bits"))
}

fn smcd() -> impl Strategy<Value = Accept> {
    let v1 = (any::<u64>(), any::<bool>())
        .prop_map(|(hi, first_contact)| (Gid { hi, lo: 0 }, SmcDLevel::V1 { first_contact }));
    let v2 =
        (device(), chosen_eid(), first_contact(false)).prop_map(|(device, eid, first_contact)| {
            (device.gid, SmcDLevel::V2(SmcDv2 { chid: device.chid, eid, first_contact }))
        });
    (prop_oneof![v1, v2], any::<u64>(), any::<u8>(), size(), any::<[u8; 4]>()).prop_map(
        |((gid, level), token, index, size, link_id)| {
            Accept::SmcD(SmcD { gid, token, index, size, link_id, level })
        },
    )
}

fn smcr(kind: Kind) -> impl Strategy<Value = Accept> {
    let v1 = any::<bool>().prop_map(|first_contact| SmcRLevel::V1 { first_contact });
    let v2 = (chosen_eid(), first_contact(true), list(any::<[u8; 16]>())).prop_map(
        move |(eid, first_contact, gids)| {
            let on_wire = kind == Kind::Confirm && first_contact.is_some();
            let gids = if on_wire { gids } else { List::new() };
            SmcRLevel::V2(SmcRv2 { eid, first_contact, gids })
        },
    );
    let port = (any::<[u8; 8]>(), any::<[u8; 16]>(), any::<[u8; 6]>(), 0..1u32 << 24);
    let buffer = (any::<u32>(), any::<u8>(), any::<u32>(), size(), 0..16u8, any::<u64>());
    (port, buffer, 0..1u32 << 24, prop_oneof![v1, v2]).prop_map(|(port, buffer, psn, level)| {
        let (peer_id, gid, mac, qpn) = port;
        let (rkey, index, alert_token, size, mtu, vaddr) = buffer;
        Accept::SmcR(SmcR {
            peer_id,
            gid,
            mac,
            qpn,
            rkey,
            index,
            alert_token,
            size,
            mtu,
            vaddr,
            psn,
            level,
        })
    })
}

fn decline() -> impl Strategy<Value = Message> {
    let v2 = option::of((0..16u8, any::<[u32; 4]>()));
    (any::<[u8; 8]>(), any::<u32>(), any::<bool>(), v2).prop_map(
        |(peer_id, code, out_of_sync, v2)| {
            let v2 = v2.map(|(os, extra)| DeclineV2 { os: Os::new(os), extra });
            Message::Decline(Decline { peer_id, diagnosis: Reason(code), out_of_sync, v2 })
        },
    )
}

pub(super) fn message() -> impl Strategy<Value = Message> {
    let accept = prop_oneof![smcd(), smcr(Kind::Accept)].prop_map(Message::Accept);
    let confirm = prop_oneof![smcd(), smcr(Kind::Confirm)].prop_map(Message::Confirm);
    prop_oneof![proposal(), accept, confirm, decline()]
}
