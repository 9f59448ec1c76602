//! How a bell (`conn::bells`) comes to its wait: the wait asks for it in its peer's control page, and the peer, when it next has
//! to wake it, sends one over the channel of first contact and says so in the same page.

use super::*;
use crate::channel;
use crate::conn;
use crate::conn::Waits;
use crate::hidden;
use dibs::loopback::arena_of;

/// Bells that came and were not fetched yet, at most: more than waits ask for before they look.
const MOST: usize = 64;

/// A bell that came over the channel.
pub(super) struct Came {
    label: Label,
    /// Parked: at a number that the application could take it would pass for a file of the application's.
    pub fd: i32,
}

/// What a bell is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    arena: u64,
    wait: u32,
    number: u32,
}

impl Label {
    /// Bytes of it; no other message of the channel has as many.
    pub const LEN: usize = 16;

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut raw = [0; Self::LEN];
        raw[..8].copy_from_slice(&self.arena.to_ne_bytes());
        raw[8..12].copy_from_slice(&self.wait.to_ne_bytes());
        raw[12..].copy_from_slice(&self.number.to_ne_bytes());
        raw
    }

    /// What is not a label in full is none.
    pub fn of(raw: &[u8]) -> Option<Self> {
        let raw: &[u8; Self::LEN] = raw.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let mut arena = [0; 8];
        arena.copy_from_slice(&raw[..8]);
        Some(Self { arena: u64::from_ne_bytes(arena), wait: word(8), number: word(12) })
    }
}

/// Keeps what came until its wait fetches it.
pub(super) fn keep(came: &mut Vec<Came>, label: Label, fd: i32) {
    if came.len() == MOST {
        hidden::close(came.remove(0).fd);
    }
    came.push(Came { label, fd });
}

/// Closes what nobody has fetched.
pub(super) fn drop_all(came: &mut Vec<Came>) {
    came.drain(..).for_each(|bell| hidden::close(bell.fd));
}

/// Whether bells are given to a process, and taken from it. A pipe has one lock for all its ends, which a reader holds for as long
/// as its own memory takes to be written to: as long as it likes. So a peer could keep us in a write, or in the close of the
/// pipe; one of our own user can do worse without that.
pub(super) fn is_trusted(of: Cred) -> bool {
    of.uid == rustix::process::geteuid().as_raw()
}

/// Whether this is the process that has the group: a child that shares its memory has descriptors of its own.
fn is_ours(process: u32) -> bool {
    process == sys::getpid()
}

impl Group {
    pub(super) fn close_bells(&mut self) {
        self.bells.drain(..).for_each(|(_, bells)| bells.give_back());
    }
}

/// The bells of the waits in the control page of an own arena, by the token of a buffer in it; null if there can be none.
pub fn of(id: u32, token: u64) -> *const Bells {
    let arena = arena_of(token);
    let found = with(|list| {
        let g = list.iter_mut().find(|g| g.id == id && g.kind == Kind::Loopback)?;
        if let Some((_, bells)) = g.bells.iter().find(|(of, _)| *of == arena) {
            return Some(*bells);
        }
        let bells = conn::bells::take(id, arena, give)?;
        g.bells.push((arena, bells));
        Some(bells)
    });
    found.flatten().map_or(core::ptr::null(), core::ptr::from_ref)
}

/// Gives a wait the bell that it asks for, if there is a way to it.
#[cold]
fn give(bells: &Bells, page: &Waits, wait: u32, number: u32) {
    let (id, arena, process) = bells.whose();
    if !is_ours(process) {
        return;
    }
    let given = with(|list| {
        if bells.has(wait, number) {
            // Another thread was faster, and it is on its way. Who took an earlier one away may have said that there is none.
            page.given[wait as usize].store(number, Release);
            return true;
        }
        let group = list.iter_mut().find(|g| g.id == id && is_trusted(g.of));
        let lanes = group.and_then(|g| g.lanes.as_deref_mut());
        let label = Label { arena, wait, number };
        let sent = lanes
            .and_then(|lanes| bells.make(wait, number).map(|read| lanes.send(&label.to_bytes(), read)))
            .unwrap_or(false);
        if sent {
            // SYNC: given. Behind the message that brings it.
            page.given[wait as usize].store(number, Release);
        }
        sent
    });
    // In a signal handler that interrupted a use of the groups, or another one's, there is a next time.
    if given == Some(false) {
        bells.refuse(wait, number);
    }
}

/// Fetches the bell that a wait was given by the peer of a connection that it covers: a descriptor, parked, to be watched for
/// edges and never read. None if what came is no pipe: anything else could do more to whoever watches it.
pub fn fetch(conn: &Conn, wait: u32, number: u32) -> Option<i32> {
    let (id, token) = (conn.group.load(Relaxed), conn.peer_token.load(Relaxed));
    let label = Label { arena: arena_of(token), wait, number };
    if !is_ours(conn.pid.load(Relaxed)) {
        return None;
    }
    let fd = with(|list| {
        let group = list.iter_mut().find(|g| g.id == id && is_trusted(g.of))?;
        let lanes = group.lanes.as_deref_mut()?;
        lanes.take_all_in(true);
        let at = lanes.came.iter().position(|bell| bell.label == label)?;
        Some(lanes.came.swap_remove(at).fd)
    })??;
    let is_pipe = sys::kind_of(fd) == libc::S_IFIFO;
    if !is_pipe {
        hidden::close(fd);
    }
    is_pipe.then_some(fd)
}

const _: () = assert!(Label::LEN != lanes::LABEL && Label::LEN <= channel::MAX);
