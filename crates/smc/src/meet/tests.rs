//! The handshake, over a channel that is no socket: what each end comes to, whatever happens to the
//! messages.

mod pace;
mod talk;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::sync::{Mutex, MutexGuard};

use super::pace::PATIENCE_MS;
use super::*;
use crate::conn::upgrade::{Broker, Directory, Lane, Name};
use talk::{CLIENT, Fate, SERVER, begin, forge, has_hung_up, look_instead, refuse, said};

pub(super) use talk::Side;

/// Link groups and settings are the process's.
fn serial() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(|e| e.into_inner());
    CONFIG.dmb_size.store(64 << 10, Relaxed);
    CONFIG.after.store(0, Relaxed);
    crate::after_fork_child();
    guard
}

/// A process that has no link groups, or that has one with this peer, by a connection that stands.
fn anew(known: bool) -> Option<(End, End)> {
    crate::after_fork_child();
    known.then(|| both(|_, _| Fate::Arrives))
}

/// One end of a real connection, with the other of which it has a channel already.
struct End {
    conn: &'static Conn,
    index: u32,
    fd: i32,
    side: Side,
}

impl End {
    fn new(fd: i32, side: Side) -> End {
        let table = table::get().expect("a table");
        let index = table.alloc().expect("a slot");
        let conn = table.conn(index);
        conn.reset();
        conn.identity.pid.store(sys::getpid(), Relaxed);
        End { conn, index, fd, side }
    }

    /// The rendezvous has come to its end.
    fn meets(&self) {
        assert!(self.conn.hold_upgrade());
        identify(self.conn, self.fd);
        self.conn.upgrade.meet(Met::Scripted(self.side.0));
        let role = if self.side == SERVER { Role::Server } else { Role::Client };
        if let Next::Tcp(why) = found_peer(self.conn, self.fd, Found::Peer(role)) {
            stay_tcp(self.conn, why);
        }
        self.conn.release_upgrade();
    }

    fn step(&self) {
        self.conn.ops.fetch_add(1, Relaxed);
        step(self.conn, self.fd, || false);
    }

    fn stage(&self) -> Stage {
        self.conn.upgrade.stage()
    }

    fn is_upgraded(&self) -> bool {
        self.conn.is_committed()
    }

    /// Why it is TCP, and why its peer said that it is.
    fn reasons(&self) -> (Reason, Reason) {
        (self.conn.reason(), self.conn.upgrade.declined())
    }

    /// It has given up for good, and its buffer with it.
    fn is_tcp(&self) -> bool {
        let now = self.conn.phase();
        self.stage() == Stage::Over && now.is_frozen() && !now.is_committed() && !now.is_exposed()
    }

    fn hangs_up(&self) {
        abandon(self.conn, self.fd);
        group::release(self.conn);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        abandon(self.conn, self.fd);
        self.conn.close(self.fd);
        group::release(self.conn);
        self.conn.identity.gen_.fetch_add(1, Release);
        table::get().expect("a table").free(self.index);
        sys::close(self.fd);
    }
}

/// Server and client of a connection, whose messages pass as `way` says.
fn ends(way: impl FnMut(usize, &[u8]) -> Fate + 'static) -> (End, End) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let one =
        TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    let (other, _) = listener.accept().expect("its other end");
    begin(way);
    (End::new(one.into_raw_fd(), SERVER), End::new(other.into_raw_fd(), CLIENT))
}

fn meet_each_other(server: &End, client: &End) {
    server.meets();
    client.meets();
}

fn go_on(server: &End, client: &End) {
    for _ in 0..8 {
        server.step();
        client.step();
    }
}

/// What becomes of both, if `way` is what happens to the messages.
fn both(way: impl FnMut(usize, &[u8]) -> Fate + 'static) -> (End, End) {
    let (server, client) = ends(way);
    meet_each_other(&server, &client);
    go_on(&server, &client);
    (server, client)
}

/// Happens to one message; the others arrive.
fn only(
    which: usize,
    mut fate: impl FnMut(&[u8]) -> Fate + 'static,
) -> impl FnMut(usize, &[u8]) -> Fate {
    move |n, raw| if n == which { fate(raw) } else { Fate::Arrives }
}

const PROPOSAL: usize = 0;
const ACCEPT: usize = 1;
const CONFIRM: usize = 2;

fn encode(message: &Message) -> Vec<u8> {
    let mut out = [0; channel::MAX];
    let n = message.encode(&mut out).expect("it fits");
    out[..n].to_vec()
}

/// What is said when all goes well, between processes that do or do not know each other.
fn messages(known: bool) -> [Vec<u8>; 3] {
    let _first = anew(known);
    let heard = std::sync::Arc::new(Mutex::new(Vec::new()));
    let all = heard.clone();
    let (server, client) = both(move |_, raw| {
        all.lock().expect("no panic").push(raw.to_vec());
        Fate::Arrives
    });
    assert!(server.is_upgraded() && client.is_upgraded());
    heard.lock().expect("no panic").clone().try_into().expect("three messages")
}

#[test]
fn three_messages_upgrade_both_and_the_channel_is_closed() {
    let _serial = serial();
    let (server, client) = ends(|_, _| Fate::Arrives);
    meet_each_other(&server, &client);
    assert_eq!((server.stage(), client.stage()), (Stage::Met, Stage::Proposed));
    server.step();
    assert_eq!((server.stage(), client.stage()), (Stage::Accepted, Stage::Proposed));
    client.step();
    assert_eq!((server.stage(), client.stage()), (Stage::Accepted, Stage::Confirmed));
    assert!(!client.is_upgraded(), "the server may not have attached yet");
    server.step();
    assert!(server.is_upgraded() && has_hung_up(SERVER));
    client.step();
    assert!(client.is_upgraded() && has_hung_up(CLIENT));
    for end in [&server, &client] {
        assert_eq!((end.stage(), end.conn.upgrade.meeting()), (Stage::Over, Meeting::Nowhere));
        assert_eq!(end.reasons(), (Reason(0), Reason(0)));
    }
    assert_eq!(said(), 3);
}

/// Whoever comes first, and however often either looks in between.
#[test]
fn in_whichever_order_they_look() {
    const LOOKS: u32 = 8;
    let _serial = serial();
    for order in 0..1u32 << LOOKS {
        let (server, client) = ends(|_, _| Fate::Arrives);
        let mut ends = [(&server, false), (&client, false)];
        for look in 0..LOOKS {
            let (end, has_met) = &mut ends[(order >> look & 1) as usize];
            if core::mem::replace(has_met, true) { end.step() } else { end.meets() }
        }
        ends.iter().filter(|(_, has_met)| !has_met).for_each(|(end, _)| end.meets());
        go_on(&server, &client);
        assert!(server.is_upgraded() && client.is_upgraded(), "{order:b}");
    }
}

/// Without the message both go on waiting, on TCP in both directions; when one of them leaves, so
/// does the other.
#[test]
fn a_message_that_is_lost() {
    let _serial = serial();
    let waiting = [
        (PROPOSAL, Stage::Met, Stage::Proposed),
        (ACCEPT, Stage::Accepted, Stage::Proposed),
        (CONFIRM, Stage::Accepted, Stage::Confirmed),
    ];
    for (lost, at_server, at_client) in waiting {
        for server_leaves in [true, false] {
            let (server, client) = both(only(lost, |_| Fate::IsLost));
            assert_eq!((server.stage(), client.stage()), (at_server, at_client), "{lost}");
            assert!(!server.is_upgraded() && !client.is_upgraded(), "{lost}");
            let (leaves, stays) =
                if server_leaves { (&server, &client) } else { (&client, &server) };
            leaves.hangs_up();
            stays.step();
            assert!(stays.is_tcp(), "{lost}: {:?} {:?}", stays.stage(), stays.conn.phase());
            assert_eq!(stays.reasons(), (reason::RENDEZVOUS, Reason(0)), "{lost}");
        }
    }
}

/// Looks have gone on for so many operations and milliseconds.
fn has_waited(end: &End, ops: u32, ms: u32) {
    let at = &end.conn.upgrade;
    end.conn.ops.store(at.since_ops.load(Relaxed) + ops, Relaxed);
    at.since_ms.store(sys::coarse_ms().wrapping_sub(ms), Relaxed);
}

/// Nobody waits for ever.
#[test]
fn an_end_that_is_not_answered_gives_up() {
    let _serial = serial();
    for lost in [PROPOSAL, ACCEPT, CONFIRM] {
        let (server, client) = both(only(lost, |_| Fate::IsLost));
        for end in [&server, &client] {
            has_waited(end, GIVE_UP + 1, PATIENCE_MS + 1);
        }
        client.step();
        server.step();
        assert!(!server.is_upgraded() && !client.is_upgraded());
        assert_eq!((server.stage(), client.stage()), (Stage::Over, Stage::Over), "{lost}");
        assert_eq!(client.conn.reason(), reason::PEER_NO_SMC, "{lost}");
        assert!(has_hung_up(SERVER) && has_hung_up(CLIENT));
    }
}

/// A Proposal that comes twice is no Confirm; a second Confirm finds nobody who would listen.
#[test]
fn a_message_that_comes_twice() {
    let _serial = serial();
    let (server, client) = both(only(PROPOSAL, |_| Fate::ComesTwice));
    assert!(server.is_tcp() && client.is_tcp());
    assert_eq!(server.reasons(), (reason::CNF_ERR, Reason(0)));
    assert_eq!(client.reasons(), (reason::PEER_DECL, reason::CNF_ERR));

    let (server, client) = both(only(CONFIRM, |_| Fate::ComesTwice));
    assert!(server.is_upgraded() && client.is_upgraded());

    // The client has its answer: the second one is an answer to its Confirm, and the wrong one.
    let (server, client) = ends(only(ACCEPT, |_| Fate::ComesTwice));
    meet_each_other(&server, &client);
    server.step();
    client.step();
    client.step();
    assert!(client.is_tcp());
    assert_eq!(client.reasons(), (reason::RENDEZVOUS, Reason(0)));
}

/// Either both are upgraded or none is, and who is not says why.
fn are_of_one_mind(server: &End, client: &End, what: &str) {
    assert_eq!(
        server.is_upgraded(),
        client.is_upgraded(),
        "{what}: {:?} {:?}",
        server.reasons(),
        client.reasons()
    );
    if !server.is_upgraded() {
        assert!(
            server.is_tcp() && client.is_tcp(),
            "{what}: {:?} {:?}",
            server.stage(),
            client.stage()
        );
        for end in [server, client] {
            assert_ne!(end.conn.reason(), Reason(0), "{what}");
        }
    }
}

#[test]
fn a_message_that_is_cut_off() {
    let _serial = serial();
    for known in [false, true] {
        for (which, len) in messages(known).map(|raw| raw.len()).into_iter().enumerate() {
            for cut in 0..len {
                let _first = anew(known);
                let (server, client) =
                    both(only(which, move |raw| Fate::Becomes(raw[..cut].to_vec())));
                are_of_one_mind(&server, &client, &format!("message {which}, {cut} bytes"));
                assert!(
                    !server.is_upgraded() || which == CONFIRM,
                    "message {which} cut to {cut} bytes was taken"
                );
            }
        }
    }
}

/// Where a Confirm names the buffer: a client that lies there, and names another one of its own,
/// harms itself alone.
const TOKEN: core::ops::Range<usize> = 16..24;

#[test]
fn a_message_with_a_wrong_byte() {
    let _serial = serial();
    for known in [false, true] {
        let mut refused = 0;
        for (which, len) in messages(known).map(|raw| raw.len()).into_iter().enumerate() {
            let harmless = |at: &usize| known && which == CONFIRM && TOKEN.contains(at);
            for (at, bits) in
                (0..len).filter(|at| !harmless(at)).flat_map(|at| [(at, 0x01), (at, 0xff)])
            {
                let garble = move |raw: &[u8]| {
                    let mut raw = raw.to_vec();
                    raw[at] ^= bits;
                    Fate::Becomes(raw)
                };
                let _first = anew(known);
                let (server, client) = both(only(which, garble));
                are_of_one_mind(
                    &server,
                    &client,
                    &format!("message {which}, byte {at} ^ {bits:#x}"),
                );
                refused += u32::from(!server.is_upgraded());
            }
        }
        assert!(refused > 200, "of so many changes only {refused} were seen");
    }
}

/// An end that speaks none of our releases declines, or is declined, with the numbers of both; one
/// that speaks ours beside later ones, or only the older, is upgraded.
#[test]
fn ends_of_different_releases() {
    let _serial = serial();
    for which in [PROPOSAL, ACCEPT] {
        let of = |releases: [u8; 2]| {
            let mut raw = messages(false)[which].clone();
            let at = raw.len() - 18;
            raw[at..at + 2].copy_from_slice(&releases);
            both(only(which, move |_| Fate::Becomes(raw.clone())))
        };
        let (ours, next) = (Releases::ours(), Releases::ours().newest + 1);
        for theirs in [[ours.newest, next], [ours.oldest, ours.oldest]] {
            let (server, client) = of(theirs);
            assert!(server.is_upgraded() && client.is_upgraded(), "{which}, {theirs:?}");
        }
        let (server, client) = of([next, next + 1]);
        assert!(server.is_tcp() && client.is_tcp(), "{which}");
        let (hears, said_it) = if which == ACCEPT { (client, server) } else { (server, client) };
        let theirs = Releases { oldest: next, newest: next + 1 };
        let noted = Reason(Mismatch { ours, theirs }.word());
        assert_eq!(hears.reasons(), (reason::VERSION, noted), "{which}");
        let noted = Reason(Mismatch { ours, theirs: ours }.word());
        assert_eq!(said_it.reasons(), (reason::VERSION, noted), "{which}");
        // Numbers that are no range are no mark of ours.
        let (server, client) = of([2, 1]);
        assert!(server.is_tcp() && client.is_tcp(), "{which}");
        let hears = if which == ACCEPT { client } else { server };
        assert_eq!(hears.conn.reason(), reason::RENDEZVOUS, "{which}");
    }
}

/// One message where another is due.
#[test]
fn a_message_in_the_place_of_another() {
    let _serial = serial();
    let messages = messages(false);
    let declined = encode(&Message::Decline(Decline::new(Version::V2, reason::MEMORY)));
    for which in [PROPOSAL, ACCEPT, CONFIRM] {
        for other in [PROPOSAL, ACCEPT, CONFIRM].into_iter().filter(|other| *other != which) {
            let raw = messages[other].clone();
            let (server, client) = both(only(which, move |_| Fate::Becomes(raw.clone())));
            assert!(server.is_tcp() && client.is_tcp(), "{other} for {which}");
            let (hears, said_it) =
                if which == ACCEPT { (&client, &server) } else { (&server, &client) };
            assert_eq!(hears.conn.reason(), reason::CNF_ERR, "{other} for {which}");
            assert_eq!(
                said_it.reasons(),
                (reason::PEER_DECL, reason::CNF_ERR),
                "{other} for {which}"
            );
        }
        let raw = declined.clone();
        let (server, client) = both(only(which, move |_| Fate::Becomes(raw.clone())));
        let (hears, said_it) =
            if which == ACCEPT { (&client, &server) } else { (&server, &client) };
        assert_eq!(hears.reasons(), (reason::PEER_DECL, reason::MEMORY), "{which}");
        assert!(hears.is_tcp() && said_it.is_tcp(), "{which}");
        assert_eq!(said_it.conn.reason(), reason::RENDEZVOUS, "the channel was closed, {which}");
    }
}

/// After any number of steps either may leave, or a Decline come out of nowhere.
#[test]
fn an_end_that_leaves_or_is_declined_on_the_way() {
    let _serial = serial();
    let declined = encode(&Message::Decline(Decline::new(Version::V2, reason::MEMORY)));
    for steps in 0..6 {
        for (leaves, forged) in [(0, false), (1, false), (0, true), (1, true)] {
            let (server, client) = ends(|_, _| Fate::Arrives);
            meet_each_other(&server, &client);
            (0..steps).for_each(|n| if n % 2 == 0 { server.step() } else { client.step() });
            let was_upgraded = client.is_upgraded();
            if forged {
                forge(Side(leaves), &declined);
            } else {
                [&server, &client][leaves as usize].hangs_up();
            }
            go_on(&server, &client);
            let ends = [&server, &client];
            let stays = ends[1 - leaves as usize];
            assert_eq!(stays.stage(), Stage::Over, "after {steps}: {leaves} {forged}");
            assert!(
                stays.is_upgraded() || stays.is_tcp(),
                "after {steps}: {:?}",
                stays.conn.phase()
            );
            assert!(
                !was_upgraded || stays.is_upgraded(),
                "what stands does not fall with the channel"
            );
            if forged {
                are_of_one_mind(&server, &client, &format!("declined to {leaves} after {steps}"));
            }
        }
    }
}

#[test]
fn who_may_not_be_the_peer_is_told_so() {
    let _serial = serial();
    let (server, client) = ends(|_, _| Fate::Arrives);
    refuse(SERVER, reason::PEER_UID);
    meet_each_other(&server, &client);
    go_on(&server, &client);
    assert_eq!(server.reasons(), (reason::PEER_UID, Reason(0)));
    assert_eq!(client.reasons(), (reason::PEER_DECL, reason::PEER_UID));

    let (server, client) = ends(|_, _| Fate::Arrives);
    refuse(CLIENT, reason::PEER_UID);
    meet_each_other(&server, &client);
    go_on(&server, &client);
    assert_eq!((client.conn.reason(), said()), (reason::PEER_UID, 1), "it has proposed nothing");
    assert_eq!(server.reasons(), (reason::PEER_DECL, reason::PEER_UID));
    assert!(server.is_tcp() && client.is_tcp());
}

/// `--port-proof`, for a while.
struct AsksForPorts;

impl AsksForPorts {
    fn new() -> Self {
        CONFIG.port_proof.store(true, Relaxed);
        Self
    }
}

impl Drop for AsksForPorts {
    fn drop(&mut self) {
        CONFIG.port_proof.store(false, Relaxed);
    }
}

/// Nobody is asked for a port where that is not wanted.
#[test]
fn who_has_no_name_stays_out_unasked() {
    let _serial = serial();
    let (server, client) = ends(|_, _| Fate::Arrives);
    refuse(CLIENT, reason::NOBODY);
    meet_each_other(&server, &client);
    go_on(&server, &client);
    assert!(server.is_tcp() && client.is_tcp());
    assert_eq!(client.reasons(), (reason::NOBODY, Reason(0)));
}

/// The end that opened the connection can show its port to one that knows no users.
#[test]
fn who_has_no_name_shows_its_port() {
    let _serial = serial();
    let _asks = AsksForPorts::new();
    let meets = |why| {
        // The server of the handshake has opened the connection.
        let (server, client) = ends(|_, _| Fate::Arrives);
        refuse(CLIENT, why);
        meet_each_other(&server, &client);
        let own = |end: &End| end.conn.own().port_socket.load(Relaxed);
        // On a busy machine the kernel may take a while to refuse a call.
        let settled = |end: &End| end.is_upgraded() || end.is_tcp();
        let begun = std::time::Instant::now();
        while !(settled(&server) && settled(&client)) && begun.elapsed().as_secs() < 20 {
            go_on(&server, &client);
        }
        assert_eq!((own(&server), own(&client)), (0, 0), "nobody listens any more");
        server.is_upgraded() && client.is_upgraded()
    };
    for why in [reason::NOBODY, reason::CANNOT_ASK] {
        // Another test's socket may be at that port for a moment, and then nothing is proved.
        assert!((0..5).any(|_| meets(why)), "{why}");
    }
}

/// Nobody can show a port that others may share: its connection's socket lets everybody listen
/// there, or somebody does.
#[test]
fn a_port_that_others_may_share_proves_nothing() {
    let _serial = serial();
    let _asks = AsksForPorts::new();
    // The client of the handshake has the socket of a listener that said SO_REUSEADDR.
    let (server, client) = ends(|_, _| Fate::Arrives);
    refuse(SERVER, reason::NOBODY);
    meet_each_other(&server, &client);
    // On a busy machine the kernel may take a while to refuse a call.
    let begun = std::time::Instant::now();
    while !(server.is_tcp() && client.is_tcp()) && begun.elapsed().as_secs() < 60 {
        go_on(&server, &client);
    }
    assert_eq!(server.reasons(), (reason::NOBODY, Reason(0)));
    assert_eq!(client.reasons(), (reason::PEER_DECL, reason::NOBODY));
}

/// Who was not met under the connection's name, but says that it is the peer, has no port to show.
#[test]
fn a_port_that_is_not_shown_in_time() {
    let _serial = serial();
    let _asks = AsksForPorts::new();
    let asked = |_, raw: &[u8]| match crate::proof::Said::decode(raw) {
        Some(_) => Fate::IsLost,
        None => Fate::Arrives,
    };
    let (server, client) = ends(asked);
    refuse(CLIENT, reason::NOBODY);
    meet_each_other(&server, &client);
    for _ in 0..40 {
        client.step();
    }
    assert_eq!(client.stage(), Stage::Meeting, "it has four seconds");
    client.conn.upgrade.since_ms.store(sys::coarse_ms().wrapping_sub(5000), Relaxed);
    for _ in 0..40 {
        client.step();
    }
    assert_eq!(client.reasons(), (reason::NOBODY, Reason(0)));
    server.step();
    assert_eq!(server.reasons(), (reason::PEER_DECL, reason::NOBODY));
}

/// A client whose channel leads nowhere looks where the channel says, and only before it has
/// confirmed.
#[test]
fn a_client_that_is_not_answered_looks_elsewhere() {
    let _serial = serial();
    for before_it_proposes in [true, false] {
        let (server, client) = ends(only(PROPOSAL, |_| Fate::IsLost));
        look_instead(Seeking::Name(Name::Calls));
        server.meets();
        if before_it_proposes {
            server.hangs_up();
            client.meets();
        } else {
            client.meets();
            server.hangs_up();
            client.step();
        }
        assert_eq!(client.conn.upgrade.meeting(), Meeting::Seeking(Seeking::Name(Name::Calls)));
        assert_eq!((client.stage(), has_hung_up(CLIENT)), (Stage::Meeting, true));
    }
    let (server, client) = both(only(CONFIRM, |_| Fate::IsLost));
    look_instead(Seeking::Name(Name::Calls));
    server.hangs_up();
    client.step();
    assert!(client.is_tcp());
    assert_eq!(client.conn.reason(), reason::RENDEZVOUS);
}

#[test]
fn sockets_that_are_not_tcps_say_what_they_are() {
    let of = |proto| of_another_protocol(proto).map(Reason::name);
    assert_eq!(
        [6, 262, 0, 1, 256].map(of),
        [None, Some("MPTCP"), Some("KERNEL_SMC"), Some("KERNEL_SMC"), Some("KERNEL_SMC")]
    );
}
