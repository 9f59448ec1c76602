//! Which of this process's TCP sockets are rsockets, for `shortwire ss`: their inodes, in a memfd
//! that readers of the same user find as `/proc/PID/fd/N` by its name. It says nothing else, since
//! the kernel's list has addresses and states.
//!
//! The descriptor is only there to be found: an application that closes all descriptors takes the
//! rows out of sight, and nothing else happens. A fork child writes on in the same rows.
#![allow(unsafe_code)]

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::sync::Once;

/// Sockets that can be shown at a time, as many as a process may have.
const ROWS: usize = 4096;
/// Numbers below this one are left to the application.
const LOWEST: RawFd = 512;

type Rows = [AtomicU64; ROWS];

static PLACE: AtomicPtr<Rows> = AtomicPtr::new(null_mut());

/// Notes a socket.
pub fn enter(fd: BorrowedFd<'_>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Without memory or descriptors nothing is shown, and all else works.
        if let Ok(rows) = make() {
            PLACE.store(rows, Release);
        }
    });
    change(0, inode(fd));
}

/// The last who had the socket is about to close it.
pub fn leave(fd: BorrowedFd<'_>) {
    change(inode(fd), 0);
}

fn inode(fd: BorrowedFd<'_>) -> u64 {
    fstat(fd).map_or(0, |stat| stat.st_ino)
}

fn change(from: u64, to: u64) {
    // SAFETY: null, or a mapping that is never undone; zero is a valid row.
    let Some(rows) = (unsafe { PLACE.load(Acquire).as_ref() }) else { return };
    if from | to != 0 {
        // A row that another one takes in between is not there any more: the next.
        let _ = rows.iter().any(|row| {
            row.load(Relaxed) == from && row.compare_exchange(from, to, Relaxed, Relaxed).is_ok()
        });
    }
}

fn make() -> rustix::io::Result<*mut Rows> {
    let file = memfd_create(c"shortwire-rsockets", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, size_of::<Rows>() as u64)?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { mmap(null_mut(), size_of::<Rows>(), prot, MapFlags::SHARED, &file, 0) }?;
    // Where the numbers end before that it stays where it is.
    let high = rustix::io::fcntl_dupfd_cloexec(&file, LOWEST);
    let _ = high.unwrap_or(file).into_raw_fd();
    Ok(at.cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn a_socket_is_noted_until_it_is_closed() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let wanted = inode(socket.as_fd());
        let is_noted = || {
            // SAFETY: as in `change`.
            let rows = unsafe { PLACE.load(Acquire).as_ref() }.expect("memory for the rows");
            rows.iter().filter(|row| row.load(Relaxed) == wanted).count()
        };
        enter(socket.as_fd());
        assert_eq!(is_noted(), 1);
        leave(socket.as_fd());
        assert_eq!(is_noted(), 0);
    }
}
