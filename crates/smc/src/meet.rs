//! The upgrade: how the two ends of a TCP connection find each other and agree on memory.
//!
//! Driven by the application's own calls, one step at a time, never waiting. The end with the lower address listens
//! under the connection's rendezvous name and is the CLC server; the other connects and proposes. Whatever fails leaves
//! the connection on TCP with a reason.

mod client;
mod mark;
mod prove;
mod remote;
mod server;

use mark::is_same_stream;
pub(crate) use prove::Proof;
pub use prove::{Stake, stake};

use core::sync::atomic::Ordering::*;

use dibs::Told;

use crate::channel::{self, Cred};
use crate::clc::negotiate::{self, Local, Proposed, RELEASE, Selection};
use crate::clc::{
    self, Accept, Decline, Devices, Eid, FirstContact, Gid, Hostname, Message, Os, Proposal, SizeCode, SmcD, SmcDLevel,
    SmcDv2, Version,
};
use crate::config::{self, CONFIG, PeerPolicy};
use crate::conn::{Conn, Ends, phase as p};
use crate::device;
use crate::group::{self, NoGroup, Terms, lanes};
use crate::inet::{self, TcpInfo};
use crate::kind::Kind;
use crate::reason::{self, Reason};
use crate::trace::{self, Way};
use crate::{hidden, sys, table, witness};

/// Where a connection's upgrade stands.
mod stage {
    pub const START: u32 = 0;
    pub const LISTENING: u32 = 1;
    pub const MET: u32 = 2;
    pub const ACCEPTED: u32 = 3;
    pub const CALLING: u32 = 4;
    pub const PROPOSED: u32 = 5;
    pub const OVER: u32 = 6;
    pub const CONFIRMED: u32 = 7;
    /// In a rendezvous directory: somebody is there, who may be the other end.
    pub const PROVING: u32 = 8;
    /// Between guests, the end that calls: the broker's answer to the call, to our name, and to our proof is awaited.
    pub const DIALLING: u32 = 9;
    pub const ASKING: u32 = 10;
    pub const HANDING: u32 = 11;
    /// The other end: what its broker hands over is awaited.
    pub const HANDED: u32 = 12;
    /// The end that listens: invitations are out to the processes that there are link groups with.
    pub const INVITED: u32 = 13;
}

/// A step never waits; the thread that takes it may be put off.
const LONGEST_STEP_NS: u64 = 500_000_000;
/// Operations after which an end stops waiting for its peer.
const GIVE_UP: u32 = 1 << 16;
/// Operations after which an end stops waiting in a rendezvous directory: most connections that leave the network namespace also
/// leave the machine.
const GIVE_UP_FAR: u32 = 1 << 12;
/// Looks for an invitation, or for an answer to one, before a connection's name is used.
const WHILE_INVITED: u32 = 4;
/// In `meeting`: several lanes, or none.
const ALL_LANES: i32 = i32::MIN;
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
    let mut buffer = [0u8; channel::MAX];
    loop {
        let next = match conn.stage.load(Relaxed) {
            // What is mapped from here on would not be in the other process, which would read our doorbells as payload, or
            // send into nothing. A client that has confirmed has both buffers, and so has whoever it forked since.
            at if shared && at != stage::CONFIRMED && at != stage::OVER => Next::Tcp(reason::SHARED_FD),
            stage::START => start(conn, fd),
            stage::INVITED => server::invited(conn),
            stage::LISTENING if witness::watches(conn) => prove::meet(conn, fd),
            stage::LISTENING if remote::is_remote(conn) => remote::meet(conn),
            stage::LISTENING => server::meet(conn),
            stage::DIALLING => remote::dialling(conn),
            stage::ASKING => remote::asking(conn),
            stage::HANDING => remote::handing(conn, fd),
            stage::HANDED => remote::handed(conn),
            stage::PROVING => prove::go_on(conn, fd),
            stage::MET => few(conn, || server::serve(conn, fd, &mut buffer)),
            stage::ACCEPTED => server::confirmed(conn, &mut buffer),
            stage::CALLING if witness::watches(conn) => prove::call(conn, fd),
            stage::CALLING if remote::is_remote(conn) => remote::call(conn),
            stage::CALLING => client::call(conn, fd),
            stage::PROPOSED => few(conn, || client::answered(conn, fd, &mut buffer)),
            stage::CONFIRMED => client::committed(conn, &mut buffer),
            _ => Next::Later,
        };
        match next {
            Next::On => {}
            Next::Later => {
                schedule(conn);
                break;
            }
            // Shared only for the moment, perhaps: the other holder of a forked socket usually closes it soon.
            Next::Tcp(r) if r == reason::SHARED_FD && conn.ops.load(Relaxed) < GIVE_UP => {
                conn.reason.store(r.code(), Relaxed);
                schedule(conn);
                break;
            }
            Next::Tcp(r) => {
                stay_tcp(conn, r);
                break;
            }
        }
    }
    if conn.stage.load(Relaxed) != stage::PROVING {
        witness::let_grow(conn, fd);
    }
    conn.busy.store(0, Release);
    if conn.is_committed() {
        conn.try_switch_tx(fd);
    }
    conn.phase() != before
}

/// A step that may expose our buffer: put off while several threads are inside kernel receives.
fn few(conn: &Conn, step: impl FnOnce() -> Next) -> Next {
    conn.while_few_receive(step).unwrap_or(Next::Later)
}

impl Conn {
    /// Keeps an upgrade from going on until `release_upgrade`; false when one is going on.
    pub fn hold_upgrade(&self) -> bool {
        self.busy.compare_exchange(0, shm::thread_id(), Acquire, Relaxed).is_ok()
    }

    /// Waits for the end of a step that another thread is in the middle of: before a fork, and behind the count of the child.
    #[cold]
    pub fn await_step(&self) {
        // SYNC: fork. A step that begins from here on sees the child.
        core::sync::atomic::fence(SeqCst);
        let deadline = sys::now_ns() + LONGEST_STEP_NS;
        while self.is_upgraded_elsewhere() && sys::now_ns() < deadline {
            sys::nap();
        }
    }

    /// Whether another thread is in the middle of a step, and will end it whatever this one does meanwhile.
    #[cold]
    pub fn is_upgraded_elsewhere(&self) -> bool {
        let who = self.busy.load(Acquire);
        who != 0 && who != shm::thread_id() && shm::thread::is_alive(who)
    }

    /// Ends `hold_upgrade`.
    pub fn release_upgrade(&self) {
        self.busy.store(0, Release);
    }
}

fn schedule(conn: &Conn) {
    if conn.stage.load(Relaxed) == stage::OVER {
        conn.next_try.store(u32::MAX, Relaxed);
        return;
    }
    let ops = conn.ops.load(Relaxed);
    let looks = conn.looks.fetch_add(1, Relaxed);
    // Calling costs a socket, so the distance grows from the start; waiting costs one cheap call.
    let gap = match conn.stage.load(Relaxed) {
        // Whoever shares it usually closes it soon, and looking costs nothing.
        stage::START if conn.reason.load(Relaxed) == reason::SHARED_FD.code() => 4,
        stage::PROVING => 1,
        // A network lies between.
        stage::DIALLING | stage::ASKING | stage::HANDING | stage::HANDED => ops / 64 + 1,
        stage::CALLING if may_be_invited(conn, looks) => 1,
        stage::CALLING | stage::START => (ops / 4).max(4),
        _ if looks < EAGER => 1,
        _ => ops.max(1) / 2 + 1,
    };
    if witness::watches(conn) && prove::is_undecided(conn) {
        if ops > GIVE_UP_FAR && !prove::has_time(conn) {
            return stay_tcp(conn, prove::why_not(conn));
        }
    } else if ops > GIVE_UP {
        return stay_tcp(conn, reason::PEER_NO_SMC);
    }
    if ops > GIVE_UP_FAR && remote::is_remote(conn) && remote::is_undecided(conn) {
        stay_tcp(
            conn,
            match Reason(conn.reason.load(Relaxed)) {
                why @ (reason::NO_BROKER | reason::BROKER | reason::FD_LIMIT) => why,
                _ => reason::PEER_NO_SMC,
            },
        );
        return;
    }
    let unsaid = !matches!(Reason(conn.reason.load(Relaxed)), reason::NO_BROKER | reason::BROKER);
    if looks >= EAGER && unsaid && matches!(conn.stage.load(Relaxed), stage::LISTENING | stage::CALLING) {
        // For whoever looks meanwhile; the peer may still come.
        conn.reason.store(reason::PEER_NO_SMC.code(), Relaxed);
    }
    conn.next_try.store(ops.saturating_add(gap), Relaxed);
}

fn stay_tcp(conn: &Conn, why: Reason) {
    close_meeting(conn);
    witness::end(conn);
    conn.stage.store(stage::OVER, Relaxed);
    conn.reason.store(why.code(), Relaxed);
    conn.next_try.store(u32::MAX, Relaxed);
    if !conn.is_exposed() {
        conn.set(p::FROZEN);
    }
}

fn close_meeting(conn: &Conn) {
    match conn.meeting.swap(0, Relaxed) {
        ALL_LANES => lanes::withdraw(conn),
        lane @ ..0 => lanes::leave(conn, lane),
        0 => {}
        fd => {
            witness::forget_name(conn, fd);
            hidden::close(fd);
        }
    }
}

/// The connection is given away or frozen, or closed, and then `fd` may be none: no further steps.
pub fn abandon(conn: &Conn, fd: i32) {
    conclude(conn);
    close_meeting(conn);
    witness::let_grow(conn, fd);
    witness::end(conn);
}

/// No further steps of a connection that goes back to TCP or ends; its channel is left as it is.
pub fn conclude(conn: &Conn) {
    let at = conn.stage.swap(stage::OVER, Relaxed);
    conn.next_try.store(u32::MAX, Relaxed);
    if at == stage::CONFIRMED && conn.peer_attached() {
        // The server may write to our buffer by now, and must learn how we end.
        group::established(conn);
        conn.commit();
    } else if at == stage::ACCEPTED || at == stage::CONFIRMED {
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

/// Checks eligibility and takes a role.
fn start(conn: &Conn, fd: i32) -> Next {
    conn.era.store(lanes::era(), Relaxed);
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
    if (witness::watches(conn) || remote::is_remote(conn)) && !hidden::room() {
        return server::wait_for_room(conn);
    }
    if witness::watches(conn) {
        return prove::start(conn, fd);
    }
    let [local, peer] = names;
    match local.key().cmp(&peer.key()) {
        core::cmp::Ordering::Equal => Next::Tcp(reason::NOT_LOCAL),
        core::cmp::Ordering::Less if !remote::is_remote(conn) && lanes::invite(conn) => {
            conn.meeting.store(ALL_LANES, Relaxed);
            conn.stage.store(stage::INVITED, Relaxed);
            Next::Later
        }
        core::cmp::Ordering::Less => server::listen(conn),
        core::cmp::Ordering::Greater => {
            conn.stage.store(stage::CALLING, Relaxed);
            Next::On
        }
    }
}

/// Client: whether the next operations are to be waited for, rather than the name be called.
fn may_be_invited(conn: &Conn, looks: u32) -> bool {
    looks < WHILE_INVITED && !remote::is_remote(conn) && lanes::are_likely()
}

/// Whether the process behind the channel may be our peer.
fn admit(conn: &Conn, ch: i32) -> Result<Cred, Reason> {
    if remote::is_remote(conn) {
        return Ok(Cred::ELSEWHERE);
    }
    let found = if ch < 0 { lanes::vouched_peer(conn, ch) } else { channel::peer(ch) };
    let cred = found.ok_or(reason::RENDEZVOUS)?;
    let same = cred.uid == rustix::process::geteuid().as_raw();
    if witness::watches(conn) {
        // The socket table of another network namespace cannot be asked, and user namespaces may differ too.
        return prove::same_user(cred, same).map(|()| {
            channel::take_descriptors(ch);
            cred
        });
    }
    // Another user's claim counts if the kernel says that the far socket is that user's. 65534 is what a user without
    // a mapping in our user namespace looks like: it could be anybody.
    let vouched = || {
        CONFIG.policy() == PeerPolicy::Verified && cred.uid != 65_534 && inet::peer_uid(&conn.names()) == Some(cred.uid)
    };
    if !same && !vouched() {
        return Err(reason::PEER_UID);
    }
    if ch > 0 {
        channel::take_descriptors(ch);
    }
    Ok(cred)
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
    close_meeting(conn);
    witness::end(conn);
    conn.stage.store(stage::OVER, Relaxed);
    conn.reason.store(0, Relaxed);
    // One more look soon: the switch of our sends may have to wait for a thread inside the kernel.
    conn.next_try.store(conn.ops.load(Relaxed).saturating_add(1), Relaxed);
    if let Some(t) = table::get() {
        if client { &t.stats.client } else { &t.stats.server }.fetch_add(1, Relaxed);
    }
}

fn say(conn: &Conn, ch: i32, message: &[u8], pass: Option<i32>) -> Result<(), i32> {
    trace::note(conn, Way::Sent, message);
    if ch < 0 { lanes::send(conn, ch, message, pass) } else { channel::send(ch, message, pass) }
}

fn hear(conn: &Conn, ch: i32, buffer: &mut [u8; channel::MAX]) -> Result<(usize, Option<i32>), i32> {
    let got = if ch < 0 { lanes::recv(conn, ch, buffer, true)? } else { channel::recv(ch, buffer)? };
    trace::note(conn, Way::Received, &buffer[..got.0]);
    Ok(got)
}

/// Takes a message that was looked at already, and whatever came with it.
fn consume(conn: &Conn, ch: i32) {
    if let Ok((_, Some(uninvited))) = hear(conn, ch, &mut [0; channel::MAX]) {
        sys::close(uninvited);
    }
}

fn decline(conn: &Conn, ch: i32, why: Reason) -> Next {
    decline_in(Version::V2, conn, ch, why)
}

/// Declines in the peer's version.
fn decline_in(version: Version, conn: &Conn, ch: i32, why: Reason) -> Next {
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
