//! Link groups, from the census that the library keeps in its table.

use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use smc::census::{Row, State};
use smc::clc::{Gid, Os};
use smc::conn::Conn;
use smc::kind::Kind;
use smc::pnet::PnetId;

use super::tables::Table;

/// One end's half of a link group.
#[derive(Clone, Serialize)]
pub struct LinkGroup {
    /// As messages name it; each process counts its own.
    pub id: u32,
    pub vlan: u16,
    pub connections: usize,
    pub pnet_id: String,
    pub device: &'static str,
    pub chid: String,
    pub role: &'static str,
    pub state: &'static str,
    pub version: u8,
    pub release: u32,
    pub peer_host: String,
    pub peer_os: String,
    pub eid: String,
    /// Whether a checksum goes along with what is copied.
    pub integrity: bool,
    /// Bytes of the peer's buffers, which stand for send buffers, and of our own.
    pub sndbuf: u64,
    pub dmb: u64,
    pub gid: String,
    pub peer_gid: String,
    pub pid: u32,
    pub program: String,
    pub peer_pid: u32,
    pub peer_uid: u32,
}

impl Table {
    /// The groups of living processes, and those of ended ones that children still use.
    pub fn link_groups(&self) -> Vec<LinkGroup> {
        self.rows().iter().filter_map(|row| self.link_group(row)).collect()
    }

    /// The GIDs at both ends of a connection.
    pub fn gids(&self, conn: &Conn) -> Option<(String, String)> {
        let wanted = (conn.identity.pid.load(Relaxed), conn.identity.group.load(Relaxed));
        let row = self
            .rows()
            .iter()
            .find(|row| (row.pid.load(Relaxed), row.id.load(Relaxed)) == wanted)?;
        Some((gid(&row.gid), gid(&row.peer_gid)))
    }

    fn link_group(&self, row: &Row) -> Option<LinkGroup> {
        let (pid, id) = (row.pid.load(Relaxed), row.id.load(Relaxed));
        let of = |conn: &&Conn| {
            conn.is_committed()
                && (conn.identity.pid.load(Relaxed), conn.identity.group.load(Relaxed)) == (pid, id)
                && conn.identity.my_token.load(Relaxed) != 0
        };
        let connections: Vec<&Conn> = self.live().filter(of).collect();
        let program = self.programs.iter().find(|program| program.pid == pid);
        if pid == 0 || program.is_none() && connections.is_empty() {
            return None;
        }
        let state = row.state.load(Relaxed);
        let os = row.os.load(Relaxed) as u8;
        let chid = row.chid.load(Relaxed) as u16;
        let pnet = row.pnet();
        Some(LinkGroup {
            id: self::id(id),
            vlan: 0,
            connections: connections.len(),
            pnet_id: if pnet == [0; 16] { "n/a".into() } else { PnetId(pnet).to_string() },
            device: Kind::of_chid(chid).map_or("?", Kind::name),
            chid: format!("{chid:04x}"),
            role: if row.server.load(Relaxed) != 0 { "SERV" } else { "CLNT" },
            state: match [State::Pending, State::Ready, State::Dead]
                .into_iter()
                .find(|s| *s as u32 == state)
            {
                Some(_) if Kind::of_chid(chid).is_some_and(|kind| self.lost(kind)) => "ENDING",
                Some(State::Pending) => "PENDING",
                Some(State::Ready) => "READY",
                Some(State::Dead) => "ENDING",
                None => "?",
            },
            version: 2,
            release: row.release.load(Relaxed),
            peer_host: row.host().to_string(),
            peer_os: if os == 0 { String::new() } else { Os::new(os).to_string() },
            eid: row.eid().to_string(),
            integrity: row.checked.load(Relaxed) != 0,
            sndbuf: connections.iter().map(|conn| u64::from(conn.tx.snapshot().size)).sum(),
            dmb: connections.iter().map(|conn| u64::from(conn.rx.snapshot().size)).sum(),
            gid: gid(&row.gid),
            peer_gid: gid(&row.peer_gid),
            pid,
            program: program.map_or_else(|| "-".into(), |program| program.name.clone()),
            peer_pid: row.peer_pid.load(Relaxed),
            peer_uid: row.peer_uid.load(Relaxed),
        })
    }
}

/// The id of the group with this number: in messages the low byte counts something else.
pub fn id(number: u32) -> u32 {
    number << 8
}

fn gid(words: &[std::sync::atomic::AtomicU64; 2]) -> String {
    Gid { hi: words[0].load(Relaxed), lo: words[1].load(Relaxed) }.to_string()
}
