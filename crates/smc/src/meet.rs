//! The upgrade: how the two ends of a TCP connection find each other and agree on memory.
//!
//! Driven by the application's own calls, each of which takes the steps that can be taken and never
//! waits. First they look for each other (`rendezvous.rs`), which comes to a channel and to roles; then the client proposes
//! and the server chooses (`client.rs`, `server.rs`). Whatever fails leaves the connection on TCP
//! with a reason.

mod broker;
mod client;
mod directory;
pub mod inherited;
mod lane;
mod mark;
mod messages;
mod name;
mod offer;
mod pace;
mod port;
mod prove;
mod rendezvous;
mod server;
#[cfg(test)]
mod tests;

use mark::is_same_stream;
use messages::{
    consume, decline, decline_in, declined, ends_message, hear, say, say_ours, speaks_ours,
};
use offer::{is_early, learn, look_early};
use pace::{EAGER, GIVE_UP, GIVE_UP_FAR, schedule};
use rendezvous::{Channel, Found};

pub use crate::group::lanes::{are_in_use as may_offer, is_worth_an_offer};
pub use offer::{first_look, is_in_vain, offer};
pub use pace::is_due;
pub use prove::{Stake, stake};

use core::sync::atomic::Ordering::*;

use dibs::{Lent, Told};

use crate::channel::{self, Cred, NoSocket, Silence};
use crate::clc::negotiate::{self, Candidates, Local, Proposed, RELEASE, Selection};
use crate::clc::{
    self, Accept, Decline, Devices, Eid, FirstContact, Gid, Hostname, Message, Os, Proposal,
    SizeCode, SmcD, SmcDLevel, SmcDv2, Version,
};
use crate::config::{self, CONFIG, PeerPolicy};
use crate::conn::upgrade::{Lane, Meeting, Met, NOT, Seeking, Stage};
use crate::conn::{Conn, Ends, phase as p};
use crate::device;
use crate::group::{self, NoGroup, Role, Terms, lanes};
use crate::inet::{self, Addr, TcpInfo};
use crate::kind::Kind;
use crate::reason::{self, Reason};
use crate::release::{Mismatch, Releases};
use crate::trace::{self, Way};
use crate::{hidden, policy, sys, table, user, witness};

/// What a step came to.
#[derive(Clone, Copy)]
enum Next {
    /// Look again later.
    Later,
    /// Go on at once.
    On,
    /// Stay with TCP.
    Tcp(Reason),
}

/// Takes the upgrade of `conn` as far as it goes now. True when a direction may have switched.
/// `shared`: whether other processes hold the connection too. What is mapped for it then is mapped
/// here only, and a fork child that takes the connection back to TCP, for its exec, would tell
/// nobody.
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
    // Behind the hold: a fork that began before is seen here, and one that begins now waits.
    let shared = shared();
    let before = conn.phase();
    identify(conn, fd);
    loop {
        let stage = conn.upgrade.stage();
        // What is mapped from here on would not be in the other process, which would read our
        // doorbells as payload, or send into nothing. A client that has confirmed has both buffers,
        // and so has whoever it forked since.
        let next = if shared && !matches!(stage, Stage::Confirmed | Stage::Over) {
            Next::Tcp(reason::SHARED_FD)
        } else {
            advance(conn, fd, stage)
        };
        match next {
            Next::On => {}
            Next::Later => {
                if is_early(conn) && conn.upgrade.is_unbegun() {
                    look_early(conn)
                } else {
                    schedule(conn)
                }
                break;
            }
            // Shared only for the moment, perhaps: the other holder of a forked socket usually
            // closes it soon.
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

/// One step, by whichever way the ends meet. Each stage is a function of its own also in the compiled
/// code: one frame with the messages of all of them leaves no room on a thread's smallest stack.
fn advance(conn: &Conn, fd: i32, stage: Stage) -> Next {
    match (stage, conn.upgrade.meeting()) {
        (Stage::Meeting, Meeting::Nowhere) => start(conn, fd),
        (Stage::Meeting, Meeting::Seeking(at)) => {
            let found = at.look(conn, fd);
            found_peer(conn, fd, found)
        }
        (Stage::Meeting, Meeting::Met(ch)) => client::propose(conn, fd, ch),
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
        (Found::Answer, _) => {
            conn.upgrade.reach(Stage::Proposed);
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

fn stay_tcp(conn: &Conn, why: Reason) {
    rendezvous::close(conn);
    witness::end(conn);
    if conn.upgrade.end() == Stage::Accepted {
        // Left in first contact, its group would keep all others between these two processes waiting.
        group::failed(conn.link_group(), false);
    }
    conn.set_reason(why);
    conn.next_try.store(u32::MAX, Relaxed);
    if !conn.is_exposed() {
        conn.set(p::FROZEN);
    }
    conn.tell(why);
}

/// The connection is given away or frozen, or closed, and then `fd` may be none: no further steps.
pub fn abandon(conn: &Conn, fd: i32) {
    // A step of another thread would go on in a channel that is closed, and attach what its peer
    // takes for free.
    conn.await_step();
    learn(conn);
    last_step(conn);
    conclude(conn);
    rendezvous::close(conn);
    rendezvous::rest(conn, fd);
    witness::end(conn);
}

/// Server: before a connection is given up. A client that has confirmed hears of the end as of that
/// of any that is upgraded, and gets its buffer back.
fn last_step(conn: &Conn) {
    // What is attached now is mapped here alone.
    let is_own = || {
        conn.identity.pid.load(Relaxed) == sys::getpid() && conn.identity.refs.load(Acquire) <= 1
    };
    if let Meeting::Met(ch) = conn.upgrade.meeting()
        && conn.upgrade.stage() == Stage::Accepted
        && is_own()
        && !shm::lock::on_signal_stack()
        && conn.hold_upgrade()
    {
        let _ = server::confirmed(conn, ch);
        conn.release_upgrade();
    }
}

/// connect(AF_UNSPEC) dissolves a connection whose upgrade has begun, and the next one on the
/// descriptor is another. False if it has come too far to begin anew.
pub fn dissolve(conn: &Conn, fd: i32) -> bool {
    conn.await_step();
    if conn.is_exposed() || conn.is_committed() || !conn.hold_upgrade() {
        return false;
    }
    rendezvous::close(conn);
    rendezvous::rest(conn, fd);
    conn.upgrade.offered.store(NOT, Relaxed);
    conn.upgrade.reach(Stage::Meeting);
    // Whose it is is asked anew.
    conn.own().inode.store(0, Relaxed);
    conn.identity.inode.store(0, Relaxed);
    conn.identity.set_names(Default::default());
    conn.own().decided.store(0, Relaxed);
    if !conn.is_frozen() {
        pace::soon(conn);
    }
    conn.release_upgrade();
    true
}

/// This process holds the connection no more, and others go on with it: what it has to meet by is
/// closed, and they begin anew.
pub fn leave(conn: &Conn) {
    if !conn.is_exposed() && conn.own().meeting.load(Relaxed) != 0 && conn.hold_upgrade() {
        rendezvous::close(conn);
        conn.upgrade.reach(Stage::Meeting);
        conn.release_upgrade();
    }
}

/// No further steps of a connection that goes back to TCP or ends; its channel is left as it is.
pub fn conclude(conn: &Conn) {
    let at = conn.upgrade.end();
    conn.next_try.store(u32::MAX, Relaxed);
    let may_attach = at == Stage::Confirmed && (conn.peer_attached() || server_may_attach(conn));
    match at {
        // Asked once more: a server that has attached hangs up, and it may have done both meanwhile.
        Stage::Confirmed if conn.peer_attached() => {
            // The server may write to our buffer by now, and must learn how we end.
            group::established(conn);
            conn.commit();
        }
        Stage::Confirmed if may_attach => group::confirmed(conn),
        Stage::Confirmed | Stage::Accepted => group::failed(conn.link_group(), false),
        _ => {}
    }
}

/// Client, behind its Confirm: whether the server may come to attach our buffer when this connection is
/// over. Kept for one that has declined or is gone, the group would hold its memory for nothing, and offer
/// connections to nobody.
#[cold]
fn server_may_attach(conn: &Conn) -> bool {
    let kind = group::peer_of(conn.link_group()).map(|(_, kind, _)| kind);
    if kind == Some(Kind::Verbs) {
        // It declines when it finds that we have hung up, and a link kept here would be held for nothing.
        return false;
    }
    // What keeps us from looking says nothing of the server.
    let Meeting::Met(ch) = conn.upgrade.meeting() else { return true };
    !matches!(ch.peek(conn, &mut [0; channel::MAX]), Ok(_) | Err(Silence::HungUp))
}

/// Notes inode, owner and addresses. Eligibility, roles and the name are made of these addresses;
/// `ss` shows them.
pub fn identify(conn: &Conn, fd: i32) {
    if conn.own().inode.load(Relaxed) == 0 {
        identify_as(conn, fd, inet::names(fd));
    }
}

fn identify_as(conn: &Conn, fd: i32, names: Option<[Addr; 2]>) {
    let (inode, owner) = sys::socket_of(fd).unwrap_or_default();
    conn.identity.uid.store(owner, Relaxed);
    conn.own().inode.store(inode, Relaxed);
    conn.identity.inode.store(inode, Relaxed);
    if let Some(names) = names {
        conn.identity.set_names(names);
    }
}

/// Begins to look for the other end, if the connection may be upgraded.
#[inline(never)]
fn start(conn: &Conn, fd: i32) -> Next {
    let is_offered = is_early(conn);
    if is_offered && !rendezvous::finds_offer(conn) {
        return Next::Later;
    }
    if let Some(not) = eligible(conn, fd) {
        if is_offered {
            rendezvous::close(conn);
        }
        return not;
    }
    let found = if is_offered { Found::Peer(Role::Server) } else { rendezvous::begin(conn, fd) };
    found_peer(conn, fd, found)
}

/// Why a socket that was made as TCP's is none: what was loaded behind us (mptcpize, smc_run) has
/// made another one of it. The kernel's SMC calls its protocol 0 or 1, where it is a family of its own,
/// and 256.
fn of_another_protocol(proto: i32) -> Option<Reason> {
    match proto {
        libc::IPPROTO_TCP => None,
        libc::IPPROTO_MPTCP => Some(reason::MPTCP),
        _ => Some(reason::KERNEL_SMC),
    }
}

/// Why the connection is not to be upgraded, or not yet.
fn eligible(conn: &Conn, fd: i32) -> Option<Next> {
    conn.upgrade.era.store(lanes::era(), Relaxed);
    if CONFIG.policy() == PeerPolicy::Off {
        return Some(Next::Tcp(reason::OFF));
    }
    if table::is_off() {
        return Some(Next::Tcp(reason::SWITCHED_OFF));
    }
    if !conn.can_map() {
        return Some(Next::Tcp(reason::MEMORY));
    }
    Kind::ALL.into_iter().filter(|&kind| table::is_removed(kind)).for_each(group::withdraw);
    if conn.identity.pid.load(Relaxed) != sys::getpid() {
        // The slot was made before a fork and we are the sole holder now.
        conn.identity.pid.store(sys::getpid(), Relaxed);
    }
    let mut proto = 0i32;
    sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut proto);
    if let Some(why) = of_another_protocol(proto) {
        return Some(Next::Tcp(why));
    }
    let names = conn.identity.names();
    // Whoever has a peer is connected, and on one machine the handshake itself looks whether still
    // in both directions.
    let asked_later = names[1].family != 0 && inet::is_local(&names);
    if !asked_later && !TcpInfo::of(fd).is_some_and(|i| i.established()) {
        return Some(Next::Later);
    }
    if names[1].family == 0 {
        return Some(Next::Tcp(reason::NOT_LOCAL));
    }
    match policy::decide(&conn.own().decided, &names, || inet::opened(fd)) {
        None => return Some(Next::Later),
        Some(PeerPolicy::Off) => return Some(Next::Tcp(reason::RULE)),
        // Of who shares a bar nobody knows the user.
        Some(PeerPolicy::SameUid) if !inet::is_local(&names) && !witness::watches(conn) => {
            return Some(Next::Tcp(reason::NOT_LOCAL));
        }
        Some(_) => {}
    }
    if inet::is_local(&names) {
        if inet::is_redirected(fd, &names) {
            return Some(Next::Tcp(reason::NOT_LOCAL));
        }
        witness::end(conn);
    } else if !witness::watches(conn) && !device::bar_is_for_others() {
        return Some(Next::Tcp(reason::NOT_LOCAL));
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
        return Some(Next::Tcp(reason::SYSTEM));
    };
    if inline != 0 {
        return Some(Next::Tcp(reason::URGENT));
    }
    if inherited::look(conn, fd) {
        return Some(Next::Tcp(reason::SOCK_OPT));
    }
    // Set where nobody saw it, by another process that has the socket or before an exec.
    if sys::fcntl(fd, libc::F_GETFL, 0) & libc::O_ASYNC as isize != 0 {
        return Some(Next::Tcp(reason::ASYNC_IO));
    }
    if low > 1 && conn.identity.user_rcvlowat.load(Relaxed) <= 1 && conn.rx.kernel.count() > 0 {
        // A mark inherited from the listener. The receive keeps to it, and would sleep over our
        // doorbells.
        return Some(Next::Later);
    }
    let _ = conn.identity.user_rcvlowat.compare_exchange(0, low.max(1) as u32, SeqCst, SeqCst);
    conn.found_nodelay(nodelay != 0, cork != 0);
    None
}

/// The device that the process behind the channel says it is: anybody's but ours, unless it is this
/// process.
fn device(kind: Kind, gid: Gid, of: Cred) -> Result<Gid, Reason> {
    let is_own = kind.generation_of(gid).is_some();
    if is_own && of.pid as u32 != sys::getpid() || !kind.may_be(gid) {
        return Err(reason::VIOLATION);
    }
    // The device knows itself by one.
    let gid = if is_own { kind.device().gid() } else { gid };
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
    group::failed(conn.link_group(), why == reason::SYNC_ERR);
    release(conn);
    Next::Tcp(why)
}

fn upgraded(conn: &Conn, client: bool) {
    rendezvous::close(conn);
    witness::end(conn);
    conn.upgrade.end();
    conn.identity.reason.store(0, Relaxed);
    // One more look: the switch of our sends may have to wait for a thread inside the kernel.
    pace::soon(conn);
    if let Some(t) = table::get() {
        if client { &t.stats.client } else { &t.stats.server }.fetch_add(1, Relaxed);
    }
}

/// Exposes our buffer. What the kernel says of the connection then, if `raw`, which the peer said,
/// is of the same; otherwise what is exposed is to be retracted.
fn expose(
    conn: &Conn,
    fd: i32,
    raw: &[u8],
    kind: Kind,
    dmb: &dibs::Dmb,
) -> Result<TcpInfo, Reason> {
    conn.expose(&Ends {
        my: dmb.addr.cast(),
        my_len: dmb.len,
        my_token: dmb.token,
        my_waits: group::own_page(kind, dmb.token),
        bells: group::bells::of(conn.link_group(), dmb.token),
        kind,
    });
    let info =
        conn.begin_count(fd).filter(|info| is_same_stream(raw, info)).ok_or(reason::RENDEZVOUS)?;
    conn.keep_waking(fd);
    conn.keep_bounds(fd);
    Ok(info)
}
