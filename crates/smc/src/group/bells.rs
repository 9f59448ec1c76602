//! How the two ends of a bell (`conn::bells`) come to be in two processes. Of one user: the wait
//! asks for it in its peer's control page, and the peer, when it next has to wake it, sends one
//! over the channel of first contact and says so in the same page. Of different users: the wait
//! sends the peer the end to write to, and says in the page that it listens.

use super::*;
use crate::channel;
use crate::conn;
use crate::conn::Waits;
use crate::{hidden, home};
use alloc::vec::Vec;
use dibs::loopback::arena_of;

/// Bells that came and were not fetched yet, at most: more than waits ask for before they look.
const MOST: usize = 64;
/// Bytes, as the kernel counts them, that may lie unread on the channel when another bell is sent:
/// some ten messages. A peer that reads none would gather descriptors under way, of which our user
/// may have so many.
const UNREAD: i32 = 16 << 10;

/// What of the data of a registration in an epoll set tells that it is one of the library's.
pub const TAG: u64 = 0xffff_ffff << 32;
/// A bell. Below it are 24 bits of its number, and its place.
pub const BELL: u64 = 0x2b99_26c7 << 32;
/// A connection's registration, changed by the library.
pub const REGISTRATION: u64 = 0xb7e1_5163 << 32;

/// A bell that came over the channel.
pub(super) struct Came {
    pub label: Label,
    /// Parked: at a number that the application could take it would pass for a file of the
    /// application's.
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

/// Keeps what came until its wait fetches it. An earlier one of the same wait nobody asks for any
/// more.
pub(super) fn keep(came: &mut Vec<Came>, label: Label, fd: i32) {
    let is_old = |bell: &Came| (bell.label.arena, bell.label.wait) == (label.arena, label.wait);
    if let Some(at) = came.iter().position(is_old) {
        hidden::close(came.swap_remove(at).fd);
    }
    if came.len() == MOST {
        hidden::close(came.remove(0).fd);
    }
    came.push(Came { label, fd });
}

/// Closes what nobody has fetched.
pub(super) fn drop_all(came: &mut Vec<Came>) {
    came.drain(..).for_each(|bell| hidden::close(bell.fd));
}

/// Whether bells between us and a process are pipes. A pipe has one lock for all its ends, which a
/// reader holds for as long as its own memory takes to be written to: as long as it likes. So a
/// peer could keep us in a write, or in the close of the pipe; one of our own user can do worse
/// without that.
pub(super) fn is_trusted(of: Cred) -> bool {
    crate::user::is_own(of.uid)
}

impl Group {
    pub(super) fn close_bells(&mut self) {
        self.bells.drain(..).for_each(|(_, bells)| bells.give_back());
    }
}

/// The bells of the waits in the control page of an own arena, by the token of a buffer in it; null
/// if there can be none.
pub fn of(id: u32, token: u64) -> *const Bells {
    let arena = arena_of(token);
    let found = with(|list| {
        let g = list.iter_mut().find(|g| g.id == id && g.kind == Kind::Loopback)?;
        if let Some((_, bells)) = g.bells.iter().find(|(of, _)| *of == arena) {
            return Some(*bells);
        }
        let bells = conn::bells::take(id, arena, share)?;
        g.bells.push((arena, bells));
        Some(bells)
    });
    found.flatten().map_or(core::ptr::null(), core::ptr::from_ref)
}

/// Sees to it that this process has the bell of this number of a wait of its peer's, if there is a
/// way to it.
#[cold]
fn share(bells: &Bells, page: &Waits, wait: u32, number: u32, listens: bool) {
    let (id, arena, process) = bells.whose();
    if !home::is(process) {
        return;
    }
    let label = Label { arena, wait, number };
    let shared = with(|list| {
        if bells.has(wait, number) {
            // Another thread was faster, and it is on its way. Who took an earlier one away may
            // have said that there is none.
            page.given[wait as usize].store(number, Release);
            return true;
        }
        let Some(group) = list.iter_mut().find(|g| g.id == id) else { return false };
        let of = group.of;
        let Some(lanes) = group.lanes.as_deref_mut() else { return false };
        if listens {
            let Some(fd) = lanes.came(label, of) else { return false };
            let taken = may_ring(fd, of) && bells.take_made(wait, number, fd);
            if !taken {
                hidden::close(fd);
            }
            return taken;
        }
        let made = if is_trusted(of) { bells.make(wait, number) } else { None };
        let sent = made.is_some_and(|read| lanes.send(&label.to_bytes(), read));
        if sent {
            // SYNC: given. Behind the message that brings it.
            page.given[wait as usize].store(number, Release);
        }
        sent
    });
    // In a signal handler that interrupted a use of the groups, or another one's, there is a next
    // time.
    if shared == Some(false) {
        bells.refuse(wait, number);
    }
}

/// Whether this process can write to a descriptor that a peer has made, and close it, without
/// waiting: it is a connected Unix socket of that process, on which no descriptors lie, and none
/// can come to lie. A close waits for those of them, and they may take as long as their owner
/// likes. (That no bytes lie there does not say it: urgent ones are not counted.)
fn may_ring(fd: i32, of: Cred) -> bool {
    sys::is_connected_unix_stream(fd)
        && channel::peer(fd).is_some_and(|peer| peer.pid == of.pid)
        && sys::shutdown(fd, libc::SHUT_RD) == 0
        && sys::ioctl_int(fd, libc::FIONREAD) == Ok(0)
        && sys::descriptors_on(fd) == Some(0)
}

/// Where a bell comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// From here: the end to be watched, parked, and its number.
    Made(i32, u32),
    /// From the peer, if asked.
    Peer,
    /// Not now.
    Later,
    /// There is none to be had.
    Nowhere,
}

/// A number for a bell of ours, made here or asked for: never that of one before, which the peer
/// may have refused by now, or may still have. It would go on ringing that one, where nobody
/// listens any more. Nor is it taken from the page, where another bell's may have been.
pub fn number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Relaxed) % (u32::MAX >> 1) + 1
}

/// Makes a bell for a wait that is to be rung by the peer of a connection that it covers, if that
/// is another user's, and the wait sleeps `often`.
pub fn make(conn: &Conn, wait: u32, often: bool) -> Source {
    let (id, token) = (conn.link_group(), conn.tokens()[1]);
    if !home::is(conn.identity.pid.load(Relaxed)) {
        return Source::Nowhere;
    }
    let made = with(|list| {
        let group = list.iter_mut().find(|g| g.id == id)?;
        if is_trusted(group.of) {
            return Some(Source::Peer);
        }
        let lanes = group.lanes.as_deref_mut()?;
        if !often {
            return Some(Source::Later);
        }
        if !hidden::room_for_bells_of_strangers() || lanes.unread() > UNREAD {
            return None;
        }
        let [read, write] = sys::unix_pair().ok()?;
        let number = number();
        let label = Label { arena: arena_of(token), wait, number };
        // Where the kernel does not know how to keep descriptors off, the peer could keep us in the
        // close of what it has sent.
        let sent = channel::refuse_descriptors(read) && lanes.send(&label.to_bytes(), write);
        sys::close(write);
        if !sent {
            sys::close(read);
            return None;
        }
        Some(Source::Made(hidden::park(read), number))
    });
    // A signal handler that interrupted a use of the groups has to do without.
    made.map_or(Source::Later, |made| made.unwrap_or(Source::Nowhere))
}

/// Fetches the bell that a wait was given by the peer of a connection that it covers: a descriptor,
/// parked, to be watched for edges and never read. None if what came is no pipe: anything else
/// could do more to whoever watches it.
pub fn fetch(conn: &Conn, wait: u32, number: u32) -> Option<i32> {
    let (id, token) = (conn.link_group(), conn.tokens()[1]);
    let label = Label { arena: arena_of(token), wait, number };
    if !home::is(conn.identity.pid.load(Relaxed)) {
        return None;
    }
    let fd = with(|list| {
        let group = list.iter_mut().find(|g| g.id == id && is_trusted(g.of))?;
        let of = group.of;
        let lanes = group.lanes.as_deref_mut()?;
        lanes.came(label, of)
    })??;
    let is_pipe = sys::kind_of(fd) == libc::S_IFIFO;
    if !is_pipe {
        hidden::close(fd);
    }
    is_pipe.then_some(fd)
}

const _: () = assert!(Label::LEN != lanes::LABEL && Label::LEN <= channel::MAX);
