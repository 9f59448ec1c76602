//! Every TCP connection of every process under Shortwire, as `ss`, `devices` and measuring programs
//! show them.
//!
//! Two sources are joined by the socket's inode: the tables that the library keeps (mode, reason,
//! cursors) and the kernel's own list of sockets (addresses, state, listeners). The kernel's word
//! counts for what it knows.

mod diag;
mod groups;
pub mod kept;
mod kernel;
mod netlink;
mod numbers;
pub mod policy;
mod processes;
mod rsockets;
pub mod smc_diag;
mod tables;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use shm::rsockets::{NO_INODE, Row};
use smc::conn::Conn;
use smc::conn::phase::Phase;
use smc::reason::{self, Reason};
use smc::release::Mismatch;

pub use diag::Carried;
pub use groups::LinkGroup;
pub use processes::{Program, descriptor_of};
pub use rsockets::{HeldStreams, Stream, StreamTotals, Streams};
use smc_diag::Carrier;
pub use tables::{Flow, Held, Table, Totals, Wakeups};

/// Beside `Wakeups::complaint`.
pub const LATE_HINT: &str = "Are the processors busy with something else (load, cgroup limits), or does a congestion control hold bytes back?";

/// One end of a connection, or a listener.
#[derive(Clone, Serialize)]
pub struct Connection {
    pub state: &'static str,
    pub uid: u32,
    pub inode: u64,
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    pub programs: Vec<Program>,
    /// Those that hold the other end, as far as that is on this machine and can be seen; they need
    /// not be under Shortwire.
    pub peer_programs: Vec<Program>,
    #[serde(flatten)]
    pub mode: Mode,
    /// What the kernel has carried of it; None where that cannot be asked.
    pub tcp: Option<Carried>,
    /// Of an upgraded connection.
    pub detail: Option<Detail>,
    /// Of an rsocket.
    pub stream: Option<Stream>,
}

#[derive(Clone, Serialize)]
#[serde(tag = "mode")]
pub enum Mode {
    #[serde(rename = "SMCD")]
    Smcd,
    /// Through shared memory until it was reset, for this reason.
    #[serde(rename = "SMCD")]
    Reset {
        reason: u32,
        reason_name: &'static str,
        words: Cow<'static, str>,
        hint: Cow<'static, str>,
    },
    #[serde(rename = "TCP")]
    Tcp {
        reason: u32,
        reason_name: &'static str,
        /// The peer's diagnosis after its Decline; 0 and empty if there is none.
        peer_reason: u32,
        peer_reason_name: &'static str,
        words: Cow<'static, str>,
        hint: Cow<'static, str>,
    },
    #[serde(rename = "LISTEN")]
    Listener,
    /// A socket of the rsockets library.
    #[serde(rename = "RSOCKET")]
    Rsocket,
    /// Carried by the kernel's own SMC, and left alone.
    #[serde(rename = "KERNEL_SMC")]
    KernelSmc {
        /// `SMCR` or `SMCD`.
        variant: &'static str,
        /// Of RDMA its name, of shared memory its GID.
        kernel_device: String,
    },
}

#[derive(Clone, Serialize)]
pub struct Detail {
    pub shutdown: String,
    /// Readers in whose language every number is a double lose the last digits of these.
    pub token: u64,
    pub peer_token: u64,
    /// The same in hexadecimal: what one end calls `token_hex`, the other calls `peer_token_hex`.
    pub token_hex: String,
    pub peer_token_hex: String,
    /// As the process counts them.
    pub link_group: u32,
    /// As messages name it: [`LinkGroup::id`].
    pub link_group_id: u32,
    /// Of the devices, as the census has them; empty if it has not.
    pub gid: String,
    pub peer_gid: String,
    pub device: &'static str,
    pub peer_pid: u32,
    pub sends_through_ring: bool,
    pub receives_through_ring: bool,
    pub rcvbuf: u32,
    pub peerbuf: u32,
    pub rx_producer: String,
    pub rx_consumer: String,
    pub rx_flags: String,
    pub tx_producer: String,
    pub tx_consumer: String,
    pub tx_flags: String,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_calls: u64,
    pub tx_calls: u64,
    pub doorbells: u64,
    pub wakeups: Wakeups,
}

pub struct Snapshot {
    pub connections: Vec<Connection>,
    pub tables: Vec<Table>,
    pub streams: Vec<Streams>,
    /// Processes that could not be looked into, for want of permission.
    pub hidden: usize,
}

/// Looks at all processes, or only at those that `wanted` accepts by their id.
pub fn snapshot(wanted: impl Fn(u32) -> bool) -> Snapshot {
    let mut survey = processes::survey(wanted);
    let streams: Vec<Streams> = std::mem::take(&mut survey.rsockets).into_values().collect();
    let tables: Vec<Table> =
        survey.tables.iter().filter_map(|found| tables::read(found).ok()).collect();
    let mut kernel = HashMap::new();
    let mut ends = HashMap::new();
    let mut carried = HashMap::new();
    let mut kernel_smc = HashMap::new();
    for (namespace, &pid) in survey.namespaces.values().enumerate() {
        for (inode, socket) in kernel::sockets(pid) {
            ends.insert((namespace, socket.local, socket.peer), inode);
            kernel.insert(inode, (namespace, socket));
        }
        carried.extend(diag::carried(pid));
        for socket in smc_diag::sockets(pid) {
            // In place of the TCP socket beneath, which nobody holds.
            ends.insert((namespace, socket.local, socket.peer), socket.inode);
            kernel_smc.insert(socket.inode, (namespace, socket));
        }
    }
    // What the kernel's SMC has given back to TCP may be in shared memory, as the table knows.
    let is_the_kernels = |inode: u64| kernel_smc.get(&inode).is_some_and(|(_, one)| !one.is_tcp());
    let mut seen = HashSet::new();
    let mut connections = Vec::new();
    for table in &tables {
        for conn in table.live() {
            let inode = u64::from(conn.identity.inode.load(Relaxed));
            let programs = survey.holders(inode);
            // A table is its programs' own: of a socket that they do not hold it has nothing to say.
            let is_theirs = programs.is_empty()
                || programs.iter().any(|program| table.programs.contains(program));
            if inode != 0 && is_theirs && !is_the_kernels(inode) && seen.insert(inode) {
                connections.push(match kernel.get(&inode).map(|(_, socket)| socket) {
                    // What was noted of it, say EPOLLEXCLUSIVE, does not keep what it accepts from
                    // shared memory.
                    Some(socket) if socket.is_listener() => {
                        undescribed(inode, socket, programs, reason::NOT_YET)
                    }
                    socket => described(table, conn, socket, programs),
                });
            }
        }
    }
    let default_reasons = reasons_of_the_unnamed(&tables);
    for (&inode, (_, socket)) in &kernel {
        let programs = survey.holders(inode);
        if !programs.is_empty() && seen.insert(inode) {
            let why = programs
                .iter()
                .find_map(|program| {
                    let told = survey.kept.get(&program.pid);
                    let is_followed = !survey.unfollowed.contains(&program.pid);
                    told.or_else(|| default_reasons.get(&program.pid))
                        .copied()
                        .or((!is_followed).then_some(reason::NOT_FOLLOWED))
                })
                .unwrap_or(reason::NOT_YET);
            let mut connection = undescribed(inode, socket, programs, why);
            connection.stream = stream_of(&streams, inode, &connection.programs);
            if connection.stream.is_some() && !socket.is_listener() {
                connection.mode = Mode::Rsocket;
            }
            connections.push(connection);
        }
    }
    for (_, socket) in kernel_smc.values() {
        let programs = survey.holders(socket.inode);
        if !programs.is_empty() && seen.insert(socket.inode) {
            connections.push(of_the_kernel(socket, programs));
        }
    }
    for family in &streams {
        let rows = family.rows().filter(|(key, _)| *key >= NO_INODE);
        connections.extend(rows.map(|(_, row)| without_tcp(family, row)));
    }
    for connection in &mut connections {
        connection.tcp = carried.get(&connection.inode).copied();
        let inode = &connection.inode;
        let place = kernel.get(inode).map(|(namespace, one)| (*namespace, one.peer, one.local));
        let place = place
            .or_else(|| kernel_smc.get(inode).map(|(space, one)| (*space, one.peer, one.local)));
        let other = place.and_then(|place| ends.get(&place));
        connection.peer_programs = match other {
            Some(&inode) => survey.holders_or_strangers(inode),
            // In another network namespace, or the kernel does not know it any more.
            None => {
                let by_detail = connection.detail.as_ref().map(|detail| detail.peer_pid);
                let by_stream = connection.stream.as_ref().map(|stream| stream.peer_pid);
                survey.program(by_detail.or(by_stream).unwrap_or(0))
            }
        };
    }
    connections.sort_by_key(|connection| {
        (connection.programs.first().map(|program| program.pid), connection.inode)
    });
    Snapshot { connections, tables, streams, hidden: survey.hidden }
}

/// Only how the connections of the processes go that `wanted` accepts, by the library's own notes:
/// the kernel's list, long where many connections were closed a moment ago, takes it a tenth of a
/// second to write down.
pub fn modes(wanted: impl Fn(u32) -> bool) -> Vec<Mode> {
    let tables = processes::survey(wanted).tables;
    let tables: Vec<Table> = tables.iter().filter_map(|found| tables::read(found).ok()).collect();
    tables.iter().flat_map(Table::live).map(mode).collect()
}

fn mode(conn: &Conn) -> Mode {
    let phase = conn.phase();
    let local_reason = conn.identity.reason.load(Relaxed);
    if phase.is_broken() {
        let why = Reason(local_reason);
        return Mode::Reset {
            reason: local_reason,
            reason_name: why.name(),
            words: why.words().into(),
            hint: why.hint().into(),
        };
    }
    if phase.is_committed() && !phase.switched() && phase.sends_are_back() && local_reason == 0 {
        // The peer has taken it there.
        return tcp(reason::PEER_BACK, 0);
    }
    match phase.switched() || (phase.is_committed() && local_reason == 0) {
        true => Mode::Smcd,
        false => tcp(Reason(local_reason), conn.upgrade.declined().code()),
    }
}

/// The processes at the other ends of connections, given as (local, peer), that `pid` has, as far
/// as they are on this machine and can be seen. They need not be under Shortwire.
pub fn other_ends(pid: u32, connections: &[(SocketAddr, SocketAddr)]) -> Vec<Program> {
    let wanted: HashSet<(SocketAddr, SocketAddr)> =
        connections.iter().map(|&(local, peer)| (peer, local)).collect();
    let sockets = kernel::sockets(pid).into_iter();
    let inodes = sockets
        .filter(|(_, socket)| wanted.contains(&(socket.local, socket.peer)))
        .map(|(inode, _)| inode);
    processes::holders_of(&inodes.collect())
}

/// A connection that the library took note of.
fn described(
    table: &Table,
    conn: &Conn,
    kernel: Option<&kernel::Socket>,
    programs: Vec<Program>,
) -> Connection {
    let [local, peer] = conn.identity.names().map(|address| tables::address(&address));
    let phase = conn.phase();
    let attached = phase.is_committed();
    Connection {
        state: if attached {
            smc_state(conn, phase)
        } else {
            kernel.map_or("ACTIVE", |socket| socket.smc_state())
        },
        uid: kernel.map_or(conn.identity.uid.load(Relaxed), |socket| socket.uid),
        inode: u64::from(conn.identity.inode.load(Relaxed)),
        local: kernel.map(|socket| socket.local).or(local),
        peer: kernel.map(|socket| socket.peer).or(peer),
        programs,
        peer_programs: Vec::new(),
        mode: mode(conn),
        tcp: None,
        detail: attached.then(|| detail(table, conn, phase)),
        stream: None,
    }
}

/// A socket that the library has not taken note of: a listener, or a connection before its first
/// look at it.
fn undescribed(
    inode: u64,
    socket: &kernel::Socket,
    programs: Vec<Program>,
    why: Reason,
) -> Connection {
    Connection {
        state: socket.smc_state(),
        uid: socket.uid,
        inode,
        local: Some(socket.local),
        peer: Some(socket.peer).filter(|_| !socket.is_listener()),
        programs,
        peer_programs: Vec::new(),
        mode: if socket.is_listener() { Mode::Listener } else { tcp(why, 0) },
        tcp: None,
        detail: None,
        stream: None,
    }
}

/// A socket of the kernel's own SMC.
fn of_the_kernel(socket: &smc_diag::Socket, programs: Vec<Program>) -> Connection {
    let carried_by = |variant| Mode::KernelSmc { variant, kernel_device: socket.device.clone() };
    Connection {
        state: socket.state,
        uid: socket.uid,
        inode: socket.inode,
        local: Some(socket.local),
        peer: Some(socket.peer).filter(|_| !socket.is_listener()),
        programs,
        peer_programs: Vec::new(),
        mode: match socket.carrier {
            _ if socket.is_listener() => Mode::Listener,
            Carrier::Smcr => carried_by("SMCR"),
            Carrier::Smcd => carried_by("SMCD"),
            Carrier::Tcp { reason, .. } => tcp(reason::KERNEL_SMC, reason),
        },
        tcp: None,
        detail: None,
        stream: None,
    }
}

/// What an rsocket says of itself. A process can only say it of sockets that it holds.
fn stream_of(streams: &[Streams], inode: u64, holders: &[Program]) -> Option<Stream> {
    let theirs = |family: &&Streams| family.programs.iter().any(|one| holders.contains(one));
    let mut rows = streams.iter().filter(theirs).flat_map(Streams::rows);
    rows.find(|(key, _)| *key == inode).map(|(_, row)| Stream::of(row))
}

/// An rsocket over RDMA, which the kernel's list does not have.
fn without_tcp(family: &Streams, row: &Row) -> Connection {
    let stream = Stream::of(row);
    let listens = row.listens.load(Relaxed) != 0;
    let state = match (listens, stream.device) {
        (true, _) => "LISTEN",
        (false, "") => "INIT",
        (false, _) => "ACTIVE",
    };
    Connection {
        state,
        uid: family.uid,
        inode: row.key.load(Relaxed),
        local: rsockets::name(row, false),
        peer: rsockets::name(row, true).filter(|_| !listens),
        programs: family.owner(row),
        peer_programs: Vec::new(),
        mode: if listens { Mode::Listener } else { Mode::Rsocket },
        tcp: None,
        detail: None,
        stream: Some(stream),
    }
}

fn tcp(local: Reason, peer: u32) -> Mode {
    // After a Decline what the peer said tells more than that it did.
    let telling = if local == reason::PEER_DECL && peer != 0 { Reason(peer) } else { local };
    Mode::Tcp {
        reason: local.code(),
        reason_name: local.name(),
        peer_reason: peer,
        peer_reason_name: match local {
            // What stands there is the releases of both.
            reason::VERSION => "",
            _ if peer == 0 => "",
            _ => Reason(peer).name(),
        },
        words: match local {
            reason::VERSION => format!("{}: {}", telling.words(), Mismatch::of_word(peer)).into(),
            _ => telling.words().into(),
        },
        hint: telling.hint().into(),
    }
}

/// Connections that were frozen before their first look carry a reason but no inode. Where all of a
/// process say the same, its unnamed sockets are those.
fn reasons_of_the_unnamed(tables: &[Table]) -> BTreeMap<u32, Reason> {
    let mut reasons: BTreeMap<u32, Option<Reason>> = BTreeMap::new();
    for (table, conn) in tables.iter().flat_map(|table| table.live().map(move |conn| (table, conn)))
    {
        if conn.identity.inode.load(Relaxed) != 0 {
            continue;
        }
        // The process by its own word: in a PID namespace of its own, another number than here.
        let pid = conn.identity.pid.load(Relaxed);
        let Some(program) =
            table.programs.iter().find(|p| processes::inner_pid(p.pid) == Some(pid))
        else {
            continue;
        };
        let own = Reason(conn.identity.reason.load(Relaxed));
        reasons
            .entry(program.pid)
            .and_modify(|known| *known = known.filter(|&known| known == own))
            .or_insert(Some(own));
    }
    reasons.into_iter().filter_map(|(pid, reason)| Some((pid, reason?))).collect()
}

fn smc_state(conn: &Conn, phase: Phase) -> &'static str {
    use smc::conn::{ABORT, CLOSED, DONE};
    let ends = conn.rx.snapshot().ends;
    let done_here = phase.sends_are_shut();
    if phase.is_dead() || phase.is_broken() || ends & ABORT != 0 {
        "PROCESSABORT"
    } else if phase.is_closed() {
        if ends & CLOSED != 0 { "CLOSED" } else { "PEERCLOSEWAIT1" }
    } else if ends & CLOSED != 0 {
        if done_here { "APPFINCLOSEWAIT" } else { "APPCLOSEWAIT1" }
    } else if ends & DONE != 0 {
        if done_here { "APPCLOSEWAIT2" } else { "APPCLOSEWAIT1" }
    } else if done_here {
        "PEERCLOSEWAIT1"
    } else {
        "ACTIVE"
    }
}

fn detail(table: &Table, conn: &Conn, phase: Phase) -> Detail {
    let (gid, peer_gid) = table.gids(conn).unwrap_or_default();
    let (rx, tx) = (conn.rx.snapshot(), conn.tx.snapshot());
    let shut =
        |shut: bool, open: &'static str, closed: &'static str| if shut { closed } else { open };
    let sent_ends = shut(phase.sends_are_shut(), "00", "80");
    let tokens =
        [&conn.identity.my_token, &conn.identity.peer_token].map(|word| word.load(Relaxed));
    let group = conn.identity.group.load(Relaxed);
    Detail {
        shutdown: format!(
            "{}-{}",
            shut(phase.receives_are_shut(), "<", "R"),
            shut(phase.sends_are_shut(), ">", "W")
        ),
        token: tokens[0],
        peer_token: tokens[1],
        token_hex: format!("{:016x}", tokens[0]),
        peer_token_hex: format!("{:016x}", tokens[1]),
        link_group: group,
        link_group_id: groups::id(group),
        gid,
        peer_gid,
        device: conn.kind().name(),
        peer_pid: conn.identity.peer_pid.load(Relaxed),
        sends_through_ring: phase.sends_on_ring(),
        receives_through_ring: phase.receives_on_ring(),
        rcvbuf: rx.size,
        peerbuf: tx.size,
        rx_producer: cursor(rx.prod.wire()),
        rx_consumer: cursor(rx.cons.wire()),
        rx_flags: format!("00:{:02x}", rx.ends >> 56),
        tx_producer: cursor(tx.prod.wire()),
        tx_consumer: cursor(tx.cons.wire()),
        tx_flags: format!("00:{sent_ends}"),
        rx_bytes: conn.rx.counts.bytes.load(Relaxed),
        tx_bytes: conn.tx.counts.bytes.load(Relaxed),
        rx_calls: conn.rx.counts.calls.load(Relaxed),
        tx_calls: conn.tx.counts.calls.load(Relaxed),
        doorbells: conn.rx.counts.doorbells.load(Relaxed) + conn.tx.counts.doorbells.load(Relaxed),
        wakeups: Wakeups::of(&conn.wakeups),
    }
}

/// As smcss prints them: wrap and count.
fn cursor(word: u64) -> String {
    format!("{:04x}:{:08x}", word as u16, (word >> 16) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_look_as_in_smcss() {
        assert_eq!(cursor(0), "0000:00000000");
        assert_eq!(cursor(0x0a0b_0c0d_0102), "0102:0a0b0c0d");
    }

    #[test]
    fn the_peers_diagnosis_explains_a_decline() {
        let Mode::Tcp { words, reason, peer_reason, .. } =
            tcp(reason::PEER_DECL, reason::MAX_DMB.code())
        else {
            unreachable!("tcp")
        };
        assert_eq!(
            (&*words, reason, peer_reason),
            (reason::MAX_DMB.words(), 0x0500_0000, 0x030d_0000)
        );
        let Mode::Tcp { words, .. } = tcp(reason::NOT_YET, 0) else { unreachable!("tcp") };
        assert_eq!(words, reason::NOT_YET.words());
        let Mode::Tcp { words, .. } = tcp(reason::VERSION, 0x0101_0203) else {
            unreachable!("tcp")
        };
        assert!(words.ends_with("release 1 here, releases 2 to 3 there"), "{words}");
    }

    #[test]
    fn json_names_mode_and_reasons() {
        assert_eq!(serde_json::to_value(Mode::Smcd).unwrap()["mode"], "SMCD");
        let tcp = serde_json::to_value(tcp(reason::NOT_YET, 0)).unwrap();
        assert_eq!(
            (tcp["mode"].as_str(), tcp["reason"].as_u64(), tcp["reason_name"].as_str()),
            (Some("TCP"), Some(0x0999_1001), Some("NOT_YET"))
        );
    }
}
