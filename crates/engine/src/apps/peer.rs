//! A peer at a Unix socket that hands descriptors over, none of which may hold the engine.
//!
//! The last close of a descriptor may sleep as long as its maker likes: of a TCP socket with
//! SO_LINGER, of a file whose file system is a program, of a Unix socket in whose queue such
//! descriptors lie. So nothing of a peer is closed by an engine's thread but what is known not to
//! wait; all else goes to a thread of its own, of which a peer gets few. The kernel closes in the
//! receiver's thread, too: what it has no number or no room for. So a message is looked at first
//! (MSG_PEEK) and taken while all that came with it is here: neither close is the last one then.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

pub(super) mod bell;
mod broken;
pub(super) mod files;
pub(super) mod notices;
pub(super) mod seat;

pub use broken::Broken;
pub(super) use broken::PATIENCE;

/// Most descriptors of a message: a table of memory has eight.
pub(super) const MOST_FILES: usize = 8;
/// Most pieces of a packet: one of a standard frame that is in more makes work for nobody's use.
pub(super) const MOST_PIECES: usize = 64;
/// Closes of one interface that may be under way when another peer is met.
const MOST_LEAVING: usize = 16;

/// What a peer has left behind and is still being closed, of one interface.
#[derive(Debug, Clone, Default)]
pub struct Leaving(Arc<AtomicUsize>);

impl Leaving {
    /// Whether another peer may be met, or another message be read.
    pub fn is_room(&self) -> bool {
        self.count() < MOST_LEAVING
    }

    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Drops it where it may sleep. If there is no thread to be had, the drop is here.
    #[cold]
    pub fn drop(&self, what: impl Send + 'static) {
        let count = self.0.clone();
        count.fetch_add(1, Ordering::Relaxed);
        let close = move || {
            drop(what);
            count.fetch_sub(1, Ordering::Relaxed);
        };
        let spawned = std::thread::Builder::new().name("shortwire-close".into()).spawn(close);
        if spawned.is_err() {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The file system behind memfds of ordinary pages.
const TMPFS_MAGIC: u32 = 0x0102_1994;

/// Whether no access to a mapping of the file can be a SIGBUS: its owner cannot cut it off, and it
/// is not of huge pages, of which none may be left when one is first used.
pub(super) fn is_safe_to_map(file: BorrowedFd) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
        && fstatfs(file).is_ok_and(|system| system.f_type as u32 == TMPFS_MAGIC)
}

/// Why a peer's descriptors are not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Socket(Errno),
    /// Too many, or of a kind that has no use here.
    Files,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An eventfd.
    Bell,
    /// Of tmpfs or hugetlbfs.
    Memory,
    /// Of another file system.
    File,
    Other,
}

impl Kind {
    /// Asks nothing of the file itself, whose file system may be the peer's. What the kernel says
    /// of an eventfd begins with no slash, so no name of a file looks like it.
    fn of(file: &OwnedFd, trusted: bool) -> Kind {
        if fcntl_get_seals(file).is_ok() {
            return Kind::Memory;
        }
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        if name.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]") {
            return Kind::Bell;
        }
        let is_file =
            || fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        if trusted && is_file() { Kind::File } else { Kind::Other }
    }
}

/// A descriptor that a peer has handed over.
#[derive(Debug)]
pub struct Foreign {
    file: Option<OwnedFd>,
    kind: Kind,
    leaving: Leaving,
}

impl Foreign {
    fn new(file: OwnedFd, trusted: bool, leaving: &Leaving) -> Self {
        let kind = Kind::of(&file, trusted);
        Self { file: Some(file), kind, leaving: leaving.clone() }
    }

    /// The eventfd that it is.
    pub fn into_bell(mut self) -> Option<OwnedFd> {
        self.file.take_if(|_| self.kind == Kind::Bell)
    }

    /// The file with memory that it is.
    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        let file = self.file.as_ref().filter(|_| matches!(self.kind, Kind::Memory | Kind::File));
        file.map(AsFd::as_fd)
    }

    /// Closes what is here once more, or memory that is mapped: its file is kept, so that this is
    /// not its end.
    pub fn close_copy(mut self) {
        drop(self.file.take_if(|_| self.kind == Kind::Memory));
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        match self.file.take() {
            // Its end wakes who waits for it, and waits for nobody.
            Some(file) if self.kind == Kind::Bell => drop(file),
            // To free much memory takes its time as well.
            Some(file) => self.leaving.drop(file),
            None => {}
        }
    }
}

/// The socket to a peer. Messages that were not read may hold descriptors: it is closed elsewhere.
#[derive(Debug)]
pub struct Peer {
    socket: Option<OwnedFd>,
    leaving: Leaving,
    /// Files of any file system are taken for memory: their owner is trusted.
    trusted: bool,
}

impl Peer {
    pub fn new(socket: OwnedFd, leaving: &Leaving, trusted: bool) -> Self {
        Self { socket: Some(socket), leaving: leaving.clone(), trusted }
    }

    pub fn leaving(&self) -> &Leaving {
        &self.leaving
    }

    /// Some of what the peer says, and up to `most` descriptors. The length may be more than there
    /// is room for, of a message that is cut off. None: nothing has come.
    pub fn receive(
        &self,
        part: &mut [u8],
        most: usize,
    ) -> Result<Option<(usize, Vec<Foreign>)>, Refused> {
        let Some((length, seen)) = self.message(part, most, RecvFlags::PEEK)? else {
            return Ok(None);
        };
        if length == 0 {
            return Ok(Some((0, seen)));
        }
        let room = part.len().min(length);
        // A look into a stream also shows what comes with the byte behind its last one.
        let taken = self.message(&mut part[..room], most, RecvFlags::empty())?;
        let files = taken.map_or_else(Vec::new, |(_, files)| files);
        seen.into_iter().for_each(Foreign::close_copy);
        Ok(Some((length, files)))
    }

    fn message(
        &self,
        part: &mut [u8],
        most: usize,
        how: RecvFlags,
    ) -> Result<Option<(usize, Vec<Foreign>)>, Refused> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC | how;
        let message = match recvmsg(self, &mut [IoSliceMut::new(part)], &mut ancillary, flags) {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(Refused::Socket(errno)),
        };
        let files = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let files: Vec<_> =
            files.flatten().map(|file| Foreign::new(file, self.trusted, &self.leaving)).collect();
        let unfit = |file: &Foreign| file.kind == Kind::Other;
        if message.flags.contains(ReturnFlags::CTRUNC)
            || files.len() > most
            || files.iter().any(unfit)
        {
            return Err(Refused::Files);
        }
        Ok(Some((message.bytes, files)))
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Some(socket) => socket.as_fd(),
            None => unreachable!("taken by the drop alone"),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.leaving.drop(socket);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
