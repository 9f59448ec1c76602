//! Where lookers come to an engine's thread, and what they may say.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, IoSlice};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, recv, send, sendmsg, socket_with,
};

use super::ring::Writer;

/// Its name in the folder of a thread.
const NAME: &str = "look";
/// The first word of a request; another version of this protocol has another one.
pub(super) const HELLO: &str = "shortwire-look-1";
pub(super) const GRANTED: &[u8] = b"ok";
/// Longest request, and longest answer.
pub(super) const MESSAGE: usize = 4096;
/// Lookers that a thread serves at once; each costs it a copy of what it looks at, and 16 MiB.
const MOST: usize = 4;
/// Most packets of which one looker sees the ways: one with a filter follows many and shows few.
pub(crate) const MOST_TRACED: u32 = 1_000_000;
/// Nanoseconds that a looker may take to say what it wants.
const PATIENCE: u64 = 2_000_000_000;

/// What a looker wants to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// All packets that go into a link.
    Capture(String),
    /// The ways of so many packets.
    Trace(u32),
}

impl Request {
    pub fn to_text(&self) -> String {
        match self {
            Self::Capture(link) => format!("{HELLO} capture {link}"),
            Self::Trace(count) => format!("{HELLO} trace {count}"),
        }
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = std::str::from_utf8(bytes).ok()?.strip_prefix(HELLO)?.strip_prefix(' ')?;
        match rest.split_once(' ')? {
            ("capture", link) => Some(Self::Capture(link.to_string())),
            ("trace", count) => {
                count.parse().ok().filter(|count| *count <= MOST_TRACED).map(Self::Trace)
            }
            _ => None,
        }
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// An address takes 108 bytes, a path in a folder may be longer: the folder is named by a
/// descriptor.
fn at<R>(
    folder: &Path,
    call: impl FnOnce(&SocketAddrUnix) -> Result<R, Errno>,
) -> Result<R, Errno> {
    use std::os::fd::AsRawFd;
    let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    call(&SocketAddrUnix::new(format!("/proc/self/fd/{}/{NAME}", folder.as_raw_fd()))?)
}

/// A connection to the thread whose folder this is.
pub(super) fn reach(folder: &Path) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    at(folder, |address| connect(&socket, address))?;
    Ok(socket)
}

/// Who has connected and not yet said what for.
struct Guest {
    socket: OwnedFd,
    until: u64,
}

/// One looker that was served.
pub(crate) struct Peer(OwnedFd);

/// The socket of a thread.
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    guests: Vec<Guest>,
}

impl Listener {
    /// Listens in the folder of this thread. Only this user and root can connect.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(NAME);
        let socket = socket()?;
        // That of a thread that crashed.
        let _ = fs::remove_file(&path);
        at(folder, |address| bind(&socket, address))?;
        // Nobody can connect before it listens.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        listen(&socket, MOST as i32)?;
        Ok(Self { socket, path, guests: Vec::new() })
    }

    /// Takes in who has come; gives who has said what it wants.
    pub fn poll(&mut self, now: u64) -> Option<(Peer, Request)> {
        while self.guests.len() < MOST
            && let Ok(socket) =
                accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        {
            let own = rustix::process::geteuid();
            let known =
                socket_peercred(&socket).is_ok_and(|peer| peer.uid == own || peer.uid.is_root());
            if known {
                self.guests.push(Guest { socket, until: now + PATIENCE });
            }
        }
        let mut message = [0; MESSAGE];
        let mut place = 0;
        while let Some(guest) = self.guests.get(place) {
            match recv(&guest.socket, &mut message[..], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) if now < guest.until => place += 1,
                Ok((_, length)) if length > 0 => {
                    let peer = Peer(self.guests.swap_remove(place).socket);
                    match Request::parse(&message[..length.min(MESSAGE)]) {
                        Some(request) => return Some((peer, request)),
                        None => peer.refuse(
                            "not understood, or too much: is this engine of another version?",
                        ),
                    }
                }
                _ => drop(self.guests.swap_remove(place)),
            }
        }
        None
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Peer {
    /// Says why not. A looker that does not read it has lost it.
    pub fn refuse(self, why: &str) {
        let why = &why.as_bytes()[..why.len().min(MESSAGE)];
        let _ = send(&self.0, why, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Hands the memory over.
    pub fn grant(&self, ring: &mut Writer) -> Result<(), Errno> {
        let memory = [ring.memory().ok_or(Errno::BADF)?];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&memory));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(self.0.as_fd(), &[IoSlice::new(GRANTED)], &mut ancillary, flags)?;
        ring.forget_memory();
        Ok(())
    }

    /// It has gone, or says something that it has no right to.
    pub fn is_gone(&self) -> bool {
        let mut byte = [0];
        !matches!(
            recv(&self.0, &mut byte[..], RecvFlags::DONTWAIT),
            Err(Errno::AGAIN | Errno::INTR)
        )
    }
}

/// Whether there is room for one more.
pub(crate) fn is_room(served: usize) -> bool {
    served < MOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_is_written_and_has_bounds() {
        for request in [Request::Capture("a.x -> b.y".into()), Request::Trace(MOST_TRACED)] {
            assert_eq!(Request::parse(request.to_text().as_bytes()), Some(request));
        }
        for text in ["trace 1000001", "trace 4294967296", "trace -1", "trace", "show 1", ""] {
            assert_eq!(Request::parse(format!("{HELLO} {text}").as_bytes()), None, "{text}");
        }
    }
}
