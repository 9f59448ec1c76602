//! What other processes are told of this process's rsockets: rows in a memfd that readers of the
//! same user find as `/proc/PID/fd/N` by its name. Their layout is `shm::rsockets`.
//!
//! The descriptor is only there to be found: where an application that closes all descriptors gets at
//! it, the rows are out of sight, and nothing else happens. A fork child writes on in the same rows.
#![allow(unsafe_code)]

use crate::hidden;
use crate::kept::{Done, Kept};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use shm::rsockets::{Head, LOOPBACK, MAGIC, NAME, NO_INODE, ROWS, Row, VERBS};

/// Numbers below this one are left to the application.
const LOWEST: RawFd = 512;

#[repr(C)]
struct File {
    head: Head,
    rows: [Row; ROWS],
}

static PLACE: AtomicPtr<File> = AtomicPtr::new(null_mut());

/// The row of sockets that are not shown. What several count there at once means nothing.
pub fn unseen() -> &'static Row {
    static UNSEEN: Kept<Row> = Kept::new();
    UNSEEN.get_or_make(Row::default)
}

fn file() -> Option<&'static File> {
    // SAFETY: null, or a mapping that is never undone; zero is a valid value of it.
    unsafe { PLACE.load(Acquire).as_ref() }
}

/// A row for a socket, by its TCP socket, or without one over RDMA.
pub fn enter(tcp: Option<BorrowedFd<'_>>) -> &'static Row {
    static NUMBER: AtomicU64 = AtomicU64::new(NO_INODE);
    static MADE: Done = Done::new();
    MADE.once(|| {
        // Without memory or descriptors nothing is shown, and all else works.
        if let Ok(file) = make() {
            PLACE.store(file, Release);
        }
    });
    let key = match tcp {
        Some(fd) => fstat(fd).map_or(0, |stat| stat.st_ino),
        // Children of a fork count on from the same number: their process tells them apart.
        None => u64::from(std::process::id()) << 32 | (NUMBER.fetch_add(1, Relaxed) + 1),
    };
    let free = |row: &&Row| {
        row.key.load(Relaxed) == 0 && row.key.compare_exchange(0, key, Relaxed, Relaxed).is_ok()
    };
    let found = file().filter(|_| key != 0).and_then(|file| {
        let at = file.rows.iter().position(|row| free(&row))?;
        file.head.used.fetch_max(at as u64 + 1, Relaxed);
        Some(&file.rows[at])
    });
    let Some(row) = found else { return unseen() };
    row.clear();
    row.pid.store(std::process::id(), Relaxed);
    row
}

/// The socket is connected, and carried by this.
pub fn connected(row: &Row, is_verbs: bool, peer_pid: i32, buffers: [u32; 2]) {
    row.peer_pid.store(peer_pid.max(0).cast_unsigned(), Relaxed);
    row.rcvbuf.store(buffers[0], Relaxed);
    row.sndbuf.store(buffers[1], Relaxed);
    row.device.store(if is_verbs { VERBS } else { LOOPBACK }, Relaxed);
    if let Some(file) = file() {
        file.head.streams.add(1);
    }
}

/// A connection could not be made, or was broken.
pub fn failed() {
    if let Some(file) = file() {
        file.head.failed.add(1);
    }
}

/// Over RDMA the kernel has no list with names in it: own name, and the peer's.
pub fn name(row: &Row, names: &[libc::sockaddr_storage; 2]) {
    for (words, name) in row.names.iter().zip(names) {
        let at = core::ptr::from_ref(name);
        let (mut ip, port) = (
            [0u8; 16],
            match i32::from(name.ss_family) {
                // SAFETY: of that family, and large enough for any.
                libc::AF_INET => unsafe { (*at.cast::<libc::sockaddr_in>()).sin_port },
                // SAFETY: as above.
                libc::AF_INET6 => unsafe { (*at.cast::<libc::sockaddr_in6>()).sin6_port },
                _ => continue,
            },
        );
        if i32::from(name.ss_family) == libc::AF_INET {
            // SAFETY: as above.
            let address = unsafe { (*at.cast::<libc::sockaddr_in>()).sin_addr };
            ip[..4].copy_from_slice(&address.s_addr.to_ne_bytes());
        } else {
            // SAFETY: as above.
            ip = unsafe { (*at.cast::<libc::sockaddr_in6>()).sin6_addr }.s6_addr;
        }
        words[0].store(u64::from(name.ss_family) << 32 | u64::from(u16::from_be(port)), Relaxed);
        for (word, half) in words[1..].iter().zip(ip.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(half.try_into().unwrap_or_default()), Relaxed);
        }
    }
}

/// The last who had the socket is about to close it.
pub fn leave(row: &'static Row) {
    if let Some(file) = file().filter(|file| file.rows.as_ptr_range().contains(&(row as *const _)))
    {
        row.close(&file.head);
    }
}

fn make() -> rustix::io::Result<*mut File> {
    let memory = memfd_create(NAME, MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, size_of::<File>() as u64)?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { mmap(null_mut(), size_of::<File>(), prot, MapFlags::SHARED, &memory, 0) }?;
    let at = at.cast::<File>();
    // SAFETY: as long as the file, which is all zero.
    unsafe { &*at }.head.magic.store(MAGIC, Relaxed);
    // Where the numbers end before that it stays where it is.
    let high = rustix::io::fcntl_dupfd_cloexec(&memory, LOWEST);
    hidden::add(high.unwrap_or(memory).into_raw_fd());
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn a_socket_is_noted_until_it_is_closed() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let wanted = fstat(&socket).unwrap().st_ino;
        let is_noted = || {
            let rows = &file().expect("memory for the rows").rows;
            rows.iter().filter(|row| row.key.load(Relaxed) == wanted).count()
        };
        let row = enter(Some(socket.as_fd()));
        assert_eq!(is_noted(), 1);
        row.tx.count(10);
        let before = file().unwrap().head.ended[1].bytes.get();
        leave(row);
        assert_eq!(is_noted(), 0);
        assert!(file().unwrap().head.ended[1].bytes.get() >= before + 10);
    }

    #[test]
    fn over_rdma_rows_have_numbers() {
        let (one, other) = (enter(None), enter(None));
        let keys = [one, other].map(|row| row.key.load(Relaxed));
        assert!(keys.iter().all(|key| *key > NO_INODE) && keys[0] != keys[1]);
        leave(one);
        leave(other);
    }

    #[test]
    fn what_is_not_shown_has_a_place_to_count() {
        unseen().rx.count(1);
        leave(unseen());
    }
}
