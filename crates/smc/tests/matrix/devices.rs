//! Devices: which are offered, in which order, and what is done where one cannot be had.

use super::*;

fn listed(chids: &[u16]) -> Proposal {
    let mut devices = Devices::new();
    for &chid in chids {
        devices.push(Device { gid: raw::gid_on(chid), chid }).expect("room");
    }
    offer_v2(|v2| v2.smcd.as_mut().expect("SMC-D").devices = devices)
}

#[test]
fn the_server_follows_the_clients_order() {
    let _serial = serial();
    let chid = |proposal| level(&accepted(proposal)).chid;
    for prefer in ["loopback,ism", "ism,loopback"] {
        let _order = Set::new(&[("PREFER", prefer)]);
        assert_eq!(chid(listed(&[0xffff, 0xff00])), 0xffff);
        assert_eq!(chid(listed(&[0xff00, 0xffff])), 0xff00);
        assert_eq!(
            chid(listed(&[0x07c1, 0xff0a, 0xff00])),
            0xff00,
            "what it has not is passed over"
        );
    }
    let _one = Set::new(&[("PREFER", "loopback")]);
    assert_eq!(chid(listed(&[0xff00, 0xffff])), 0xffff);
    assert_eq!(declined(listed(&[0xff00])).0, reason::NO_SMCD2_DEV);
}

#[test]
fn the_client_offers_in_its_order_what_its_pnet_ids_admit() {
    let _serial = serial();
    let offered = |prefer: &str, pnets: &str| {
        let _set = Set::new(&[("PREFER", prefer), ("PNETID", pnets)]);
        let (other, mine) = tcp(false);
        let end = End::new(mine);
        let listener = raw::listen(other);
        end.step();
        let said = hear_clc(&raw::accept(&listener));
        smc::sys::close(other);
        let Some(Message::Proposal(Proposal {
            v2: Some(OfferV2 { smcd: Some(smcd), .. }), ..
        })) = said
        else {
            panic!("{said:?}");
        };
        smcd.devices.as_slice().iter().map(|device| device.chid).collect::<Vec<_>>()
    };
    assert_eq!(offered("loopback,ism", ""), [0xffff, 0xff00]);
    assert_eq!(offered("ism,loopback", ""), [0xff00, 0xffff]);
    assert_eq!(offered("ism,loopback", "ism=NET1,loopback=NET2,lo=NET2"), [0xffff]);
    assert_eq!(
        offered("ism,loopback", "ism=NET1,loopback=NET2,lo=NET2,eth0=NET1"),
        [0xff00, 0xffff]
    );
    assert_eq!(offered("ism,loopback", "ism=NET1"), [0xffff]);
}

/// Leaves this many descriptors below the limit.
fn with_descriptors<R>(free: u64, what: impl FnOnce() -> R) -> R {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // As many as are open; what is lowest of the free ones is taken first.
    let mut held = Vec::new();
    let highest = std::fs::read_dir("/proc/self/fd").expect("/proc").flatten();
    let numbers: Vec<u64> =
        highest.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let low = numbers.iter().filter(|&&fd| fd < 512).max().copied().unwrap_or(0) + 1;
    while let Ok(file) = std::fs::File::open("/dev/null") {
        let at = file.as_raw_fd() as u64;
        held.push(file);
        if at >= low {
            break;
        }
    }
    let at = held.last().map_or(low, |file| file.as_raw_fd() as u64) + 1;
    let low = rustix::process::Rlimit { current: Some(at + free), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, low).expect("a lower limit");
    let result = what();
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("the old limit");
    result
}

/// New memory needs a descriptor, a buffer of memory that is there needs none.
#[test]
fn a_device_that_cannot_be_set_up_gives_way_to_the_next() {
    let _serial = serial();
    // From here on there is no link group to join but the one that is made next.
    group::after_fork_child();
    let first = {
        let _ism = Set::new(&[("PREFER", "ism")]);
        let (server, client) = pair();
        upgrade(&server, &client);
        (server, client)
    };
    let _both = Set::new(&[("PREFER", "loopback,ism")]);
    let (server, client) = pair();
    server.step();
    client.step();
    // One, for the channel that the server accepts.
    with_descriptors(1, || server.step());
    upgrade(&server, &client);
    for (end, earlier) in [(&server, &first.0), (&client, &first.1)] {
        assert_eq!(
            end.conn.identity.group.load(Relaxed),
            earlier.conn.identity.group.load(Relaxed)
        );
    }

    let (mine, other) = tcp(false);
    let end = End::new(mine);
    end.step();
    let ch = raw::connect(other).expect("the server listens");
    say(&ch, &write(&Message::Proposal(listed(&[0xffff, 0xff00])), other), &[]);
    with_descriptors(1, || end.step());
    let said = hear_clc(&ch);
    assert_eq!(said, Some(raw::decline_of(reason::MEMORY)), "neither can be set up");
    smc::sys::close(other);
    raw::next_stranger();
}

#[test]
fn each_device_and_each_role_has_a_link_group_of_its_own() {
    let _serial = serial();
    let mut groups = Vec::new();
    let mut ends = Vec::new();
    for prefer in ["loopback", "ism", "loopback", "ism"] {
        let _one = Set::new(&[("PREFER", prefer)]);
        let (server, client) = pair();
        upgrade(&server, &client);
        groups.push([&server, &client].map(|end| end.conn.identity.group.load(Relaxed)));
        ends.push((server, client));
    }
    assert_eq!((groups[0], groups[1]), (groups[2], groups[3]), "later connections join");
    let mut all = [groups[0], groups[1]].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4);
}

/// The CHID says that they might be of one partition, the GID whether they are.
#[test]
fn partitions_are_fabrics_of_their_own() {
    let _serial = serial();
    let _ism = Set::new(&[("PREFER", "ism,loopback"), ("PARTITION", "5")]);
    assert_eq!(level(&accepted(listed(&[0xff85]))).chid, 0xff85);
    for other in [0xff00, 0xff84, 0xff86] {
        assert_eq!(declined(listed(&[other])).0, reason::NO_SMCD2_DEV);
        assert_eq!(
            level(&accepted(listed(&[other, 0xffff]))).chid,
            0xffff,
            "the next device in common"
        );
    }
    let mut lie = listed(&[0xff85]);
    let liar = Device { gid: raw::gid_on(0xff84), chid: 0xff85 };
    let devices = &mut lie.v2.as_mut().and_then(|v2| v2.smcd.as_mut()).expect("SMC-D").devices;
    *devices = Devices::new();
    devices.push(liar).expect("room");
    assert_eq!(declined(lie).0, reason::NO_SMCD2_DEV, "query_remote_gid");
}

/// Two ends of ours, whose settings differ as those of two processes would.
#[test]
fn two_partitions_have_the_other_devices_in_common() {
    let _serial = serial();
    for (prefer, of_client, device) in
        [("ism", "3", Some("ism")), ("ism", "4", None), ("ism,loopback", "4", Some("loopback"))]
    {
        // A GID is noted for good: those of a fork child are new.
        group::after_fork_child();
        let _set = Set::new(&[("PREFER", prefer), ("PARTITION", "0")]);
        let (server, client) = pair();
        for _ in 0..20 {
            smc::setting::set(b"PARTITION", b"3");
            server.step();
            smc::setting::set(b"PARTITION", of_client.as_bytes());
            client.step();
        }
        let id = client.conn.identity.group.load(Relaxed);
        match device {
            Some(name) => {
                assert!(
                    server.settle() && client.settle(),
                    "{} {}",
                    server.describe(),
                    client.describe()
                );
                assert_eq!(client.conn.kind().name(), name);
                let rows = table::get().expect("a table").groups();
                let own = |row: &&smc::census::Row| {
                    row.id.load(Relaxed) == id && row.pid.load(Relaxed) == smc::sys::getpid()
                };
                let row = rows.iter().find(own).expect("a row");
                assert_eq!(row.chid.load(Relaxed), if name == "ism" { 0xff83 } else { 0xffff });
            }
            None => {
                assert_eq!(
                    (client.reason(), client.peer_reason()),
                    (reason::PEER_DECL, reason::NO_SMCD2_DEV)
                );
                assert!(!client.conn.is_committed() && !server.conn.is_committed());
            }
        }
    }
}

/// A server that accepts a device of ours under the GID of another partition.
#[test]
fn a_client_asks_its_device_too() {
    let _serial = serial();
    let _ism = Set::new(&[("PREFER", "ism")]);
    let (other, mine) = tcp(false);
    let end = End::new(mine);
    let listener = raw::listen(other);
    end.step();
    let ch = raw::accept(&listener);
    assert!(matches!(hear_clc(&ch), Some(Message::Proposal(_))));
    let mut theirs = half();
    theirs.gid = raw::gid_on(0xff81);
    v2(&mut theirs).chid = 0xff00;
    say(&ch, &write(&accept_of(theirs), other), &[]);
    end.step();
    assert_eq!(hear_clc(&ch), Some(raw::decline_of(reason::NO_SMCD2_DEV)));
    assert_eq!(end.reason(), reason::NO_SMCD2_DEV);
    end.close();
    smc::sys::close(other);
    raw::next_stranger();
}
