//! Handshakes after the first, in the memory of the link group.
#![allow(unsafe_code)]

mod common;
#[path = "lanes/offers.rs"]
mod offers;

use std::sync::atomic::{AtomicU64, Ordering::*};

use common::{End, bytes, open_fds, pair, rings, serial, upgrade};
use dibs::loopback::FRONT;
use smc::config::CONFIG;
use smc::conn::upgrade::{Lane, Meeting, Met, Name, Seeking};
use smc::group::lanes;

/// Whether the connection's handshake is under way in a lane, or was invited to one.
fn in_a_lane(end: &End) -> bool {
    matches!(
        end.conn.upgrade.meeting(),
        Meeting::Seeking(Seeking::Lane(Lane::Invites)) | Meeting::Met(Met::Lane(_))
    )
}

/// Whether somebody is waited for under the connection's name.
fn listens(end: &End) -> bool {
    matches!(end.conn.upgrade.meeting(), Meeting::Seeking(Seeking::Name(Name::Listens(_))))
}

fn group(end: &End) -> u32 {
    end.conn.identity.group.load(Relaxed)
}

fn talk(server: &End, client: &End) {
    for (from, to) in [(server, client), (client, server)] {
        assert_eq!(from.send(&bytes(3, 0, 1000)), Ok(1000));
        let mut got = [0; 2000];
        assert_eq!(to.recv(&mut got, 0), Ok(1000));
        assert!(got[..1000] == bytes(3, 0, 1000));
    }
}

/// Two processes have a link group, and with it lanes.
fn acquainted() -> (End, End) {
    // Groups of earlier tests could serve as well.
    lanes::forget_peers();
    smc::after_fork_child();
    rings()
}

#[test]
fn the_second_handshake_makes_no_descriptor() {
    let _serial = serial();
    let first = acquainted();
    let (server, client) = pair();
    let fds = open_fds();
    let mut lanes = 0;
    while !(server.conn.sends_on_ring() && client.conn.sends_on_ring()) {
        server.step();
        client.step();
        assert_eq!(open_fds(), fds);
        lanes += u32::from(in_a_lane(&server) && in_a_lane(&client));
        assert!(lanes < 10, "server {} client {}", server.describe(), client.describe());
    }
    assert!(lanes > 0);
    assert_eq!(group(&server), group(&first.0));
    talk(&server, &client);
}

/// A client that falls silent behind its Confirm leaves lanes to be opened by whoever comes next.
#[test]
fn first_contact_is_finished_by_another_connection() {
    let _serial = serial();
    drop(acquainted());
    smc::after_fork_child();
    let (first_server, first_client) = pair();
    let (server, client) = pair();
    for _ in 0..20 {
        first_server.step();
        if first_server.conn.is_committed() {
            break;
        }
        first_client.step();
    }
    assert!(
        first_server.conn.is_committed() && !first_client.conn.is_committed(),
        "{}",
        first_client.describe()
    );
    server.step();
    assert!(in_a_lane(&server));
    client.step();
    assert!(in_a_lane(&client), "{}", client.describe());
    assert!(first_client.conn.is_committed(), "{}", first_client.describe());
    upgrade(&server, &client);
    talk(&server, &client);
    upgrade(&first_server, &first_client);
    talk(&first_server, &first_client);
}

/// The client may be the first to be ready: it waits a little for an invitation.
#[test]
fn whoever_comes_first() {
    let _serial = serial();
    let _first = acquainted();
    let (server, client) = pair();
    client.step();
    client.step();
    assert_eq!(client.conn.upgrade.meeting(), Meeting::Seeking(Seeking::Lane(Lane::Awaits)));
    server.step();
    client.step();
    assert!(in_a_lane(&client));
    upgrade(&server, &client);
    talk(&server, &client);
}

fn all_are_upgraded(pairs: &[(End, End)]) {
    for _ in 0..20 {
        pairs.iter().for_each(|(server, _)| server.step());
        pairs.iter().rev().for_each(|(_, client)| client.step());
    }
    for (server, client) in pairs {
        assert!(
            server.settle() && client.settle(),
            "server {} client {}",
            server.describe(),
            client.describe()
        );
        talk(server, client);
    }
}

#[test]
fn more_connections_than_lanes() {
    let _serial = serial();
    let _first = acquainted();
    let pairs: Vec<_> = (0..100).map(|_| pair()).collect();
    all_are_upgraded(&pairs);
}

/// The descriptor of a new arena goes over the channel of first contact, whichever connection needs
/// it first.
#[test]
fn another_size_is_another_arena() {
    let _serial = serial();
    let _first = acquainted();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    let pairs: Vec<_> = (0..3).map(|_| pair()).collect();
    all_are_upgraded(&pairs);
}

/// A peer writes whatever it likes into our lanes, while handshakes go through them: theirs may
/// fail, no other connection does.
#[test]
fn lanes_full_of_nonsense() {
    let _serial = serial();
    let first = acquainted();
    let fronts = [&first.0, &first.1].map(|end| {
        let page = smc::kind::Kind::Loopback
            .device()
            .control_page(end.conn.identity.my_token.load(Relaxed));
        assert!(!page.is_null());
        page.wrapping_sub(FRONT).cast::<AtomicU64>()
    });
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut garbled = 0;
    for _ in 0..300 {
        let (server, client) = pair();
        for _ in 0..8 {
            server.step();
            client.step();
            for front in fronts {
                // The hashes, the words of the letterboxes that are in use, and their bytes.
                let at = [next(64), 64 + 64 * next(4), 64 + next(256)][next(3) as usize];
                let word =
                    [next(u64::MAX), next(16) << 32 | next(600) << 16 | next(4) << 8 | next(4), 0]
                        [next(3) as usize];
                // SAFETY: a word of the front, which is mapped as long as the arena.
                unsafe { &*front.wrapping_add(at as usize) }.store(word, SeqCst);
            }
        }
        garbled += u32::from(!(server.conn.sends_on_ring() && client.conn.sends_on_ring()));
        server.close();
        client.close();
        talk(&first.0, &first.1);
    }
    assert!(garbled > 0, "nothing of it was read");
}

/// Nobody answers the invitation: the other end is a process that we have no link group with.
#[test]
fn an_invitation_in_vain() {
    let _serial = serial();
    let _first = acquainted();
    let (server, client) = pair();
    for _ in 0..4 {
        server.step();
        assert!(in_a_lane(&server));
    }
    server.step();
    assert!(listens(&server), "by its name");
    client.step();
    assert!(!in_a_lane(&client), "the invitation was taken back");
    upgrade(&server, &client);
    talk(&server, &client);
}

/// The server takes its invitation back just when the client has answered it.
#[test]
fn an_answer_too_late() {
    let _serial = serial();
    let _first = acquainted();
    let (server, client) = pair();
    (0..4).for_each(|_| server.step());
    client.step();
    assert!(in_a_lane(&client));
    lanes::withdraw(server.conn);
    server.step();
    assert!(listens(&server));
    upgrade(&server, &client);
    talk(&server, &client);
}

/// At every step of the handshake, either end may close.
#[test]
fn an_end_that_closes_on_the_way() {
    let _serial = serial();
    let first = acquainted();
    for steps in 0..8 {
        for close_server in [true, false] {
            let (server, client) = pair();
            for step in 0..steps {
                if step % 2 == 0 { server.step() } else { client.step() }
            }
            let (gone, left) = if close_server { (server, client) } else { (client, server) };
            gone.close();
            for _ in 0..10 {
                left.step();
            }
            assert!(!in_a_lane(&left), "after {steps}: {}", left.describe());
            left.close();
            let (server, client) = pair();
            upgrade(&server, &client);
            assert!(!in_a_lane(&server) && !in_a_lane(&client));
            talk(&server, &client);
        }
    }
    talk(&first.0, &first.1);
}

/// The kernel vouched for the user of first contact: with another one everything begins anew, by
/// the name.
#[test]
fn a_change_of_user_ends_lanes() {
    let _serial = serial();
    let first = acquainted();
    lanes::forget_peers();
    let (server, client) = pair();
    server.step();
    assert!(listens(&server));
    upgrade(&server, &client);
    talk(&server, &client);
    talk(&first.0, &first.1);
}

/// One that happens in the middle leaves the connection on TCP, for the peer that answered was not
/// asked who it is.
#[test]
fn a_change_of_user_on_the_way() {
    let _serial = serial();
    let _first = acquainted();
    let (server, client) = pair();
    server.step();
    client.step();
    assert!(in_a_lane(&client));
    lanes::forget_peers();
    for _ in 0..10 {
        server.step();
        client.step();
    }
    for end in [&server, &client] {
        assert!(!end.conn.sends_on_ring() || end.settle(), "{}", end.describe());
    }
    // Whichever way it went, bytes arrive.
    talk(&server, &client);
}
