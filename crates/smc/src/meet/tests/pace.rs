//! How often, and for how long, each way of meeting is looked at.

use super::*;

/// A look that costs a socket is taken less often from the start, one that costs a call when it was
/// often in vain.
#[test]
fn how_often_each_way_looks() {
    let listens = [
        Seeking::Name(Name::Listens(7)),
        Seeking::Lane(Lane::Invites),
        Seeking::Directory(Directory::Listens(7)),
        Seeking::Broker(Broker::Listens(7)),
    ];
    let calls = [
        Seeking::Name(Name::Calls),
        Seeking::Lane(Lane::Awaits),
        Seeking::Directory(Directory::Calls),
        Seeking::Broker(Broker::Calls),
    ];
    assert!(listens.iter().all(|at| at.gap(100, 0) == 1 && at.gap(100, EAGER) == 51));
    assert!(calls.iter().all(|at| at.gap(100, EAGER) == 25 && at.gap(1, EAGER) == 4));
    assert_eq!(Seeking::Directory(Directory::Proves(7)).gap(1000, 100), 1);
    assert_eq!(Seeking::Broker(Broker::Asks(7)).gap(640, 0), 11);
    assert!(listens.iter().chain(&calls).all(|at| at.is_alone()));
    assert!(
        !Seeking::Directory(Directory::Proves(7)).is_alone()
            && !Seeking::Broker(Broker::Dials(7)).is_alone()
    );
}

/// Tens of thousands of operations at once, before the other end ran at all, then a few in a
/// second: those who are there both meet all the same, with few looks.
#[test]
fn an_end_that_was_fast_and_is_slow_looks_by_time() {
    let _serial = serial();
    let (lonely, _other) = ends(|_, _| Fate::Arrives);
    for made in [20_000, 200_000, 2_000_000] {
        let conn = lonely.conn;
        conn.upgrade.reach(Stage::Meeting);
        conn.upgrade.seek(Seeking::Name(Name::Calls));
        conn.ops.store(made, Relaxed);
        schedule(conn);
        assert!(conn.next_try.load(Relaxed) <= made + 16, "the clock is looked at soon");
        conn.ops.store(made + 16, Relaxed);
        conn.upgrade.due_ms.store(sys::coarse_ms() + 1000, Relaxed);
        assert!(!pace::is_due(conn) && conn.next_try.load(Relaxed) >= made + 17, "it is not time");
        conn.upgrade.due_ms.store(sys::coarse_ms(), Relaxed);
        assert!(pace::is_due(conn));
        // The longer it has looked, the more seldom.
        let before = sys::coarse_ms();
        conn.upgrade.since_ms.store(before.wrapping_sub(4000), Relaxed);
        schedule(conn);
        let due = conn.upgrade.due_ms.load(Relaxed).wrapping_sub(before);
        // An eighth of the time since then.
        let late = sys::coarse_ms().wrapping_sub(before);
        assert!((400..=600 + 2 * late).contains(&due), "{due} ms, {late} ms late");
        conn.ops.store(made + made / 2, Relaxed);
        assert!(pace::is_due(conn), "so many more operations do as well");
        conn.upgrade.leave();
    }
    // Those who meet so late have the time for their handshake.
    let (server, client) = ends(|_, _| Fate::Arrives);
    for end in [&server, &client] {
        end.conn.ops.store(GIVE_UP * 2, Relaxed);
    }
    meet_each_other(&server, &client);
    go_on(&server, &client);
    assert!(server.is_upgraded() && client.is_upgraded());
}

/// A connection that leaves the network namespace mostly leaves the machine, too.
#[test]
fn how_long_each_way_looks() {
    let _serial = serial();
    let (end, _other) = ends(|_, _| Fate::Arrives);
    let tires = |at: Seeking, ops| at.tires(end.conn, ops);
    for at in [Seeking::Name(Name::Listens(7)), Seeking::Lane(Lane::Awaits)] {
        has_waited(&end, 0, 0);
        assert_eq!(tires(at, u32::MAX), None, "its peer may not have run yet");
        has_waited(&end, 0, PATIENCE_MS + 1);
        assert_eq!((tires(at, GIVE_UP), tires(at, GIVE_UP + 1)), (None, Some(reason::PEER_NO_SMC)));
    }
    for at in [Seeking::Directory(Directory::Calls), Seeking::Broker(Broker::Calls)] {
        assert_eq!(
            (tires(at, GIVE_UP_FAR), tires(at, GIVE_UP_FAR + 1)),
            (None, Some(reason::PEER_NO_SMC))
        );
    }
    assert_eq!(
        tires(Seeking::Directory(Directory::Proves(7)), GIVE_UP_FAR + 1),
        Some(reason::UNPROVEN)
    );
    end.conn.set_reason(reason::NO_BROKER);
    assert_eq!(tires(Seeking::Broker(Broker::Asks(7)), GIVE_UP_FAR + 1), Some(reason::NO_BROKER));
}
