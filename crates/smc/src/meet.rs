//! The upgrade: how the two ends of a TCP connection find each other and agree on memory.
//!
//! Driven by the application's own calls, one step at a time, never waiting. First they look for each other (`rendezvous.rs`),
//! which comes to a channel and to roles; then the client proposes and the server chooses (`client.rs`, `server.rs`). Whatever
//! fails leaves the connection on TCP with a reason.

mod broker;
mod client;
mod directory;
mod lane;
mod mark;
mod name;
mod prove;
mod rendezvous;
mod server;
#[cfg(test)]
mod tests;

use mark::is_same_stream;
use rendezvous::{Channel, Found};

pub use prove::{Stake, stake};

use core::sync::atomic::Ordering::*;

use dibs::Told;

use crate::channel::{self, Cred, NoSocket, Silence};
use crate::clc::negotiate::{self, Local, Proposed, RELEASE, Selection};
use crate::clc::{
    self, Accept, Decline, Devices, Eid, FirstContact, Gid, Hostname, Message, Os, Proposal, SizeCode, SmcD, SmcDLevel,
    SmcDv2, Version,
};
use crate::config::{self, CONFIG, PeerPolicy};
use crate::conn::upgrade::{Meeting, Met, Seeking, Stage};
use crate::conn::{Conn, Ends, phase as p};
use crate::device;
use crate::group::{self, NoGroup, Role, Terms, lanes};
use crate::inet::{self, TcpInfo};
use crate::kind::Kind;
use crate::reason::{self, Reason};
use crate::trace::{self, Way};
use crate::{hidden, sys, table, witness};

/// Operations after which an end stops waiting for its peer.
const GIVE_UP: u32 = 1 << 16;
/// Operations after which an end stops waiting in a rendezvous directory: most connections that leave the network namespace also
/// leave the machine.
const GIVE_UP_FAR: u32 = 1 << 12;
/// Looks at every operation before the distance between looks doubles.
const EAGER: u32 = 8;

/// What a step came to.
enum Next {
    /// Look again later.
    Later,
    /// Go on at once.
    On,
    /// Stay with TCP.
    Tcp(Reason),
}

/// Takes the upgrade of `conn` as far as it goes now. True when a direction may have switched. `shared`: whether other
/// processes hold the connection too. What is mapped for it then is mapped here only, and a fork child that takes the connection
/// back to TCP, for its exec, would tell nobody.
#[cold]
pub fn step(conn: &Conn, fd: i32, shared: impl Fn() -> bool) -> bool {
    if conn.phase().has(p::FROZEN | p::CLOSED) {
        conn.next_try.store(u32::MAX, Relaxed);
        return false;
    }
    if conn.is_committed() {
        return conn.try_switch_tx(fd);
    }
    // A signal handler or another thread may be at it already.
    if !conn.hold_upgrade() {
        return false;
    }
    // SYNC: fork. Behind the hold; pairs with `await_step`.
    core::sync::atomic::fence(SeqCst);
    let shared = shared();
    let before = conn.phase();
    identify(conn, fd);
    loop {
        let stage = conn.upgrade.stage();
        // What is mapped from here on would not be in the other process, which would read our doorbells as payload, or
        // send into nothing. A client that has confirmed has both buffers, and so has whoever it forked since.
        let next = if shared && !matches!(stage, Stage::Confirmed | Stage::Over) {
            Next::Tcp(reason::SHARED_FD)
        } else {
            advance(conn, fd, stage)
        };
        match next {
            Next::On => {}
            Next::Later => {
                schedule(conn);
                break;
            }
            // Shared only for the moment, perhaps: the other holder of a forked socket usually closes it soon.
            Next::Tcp(r) if r == reason::SHARED_FD && conn.ops.load(Relaxed) < GIVE_UP => {
                conn.set_reason(r);
                schedule(conn);
                break;
            }
            Next::Tcp(r) => {
                stay_tcp(conn, r);
                break;
            }
        }
    }
    rendezvous::rest(conn, fd);
    conn.release_upgrade();
    if conn.is_committed() {
        conn.try_switch_tx(fd);
    }
    conn.phase() != before
}

/// One step, by whichever way the ends meet.
fn advance(conn: &Conn, fd: i32, stage: Stage) -> Next {
    match (stage, conn.upgrade.meeting()) {
        (Stage::Meeting, Meeting::Nowhere) => start(conn, fd),
        (Stage::Meeting, Meeting::Seeking(at)) => {
            let found = at.look(conn, fd);
            found_peer(conn, fd, found)
        }
        (Stage::Met, Meeting::Met(ch)) => few(conn, || server::serve(conn, fd, ch)),
        (Stage::Accepted, Meeting::Met(ch)) => server::confirmed(conn, ch),
        (Stage::Proposed, Meeting::Met(ch)) => few(conn, || client::answered(conn, fd, ch)),
        (Stage::Confirmed, _) => client::committed(conn),
        _ => Next::Later,
    }
}

/// What comes of a look for the other end.
fn found_peer(conn: &Conn, fd: i32, found: Found) -> Next {
    match (found, conn.upgrade.meeting()) {
        (Found::Peer(Role::Client), Meeting::Met(ch)) => client::propose(conn, fd, ch),
        (Found::Peer(Role::Server), _) => {
            conn.upgrade.reach(Stage::Met);
            Next::On
        }
        (Found::Again, _) => Next::On,
        (Found::Never(why), _) => Next::Tcp(why),
        _ => Next::Later,
    }
}

/// A step that may expose our buffer: put off while several threads are inside kernel receives.
fn few(conn: &Conn, step: impl FnOnce() -> Next) -> Next {
    conn.while_few_receive(step).unwrap_or(Next::Later)
}

fn schedule(conn: &Conn) {
    let stage = conn.upgrade.stage();
    if stage == Stage::Over {
        conn.next_try.store(u32::MAX, Relaxed);
        return;
    }
    let ops = conn.ops.load(Relaxed);
    let looks = conn.upgrade.looks.fetch_add(1, Relaxed);
    let (gap, why) = if stage == Stage::Meeting {
        seeking(conn, ops, looks)
    } else {
        (rendezvous::often(ops, looks), (ops > GIVE_UP).then_some(reason::PEER_NO_SMC))
    };
    match why {
        Some(why) => stay_tcp(conn, why),
        None => conn.next_try.store(ops.saturating_add(gap), Relaxed),
    }
}

/// While the ends look for each other: operations until the next look, and why there is none, if so.
fn seeking(conn: &Conn, ops: u32, looks: u32) -> (u32, Option<Reason>) {
    let (at, why) = (rendezvous::of(conn), conn.reason());
    let has_begun = conn.upgrade.meeting() != Meeting::Nowhere;
    let is_unsaid = !matches!(why, reason::NO_BROKER | reason::BROKER);
    let tired = at.tires(conn, ops);
    if tired.is_none() && looks >= EAGER && has_begun && at.is_alone() && is_unsaid {
        // For whoever looks meanwhile; the peer may still come.
        conn.set_reason(reason::PEER_NO_SMC);
    }
    // Whoever shares it usually closes it soon, and looking costs nothing.
    let gap = if !has_begun && why == reason::SHARED_FD { 4 } else { at.gap(ops, looks) };
    (gap, tired)
}

fn stay_tcp(conn: &Conn, why: Reason) {
    rendezvous::close(conn);
    witness::end(conn);
    conn.upgrade.end();
    conn.set_reason(why);
    conn.next_try.store(u32::MAX, Relaxed);
    if !conn.is_exposed() {
        conn.set(p::FROZEN);
    }
}

/// The connection is given away or frozen, or closed, and then `fd` may be none: no further steps.
pub fn abandon(conn: &Conn, fd: i32) {
    conclude(conn);
    rendezvous::close(conn);
    rendezvous::rest(conn, fd);
    witness::end(conn);
}

/// No further steps of a connection that goes back to TCP or ends; its channel is left as it is.
pub fn conclude(conn: &Conn) {
    let at = conn.upgrade.end();
    conn.next_try.store(u32::MAX, Relaxed);
    if at == Stage::Confirmed && conn.peer_attached() {
        // The server may write to our buffer by now, and must learn how we end.
        group::established(conn);
        conn.commit();
    } else if matches!(at, Stage::Accepted | Stage::Confirmed) {
        group::failed(conn.group.load(Relaxed), false);
    }
}

/// Notes whose connection it is, for `ss`.
pub fn identify(conn: &Conn, fd: i32) {
    if conn.inode.load(Relaxed) != 0 {
        return;
    }
    let (inode, owner) = sys::socket_of(fd).unwrap_or_default();
    conn.uid.store(owner, Relaxed);
    conn.inode.store(inode, Relaxed);
    if let Some(names) = inet::names(fd) {
        conn.set_names(names);
    }
}

/// Checks eligibility and begins to look for the other end.
fn start(conn: &Conn, fd: i32) -> Next {
    conn.upgrade.era.store(lanes::era(), Relaxed);
    if CONFIG.policy() == PeerPolicy::Off {
        return Next::Tcp(reason::OFF);
    }
    if !conn.can_map() {
        return Next::Tcp(reason::MEMORY);
    }
    Kind::ALL.into_iter().filter(|&kind| table::is_removed(kind)).for_each(group::withdraw);
    if conn.pid.load(Relaxed) != sys::getpid() {
        // The slot was made before a fork and we are the sole holder now.
        conn.pid.store(sys::getpid(), Relaxed);
    }
    let mut proto = 0i32;
    sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut proto);
    if proto != libc::IPPROTO_TCP {
        return Next::Tcp(reason::MPTCP);
    }
    let names = conn.names();
    // Whoever has a peer is connected, and on one machine the handshake itself looks whether still in both directions.
    let asked_later = names[1].family != 0 && inet::is_local(&names);
    if !asked_later && !TcpInfo::of(fd).is_some_and(|i| i.established()) {
        return Next::Later;
    }
    if names[1].family == 0 {
        return Next::Tcp(reason::NOT_LOCAL);
    }
    if inet::is_local(&names) {
        witness::end(conn);
    } else if !witness::watches(conn) && !device::bar_is_for_others() {
        return Next::Tcp(reason::NOT_LOCAL);
    }
    let option = |level, name| {
        let mut value = 0i32;
        (sys::getsockopt(fd, level, name, &mut value) > 0).then_some(value)
    };
    let tcp = libc::IPPROTO_TCP;
    // What the kernel does not tell cannot be kept to.
    let (Some(inline), Some(low), Some(nodelay), Some(cork)) = (
        option(libc::SOL_SOCKET, libc::SO_OOBINLINE),
        option(libc::SOL_SOCKET, libc::SO_RCVLOWAT),
        option(tcp, libc::TCP_NODELAY),
        option(tcp, libc::TCP_CORK),
    ) else {
        return Next::Tcp(reason::SYSTEM);
    };
    if inline != 0 {
        return Next::Tcp(reason::URGENT);
    }
    if low > 1 && conn.user_rcvlowat.load(Relaxed) <= 1 && conn.rx.kernel.count() > 0 {
        // A mark inherited from the listener. The receive keeps to it, and would sleep over our doorbells.
        return Next::Later;
    }
    let _ = conn.user_rcvlowat.compare_exchange(0, low.max(1) as u32, SeqCst, SeqCst);
    conn.found_nodelay(nodelay != 0, cork != 0);
    let found = rendezvous::begin(conn, fd);
    found_peer(conn, fd, found)
}

/// The device that the process behind the channel says it is: anybody's but ours, unless it is this process.
fn device(kind: Kind, gid: Gid, of: Cred) -> Result<Gid, Reason> {
    if gid == kind.gid() && of.pid as u32 != sys::getpid() || !kind.may_be(gid) {
        return Err(reason::VIOLATION);
    }
    if kind.is_beside(gid) { Ok(gid) } else { Err(reason::NO_SMCD2_DEV) }
}

/// The upgrade is given up, and the peer has not begun to use our buffer.
fn retract(conn: &Conn, why: Reason) -> Next {
    retract_and(conn, why, group::release)
}

/// The upgrade is given up behind a Confirm, which says that the peer has attached our buffer.
fn retract_confirmed(conn: &Conn, why: Reason) -> Next {
    retract_and(conn, why, group::release_confirmed)
}

fn retract_and(conn: &Conn, why: Reason, release: fn(&Conn)) -> Next {
    conn.withdraw();
    group::failed(conn.group.load(Relaxed), why == reason::SYNC_ERR);
    release(conn);
    Next::Tcp(why)
}

fn upgraded(conn: &Conn, client: bool) {
    rendezvous::close(conn);
    witness::end(conn);
    conn.upgrade.end();
    conn.reason.store(0, Relaxed);
    // One more look soon: the switch of our sends may have to wait for a thread inside the kernel.
    conn.next_try.store(conn.ops.load(Relaxed).saturating_add(1), Relaxed);
    if let Some(t) = table::get() {
        if client { &t.stats.client } else { &t.stats.server }.fetch_add(1, Relaxed);
    }
}

fn say(conn: &Conn, ch: Met, message: &[u8], pass: Option<i32>) -> bool {
    trace::note(conn, Way::Sent, message);
    ch.say(conn, message, pass)
}

fn hear(conn: &Conn, ch: Met, buffer: &mut [u8; channel::MAX]) -> Result<(usize, Option<i32>), Silence> {
    let got = ch.hear(conn, buffer)?;
    trace::note(conn, Way::Received, &buffer[..got.0]);
    Ok(got)
}

/// Takes a message that was looked at already, and whatever came with it.
fn consume(conn: &Conn, ch: Met) {
    if let Ok((_, Some(uninvited))) = hear(conn, ch, &mut [0; channel::MAX]) {
        sys::close(uninvited);
    }
}

fn decline(conn: &Conn, ch: Met, why: Reason) -> Next {
    decline_in(Version::V2, conn, ch, why)
}

/// Declines in the peer's version.
fn decline_in(version: Version, conn: &Conn, ch: Met, why: Reason) -> Next {
    let mut out = [0u8; channel::MAX];
    // What we hang up on unread would reach the peer as a reset, ahead of our answer.
    consume(conn, ch);
    if let Ok(n) = Message::Decline(Decline::new(version, why)).encode(&mut out) {
        let _ = say(conn, ch, &out[..n], None);
    }
    if let Some(t) = table::get() {
        t.stats.handshake_errors.fetch_add(1, Relaxed);
    }
    Next::Tcp(why)
}

/// Exposes our buffer. What the kernel says of the connection then, if `raw`, which the peer said, is of the same; otherwise
/// what is exposed is to be retracted.
fn expose(conn: &Conn, fd: i32, raw: &[u8], kind: Kind, dmb: &dibs::Dmb) -> Result<TcpInfo, Reason> {
    conn.expose(&Ends {
        my: dmb.addr.cast(),
        my_len: dmb.len,
        my_token: dmb.token,
        my_waits: group::own_page(kind, dmb.token),
        bells: group::bells::of(conn.group.load(Relaxed), dmb.token),
        kind,
    });
    let info = conn.begin_count(fd).filter(|info| is_same_stream(raw, info)).ok_or(reason::RENDEZVOUS)?;
    conn.keep_waking(fd);
    conn.keep_bounds(fd);
    Ok(info)
}

/// Our half of an Accept or Confirm; `first` has the release to be spoken, at first contact.
fn ends_message(id: u32, kind: Kind, dmb: &dibs::Dmb, eid: Option<Eid>, first: Option<u8>) -> Accept {
    Accept::SmcD(SmcD {
        gid: kind.gid(),
        token: dmb.token,
        index: 0,
        size: SizeCode::compress(u64::from(dmb.len), SizeCode::MAX),
        link_id: (id << 8).to_ne_bytes(),
        level: SmcDLevel::V2(SmcDv2 {
            chid: kind.chid(),
            eid,
            first_contact: first.map(|release| FirstContact {
                os: Os::LINUX,
                release,
                hostname: hostname(),
                features: clc::FEATURE_EMULATED_ISM,
                vendor: if group::wants_integrity(kind) { FirstContact::INTEGRITY } else { [0; 4] },
                ..FirstContact::default()
            }),
        }),
    })
}

fn hostname() -> Hostname {
    let name = rustix::system::uname();
    Hostname::new(name.nodename().to_str().unwrap_or(""))
}
