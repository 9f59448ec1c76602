//! The upgrade: how the two ends of a TCP connection find each other and agree on memory.
//!
//! Driven by the application's own calls, one step at a time, never waiting. The end with the lower address listens
//! under the connection's rendezvous name and is the CLC server; the other connects and proposes. Whatever fails leaves
//! the connection on TCP with a reason.

use core::sync::atomic::Ordering::*;

use dibs::Device as _;

use crate::channel::{self, Cred};
use crate::clc::negotiate::{self, Local, Proposed, RELEASE, Selection};
use crate::clc::{
    self, Accept, Decline, Device, Devices, Eid, FirstContact, Gid, Hostname, Message, Os, Proposal, SizeCode, SmcD,
    SmcDLevel, SmcDv2, Version,
};
use crate::config::{self, CONFIG, PeerPolicy};
use crate::conn::{Conn, Ends, phase as p};
use crate::group::{self, LOOPBACK, NoGroup};
use crate::inet::{self, TcpInfo};
use crate::reason::{self, Reason};
use crate::{hidden, sys, table};

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
}

/// Operations after which an end stops waiting for its peer.
const GIVE_UP: u32 = 1 << 16;
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

/// Takes the upgrade of `conn` as far as it goes now. True when a direction may have switched. `shared`: other
/// processes hold the connection too.
#[cold]
pub fn step(conn: &Conn, fd: i32, shared: bool) -> bool {
    if conn.phase() & (p::FROZEN | p::CLOSED) != 0 {
        conn.next_try.store(u32::MAX, Relaxed);
        return false;
    }
    if conn.phase() & p::TX_READY != 0 {
        return conn.try_switch_tx(fd);
    }
    // A signal handler or another thread may be at it already.
    if conn.busy.swap(1, Acquire) != 0 {
        return false;
    }
    let before = conn.phase();
    identify(conn, fd);
    let mut buffer = [0u8; channel::MAX];
    loop {
        let next = match conn.stage.load(Relaxed) {
            stage::START if shared => Next::Tcp(reason::SHARED_FD),
            stage::START => start(conn, fd),
            stage::LISTENING => meet(conn),
            stage::MET => serve(conn, fd, &mut buffer),
            stage::ACCEPTED => confirmed(conn, &mut buffer),
            stage::CALLING => call(conn, fd),
            stage::PROPOSED => answered(conn, fd, &mut buffer),
            stage::CONFIRMED => committed(conn, &mut buffer),
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
    conn.busy.store(0, Release);
    if conn.phase() & p::TX_READY != 0 {
        conn.try_switch_tx(fd);
    }
    conn.phase() != before
}

impl Conn {
    /// Keeps an upgrade from going on until `release_upgrade`; false when one is going on.
    pub fn hold_upgrade(&self) -> bool {
        self.busy.swap(1, Acquire) == 0
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
        stage::CALLING | stage::START => (ops / 4).max(4),
        _ if looks < EAGER => 1,
        _ => ops.max(1) / 2 + 1,
    };
    if ops > GIVE_UP {
        stay_tcp(conn, reason::PEER_NO_SMC);
        return;
    }
    conn.next_try.store(ops.saturating_add(gap), Relaxed);
}

fn stay_tcp(conn: &Conn, why: Reason) {
    close_meeting(conn);
    conn.stage.store(stage::OVER, Relaxed);
    conn.reason.store(why.code(), Relaxed);
    conn.next_try.store(u32::MAX, Relaxed);
    if conn.phase() & p::ATTACHED == 0 {
        conn.set(p::FROZEN);
    }
}

fn close_meeting(conn: &Conn) {
    let fd = conn.meeting.swap(0, Relaxed);
    if fd > 0 {
        hidden::close(fd);
    }
}

/// The connection is closed, given away or frozen: no further steps.
pub fn abandon(conn: &Conn) {
    close_meeting(conn);
    let at = conn.stage.swap(stage::OVER, Relaxed);
    conn.next_try.store(u32::MAX, Relaxed);
    if at == stage::ACCEPTED || at == stage::CONFIRMED {
        group::failed(conn.group.load(Relaxed), false);
    }
}

/// Inode of a socket, as `ss` and /proc show it; None for anything else.
pub fn socket_inode(fd: i32) -> Option<u32> {
    // SAFETY: all-zero is a valid stat.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `st` is live.
    let r = unsafe { sys::syscall(libc::SYS_fstat, fd as usize, &raw mut st as usize, 0, 0, 0, 0) };
    (r == 0 && st.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(st.st_ino as u32)
}

/// Notes whose connection it is, for `ss`.
pub fn identify(conn: &Conn, fd: i32) {
    if conn.inode.load(Relaxed) != 0 {
        return;
    }
    conn.uid.store(rustix::process::geteuid().as_raw(), Relaxed);
    conn.inode.store(socket_inode(fd).unwrap_or(0), Relaxed);
    if let Some(names) = inet::names(fd) {
        conn.set_names(names);
    }
}

/// Checks eligibility and takes a role.
fn start(conn: &Conn, fd: i32) -> Next {
    if CONFIG.policy() == PeerPolicy::Off {
        return Next::Tcp(reason::OFF);
    }
    if conn.pid.load(Relaxed) != sys::getpid() {
        // The slot was made before a fork and we are the sole holder now.
        conn.pid.store(sys::getpid(), Relaxed);
    }
    let mut proto = 0i32;
    sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut proto);
    if proto != libc::IPPROTO_TCP {
        return Next::Tcp(reason::MPTCP);
    }
    if !TcpInfo::of(fd).is_some_and(|i| i.established()) {
        return Next::Later;
    }
    identify(conn, fd);
    let names = conn.names();
    if names[1].family == 0 {
        return Next::Tcp(reason::NOT_LOCAL);
    }
    if !inet::is_local(&names) {
        return Next::Tcp(reason::NOT_LOCAL);
    }
    let mut opt = 0i32;
    sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &mut opt);
    if opt != 0 {
        return Next::Tcp(reason::URGENT);
    }
    let mut low = 1i32;
    sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mut low);
    if low > 1 && conn.user_rcvlowat.load(Relaxed) <= 1 && conn.rx_inflight.load(SeqCst) > 0 {
        // A mark inherited from the listener. The receive keeps to it, and would sleep over our doorbells.
        return Next::Later;
    }
    conn.user_rcvlowat.store(low.max(1) as u32, Relaxed);
    let (mut nodelay, mut cork) = (0i32, 0i32);
    sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut nodelay);
    sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &mut cork);
    conn.user_nodelay.store(u32::from(nodelay != 0) | u32::from(cork != 0) << 1, Relaxed);
    if !hidden::room() {
        conn.reason.store(reason::FD_LIMIT.code(), Relaxed);
        return Next::Later;
    }
    let [local, peer] = names;
    match local.key().cmp(&peer.key()) {
        core::cmp::Ordering::Equal => Next::Tcp(reason::NOT_LOCAL),
        core::cmp::Ordering::Less => match channel::listen(&local, &peer) {
            Ok(l) => {
                conn.meeting.store(l, Relaxed);
                conn.stage.store(stage::LISTENING, Relaxed);
                Next::On
            }
            Err(libc::EADDRINUSE) => Next::Tcp(reason::NAME_TAKEN),
            Err(libc::EMFILE | libc::ENFILE) => Next::Later,
            Err(_) => Next::Tcp(reason::RENDEZVOUS),
        },
        core::cmp::Ordering::Greater => {
            conn.stage.store(stage::CALLING, Relaxed);
            Next::On
        }
    }
}

/// Server: has the client come?
fn meet(conn: &Conn) -> Next {
    match channel::accept(conn.meeting.load(Relaxed)) {
        Ok(fd) => {
            close_meeting(conn);
            conn.meeting.store(fd, Relaxed);
            conn.stage.store(stage::MET, Relaxed);
            conn.looks.store(0, Relaxed);
            Next::On
        }
        Err(libc::EAGAIN | libc::EINTR | libc::EMFILE | libc::ENFILE) => Next::Later,
        Err(_) => Next::Tcp(reason::RENDEZVOUS),
    }
}

/// Client: is the server there?
fn call(conn: &Conn, fd: i32) -> Next {
    let [local, peer] = conn.names();
    match channel::connect(&peer, &local) {
        Ok(ch) => {
            conn.meeting.store(ch, Relaxed);
            if let Err(why) = admit(conn, ch) {
                return Next::Tcp(why);
            }
            LOOPBACK.init();
            let mut out = [0u8; channel::MAX];
            let Some(n) = write(&Message::Proposal(proposal()), fd, &mut out) else {
                return Next::Tcp(reason::INT_ERR);
            };
            if channel::send(ch, &out[..n], None).is_err() {
                return Next::Tcp(reason::RENDEZVOUS);
            }
            conn.stage.store(stage::PROPOSED, Relaxed);
            conn.looks.store(0, Relaxed);
            Next::Later
        }
        Err(libc::ECONNREFUSED | libc::EAGAIN | libc::EMFILE | libc::ENFILE) => {
            conn.reason.store(reason::PEER_NO_SMC.code(), Relaxed);
            Next::Later
        }
        Err(_) => Next::Tcp(reason::RENDEZVOUS),
    }
}

/// Whether the process behind the channel may be our peer.
fn admit(conn: &Conn, ch: i32) -> Result<Cred, Reason> {
    let cred = channel::peer(ch).ok_or(reason::RENDEZVOUS)?;
    let same = cred.uid == rustix::process::geteuid().as_raw();
    // Another user's claim counts if the kernel says that the far socket is that user's. 65534 is what a user without
    // a mapping in our user namespace looks like: it could be anybody.
    let vouched = || {
        CONFIG.policy() == PeerPolicy::Verified && cred.uid != 65_534 && inet::peer_uid(&conn.names()) == Some(cred.uid)
    };
    if same || vouched() { Ok(cred) } else { Err(reason::PEER_UID) }
}

fn own_gid() -> Gid {
    let gid = LOOPBACK.gid();
    Gid { hi: gid.hi(), lo: gid.lo() }
}

fn proposal() -> Proposal {
    let mut devices = Devices::new();
    let _ = devices.push(Device { gid: own_gid(), chid: LOOPBACK.chid() });
    let eids = clc::List::of(config::ueids()).unwrap_or_default();
    Proposal::smcd(RELEASE, eids, Some(Eid::LOOPBACK_SEID), devices)
}

/// Server: answer the Proposal.
fn serve(conn: &Conn, fd: i32, buffer: &mut [u8; channel::MAX]) -> Next {
    let ch = conn.meeting.load(Relaxed);
    // Peeked first: while another connection makes first contact with this peer, the Proposal waits in the socket.
    let n = match peek(ch, buffer) {
        Ok(n) => n,
        Err(libc::EAGAIN) => return Next::Later,
        Err(_) => return Next::Tcp(reason::RENDEZVOUS),
    };
    let cred = match admit(conn, ch) {
        Ok(cred) => cred,
        Err(why) => return decline(conn, ch, why),
    };
    let theirs = match Message::decode(&buffer[..n]) {
        Ok(Message::Proposal(theirs)) => theirs,
        Ok(Message::Decline(d)) => {
            conn.peer_reason.store(d.diagnosis.code(), Relaxed);
            return Next::Tcp(reason::PEER_DECL);
        }
        _ => return decline(conn, ch, reason::CNF_ERR),
    };
    if !same_stream(&buffer[..n], fd) {
        return decline(conn, ch, reason::RENDEZVOUS);
    }
    LOOPBACK.init();
    let ours = [Device { gid: own_gid(), chid: LOOPBACK.chid() }];
    // Whoever reached us through the rendezvous is on this host, which is what loopback reaches.
    let local = Local {
        devices: &ours,
        reachable: &|_, gid| gid != Gid::default(),
        ueids: config::ueids(),
        seid: Some(Eid::LOOPBACK_SEID),
        release: RELEASE,
    };
    let choice = match negotiate::select(&theirs, &local) {
        Ok(choice) => choice,
        Err(why) => return decline(conn, ch, why),
    };
    let peer = dibs::Gid::new(choice.gid.hi, choice.gid.lo);
    let (id, first) = match group::serve(peer, cred.uid) {
        Ok(found) => found,
        Err(_) => {
            finish_pending(conn, peer);
            match group::serve(peer, cred.uid) {
                Ok(found) => found,
                Err(_) => return Next::Later,
            }
        }
    };
    consume(ch);
    LOOPBACK.admit(peer);
    if first {
        group::first_is(id, conn);
    }
    conn.group.store(id, Relaxed);
    conn.peer_pid.store(cred.pid as u32, Relaxed);
    let (dmb, pass) = match group::take_dmb(id, peer, CONFIG.dmb_size.load(Relaxed)) {
        Ok(got) => got,
        Err(code) => {
            group::failed(id, false);
            return decline(conn, ch, Reason(code));
        }
    };
    let accept = Message::Accept(ends_message(id, &dmb, choice.eid, first, choice.release));
    let mut out = [0u8; channel::MAX];
    // The client may switch as soon as it has the Accept: our end must be watching by then.
    expose(conn, fd, &dmb);
    let sent = write(&accept, fd, &mut out).is_some_and(|n| channel::send(ch, &out[..n], pass).is_ok());
    if !sent {
        return retract(conn, reason::RENDEZVOUS);
    }
    conn.stage.store(stage::ACCEPTED, Relaxed);
    conn.looks.store(0, Relaxed);
    Next::Later
}

/// Takes another connection's first contact with `peer` to its end, if its Confirm has come: its own next operation may
/// be long in coming.
fn finish_pending(own: &Conn, peer: dibs::Gid) {
    let Some(first) = group::pending(peer) else { return };
    if core::ptr::eq(first, own) || !first.hold_upgrade() {
        return;
    }
    if first.stage.load(Relaxed) == stage::ACCEPTED {
        let mut buffer = [0u8; channel::MAX];
        if let Next::Tcp(why) = confirmed(first, &mut buffer) {
            stay_tcp(first, why);
        }
    }
    first.release_upgrade();
}

/// Client: what does the server say?
fn answered(conn: &Conn, fd: i32, buffer: &mut [u8; channel::MAX]) -> Next {
    let ch = conn.meeting.load(Relaxed);
    let (n, passed) = match channel::recv(ch, buffer) {
        Ok(got) => got,
        Err(libc::EAGAIN) => return Next::Later,
        Err(_) => (0, None),
    };
    let next = if n == 0 { Next::Tcp(reason::RENDEZVOUS) } else { accepted(conn, fd, ch, &buffer[..n], passed) };
    if let Some(memfd) = passed {
        sys::close(memfd);
    }
    next
}

fn accepted(conn: &Conn, fd: i32, ch: i32, raw: &[u8], passed: Option<i32>) -> Next {
    let accept = match Message::decode(raw) {
        Ok(Message::Accept(accept)) => accept,
        Ok(Message::Decline(d)) => {
            conn.peer_reason.store(d.diagnosis.code(), Relaxed);
            return Next::Tcp(reason::PEER_DECL);
        }
        _ => return decline(conn, ch, reason::CNF_ERR),
    };
    let agreed = match negotiate::check_accept(&proposal(), &accept) {
        Ok(agreed) => agreed,
        Err(why) => return decline(conn, ch, why),
    };
    let Accept::SmcD(server) = accept else { return decline(conn, ch, reason::MODE_UNSUPP) };
    let cred = match admit(conn, ch) {
        Ok(cred) => cred,
        Err(why) => return decline(conn, ch, why),
    };
    if !same_stream(raw, fd) {
        return decline(conn, ch, reason::RENDEZVOUS);
    }
    let peer = dibs::Gid::new(server.gid.hi, server.gid.lo);
    LOOPBACK.admit(peer);
    let id = match group::join(peer, cred.uid, agreed.first_contact) {
        Ok(id) => id,
        Err(NoGroup::OutOfSync) => return decline(conn, ch, reason::SYNC_ERR),
        Err(NoGroup::Busy) => return decline(conn, ch, reason::MEMORY),
    };
    conn.group.store(id, Relaxed);
    conn.peer_pid.store(cred.pid as u32, Relaxed);
    let (dmb, pass) = match group::take_dmb(id, peer, CONFIG.dmb_size.load(Relaxed)) {
        Ok(got) => got,
        Err(code) => {
            group::failed(id, false);
            return decline(conn, ch, Reason(code));
        }
    };
    let refuse = |why| {
        group::give_back(id, dmb.token, false);
        group::failed(id, false);
        decline(conn, ch, why)
    };
    let len = server.size.bytes();
    let Some((header, page)) = group::attach(id, peer, server.token, len, passed) else {
        return refuse(reason::MEMORY);
    };
    let eid = agreed.eid.unwrap_or(Eid::LOOPBACK_SEID);
    let confirm =
        Message::Confirm(ends_message(id, &dmb, eid, agreed.first_contact, agreed.release.unwrap_or(RELEASE)));
    let mut out = [0u8; channel::MAX];
    // The server may switch as soon as it reads the Confirm: everything must be in place before that.
    expose(conn, fd, &dmb);
    conn.attach(header, len, server.token, page, CONFIG.copy.load(Relaxed));
    let sent = write(&confirm, fd, &mut out).is_some_and(|n| channel::send(ch, &out[..n], pass).is_ok());
    if !sent {
        // Nobody is at the other end of the channel any more; the rings stay unused.
        return retract(conn, reason::RENDEZVOUS);
    }
    conn.stage.store(stage::CONFIRMED, Relaxed);
    conn.looks.store(0, Relaxed);
    Next::Later
}

/// Client: has the server attached our buffer? Until then nothing of ours may go where nobody might read it.
fn committed(conn: &Conn, buffer: &mut [u8; channel::MAX]) -> Next {
    if conn.peer_attached() {
        group::established(conn.group.load(Relaxed), conn.my_token.load(Relaxed));
        conn.commit();
        upgraded(conn, true);
        return Next::Later;
    }
    let (n, passed) = match channel::recv(conn.meeting.load(Relaxed), buffer) {
        Ok(got) => got,
        Err(libc::EAGAIN) => return Next::Later,
        Err(_) => (0, None),
    };
    if let Some(memfd) = passed {
        sys::close(memfd);
    }
    // The server hangs up after it has attached.
    if conn.peer_attached() {
        return Next::On;
    }
    let why = match Message::decode(&buffer[..n]) {
        Ok(Message::Decline(d)) => {
            conn.peer_reason.store(d.diagnosis.code(), Relaxed);
            reason::PEER_DECL
        }
        _ => reason::RENDEZVOUS,
    };
    retract(conn, why)
}

/// Nothing comes of it, and the peer has not begun to use our buffer.
fn retract(conn: &Conn, why: Reason) -> Next {
    conn.withdraw();
    group::failed(conn.group.load(Relaxed), why == reason::SYNC_ERR);
    group::release(conn);
    Next::Tcp(why)
}

/// Server: has the client confirmed?
fn confirmed(conn: &Conn, buffer: &mut [u8; channel::MAX]) -> Next {
    let ch = conn.meeting.load(Relaxed);
    let id = conn.group.load(Relaxed);
    let (n, passed) = match channel::recv(ch, buffer) {
        Ok(got) => got,
        Err(libc::EAGAIN) => return Next::Later,
        Err(_) => (0, None),
    };
    let attached = match Message::decode(&buffer[..n]) {
        Ok(Message::Confirm(confirm)) => attach_confirmed(conn, id, &confirm, passed),
        Ok(Message::Decline(d)) => {
            conn.peer_reason.store(d.diagnosis.code(), Relaxed);
            group::failed(id, d.out_of_sync);
            Err(reason::PEER_DECL)
        }
        // Gone without a word: closed, or not able to go on.
        _ if n == 0 => Err(reason::RENDEZVOUS),
        _ => Err(reason::CNF_ERR),
    };
    if let Some(memfd) = passed {
        sys::close(memfd);
    }
    match attached {
        Ok(()) => {
            group::established(id, conn.my_token.load(Relaxed));
            upgraded(conn, false);
            Next::Later
        }
        Err(why) => {
            if why != reason::PEER_DECL && n != 0 {
                let _ = decline(conn, ch, why);
            }
            retract(conn, why)
        }
    }
}

fn attach_confirmed(conn: &Conn, id: u32, confirm: &Accept, passed: Option<i32>) -> Result<(), Reason> {
    let Accept::SmcD(client) = confirm else { return Err(reason::VIOLATION) };
    let SmcDLevel::V2(v2) = client.level else { return Err(reason::VIOLATION) };
    let eid = v2.eid.filter(|e| *e == Eid::LOOPBACK_SEID || config::ueids().contains(e)).ok_or(reason::VIOLATION)?;
    let expected = group::peer_of(id).ok_or(reason::SYNC_ERR)?;
    let selection = Selection {
        proposed: Proposed::Listed(0),
        gid: Gid { hi: expected.hi(), lo: expected.lo() },
        chid: LOOPBACK.chid(),
        eid,
        release: RELEASE,
        ..Selection::default()
    };
    negotiate::check_confirm(&selection, confirm)?;
    let len = client.size.bytes();
    let (header, page) = group::attach(id, expected, client.token, len, passed).ok_or(reason::MEMORY)?;
    conn.attach(header, len, client.token, page, CONFIG.copy.load(Relaxed));
    conn.commit();
    Ok(())
}

fn upgraded(conn: &Conn, client: bool) {
    close_meeting(conn);
    conn.stage.store(stage::OVER, Relaxed);
    conn.reason.store(0, Relaxed);
    // One more look soon: the switch of our sends may have to wait for a thread inside the kernel.
    conn.next_try.store(conn.ops.load(Relaxed).saturating_add(1), Relaxed);
    if let Some(t) = table::get() {
        if client { &t.stats.client } else { &t.stats.server }.fetch_add(1, Relaxed);
    }
}

/// Takes a message that was looked at already, and whatever came with it.
fn consume(ch: i32) {
    if let Ok((_, Some(uninvited))) = channel::recv(ch, &mut [0; channel::MAX]) {
        sys::close(uninvited);
    }
}

fn decline(conn: &Conn, ch: i32, why: Reason) -> Next {
    let mut out = [0u8; channel::MAX];
    // What we hang up on unread would reach the peer as a reset, ahead of our answer.
    consume(ch);
    if let Ok(n) = Message::Decline(Decline::new(Version::V2, why)).encode(&mut out) {
        let _ = channel::send(ch, &out[..n], None);
    }
    if let Some(t) = table::get() {
        t.stats.handshake_errors.fetch_add(1, Relaxed);
    }
    let _ = conn;
    Next::Tcp(why)
}

fn expose(conn: &Conn, fd: i32, dmb: &dibs::Dmb) {
    if conn.user_rcvlowat.load(Relaxed) > 1 {
        // From now on a single byte may be a doorbell, and must wake.
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1i32);
    }
    conn.expose(&Ends {
        my: dmb.addr.cast(),
        my_len: dmb.len,
        my_token: dmb.token,
        my_waits: group::own_page(dmb.token),
    });
}

fn ends_message(id: u32, dmb: &dibs::Dmb, eid: Eid, first: bool, release: u8) -> Accept {
    Accept::SmcD(SmcD {
        gid: own_gid(),
        token: dmb.token,
        index: 0,
        size: SizeCode::compress(u64::from(dmb.len), SizeCode::MAX_SMCD),
        link_id: (id << 8).to_ne_bytes(),
        level: SmcDLevel::V2(SmcDv2 {
            chid: LOOPBACK.chid(),
            eid: Some(eid),
            first_contact: first.then(|| FirstContact {
                os: Os::LINUX,
                release,
                hostname: hostname(),
                features: clc::FEATURE_EMULATED_ISM,
                ..FirstContact::default()
            }),
        }),
    })
}

fn hostname() -> Hostname {
    let name = rustix::system::uname();
    Hostname::new(name.nodename().to_str().unwrap_or(""))
}

/// Behind each Proposal, Accept and Confirm: what its sender has sent and received on the TCP stream, so that a name
/// left over from an earlier connection with the same addresses is told apart.
const MARK: &[u8; 8] = b"SHORTWR1";
const TRAILER: usize = 24;

fn write(message: &Message, fd: i32, out: &mut [u8; channel::MAX]) -> Option<usize> {
    let n = message.encode(out).ok()?;
    let info = TcpInfo::of(fd)?;
    out.get_mut(n..n + 8)?.copy_from_slice(MARK);
    out.get_mut(n + 8..n + 16)?.copy_from_slice(&info.sent().to_be_bytes());
    out.get_mut(n + 16..n + 24)?.copy_from_slice(&info.arrived().to_be_bytes());
    Some(n + TRAILER)
}

/// The sender cannot have received more than we have sent.
fn same_stream(raw: &[u8], fd: i32) -> bool {
    let Some(at) = raw.len().checked_sub(TRAILER) else { return false };
    let word = |at: usize| u64::from_be_bytes(raw[at..at + 8].try_into().unwrap_or_default());
    let Some(info) = TcpInfo::of(fd) else { return false };
    raw[at..at + 8] == *MARK && word(at + 16) <= info.sent()
}

fn peek(ch: i32, buffer: &mut [u8; channel::MAX]) -> Result<usize, i32> {
    // SAFETY: the buffer is ours.
    match unsafe { sys::recv(ch, buffer.as_mut_ptr(), buffer.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT) } {
        0 => Err(libc::ECONNRESET),
        n if n < 0 => Err(-n as i32),
        n => Ok(n as usize),
    }
}
