//! An eventfd of another process, which is written without ever waiting.
//!
//! `write` to an eventfd whose counter is full waits, unless its description has O_NONBLOCK: and
//! that is the peer's to take away, as it has the same description. The kernel itself never
//! waits, when it tells by an eventfd that asynchronous I/O is done. So we have it do nothing, a
//! read of no bytes, and tell of that.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Mutex, OnceLock};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

/// Done and not yet taken out of the kernel's list. The limit of the system is 65536.
const ROOM: usize = 64;

/// `struct iocb` of linux/aio_abi.h. Two of its words change places with the order of bytes: both
/// are 0 here.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    bell: u32,
}

/// IOCB_FLAG_RESFD, beside IOCB_CMD_PREAD, which is 0.
const TELLS: u32 = 1;

/// `struct io_event`.
type Event = [u64; 4];

/// One for the process, and never given back: io_destroy sleeps.
struct Ringer {
    context: libc::c_ulong,
    nothing: OwnedFd,
}

static RINGER: OnceLock<Ringer> = OnceLock::new();
static MAKING: Mutex<()> = Mutex::new(());

fn check(result: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

impl Ringer {
    fn get() -> Result<&'static Ringer, Errno> {
        if let Some(ringer) = RINGER.get() {
            return Ok(ringer);
        }
        let _guard = MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(ringer) = RINGER.get() {
            return Ok(ringer);
        }
        let nothing = memfd_create(c"shortwire-nothing", MemfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: writes the word that it is given.
        check(unsafe { libc::syscall(libc::SYS_io_setup, ROOM as libc::c_uint, &mut context) })?;
        Ok(RINGER.get_or_init(|| Ringer { context, nothing }))
    }

    fn ring(&self, bell: &OwnedFd) -> Result<(), Errno> {
        let mut request = Request {
            file: self.nothing.as_raw_fd() as u32,
            flags: TELLS,
            bell: bell.as_raw_fd() as u32,
            ..Request::default()
        };
        let list = [ptr::from_mut(&mut request)];
        // SAFETY: one request, of the layout that the kernel has, which it copies.
        check(unsafe {
            libc::syscall(libc::SYS_io_submit, self.context, 1 as libc::c_long, list.as_ptr())
        })?;
        Ok(())
    }

    /// Takes those that are done out of the list, which has no room otherwise.
    #[cold]
    fn empty(&self) {
        let mut events: [Event; 2 * ROOM] = [[0; 4]; 2 * ROOM];
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes so many events at most, and does not wait.
        let _ = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0 as libc::c_long,
                events.len() as libc::c_long,
                events.as_mut_ptr(),
                &now,
            )
        };
    }
}

/// The eventfd by which a peer is woken.
pub struct Bell {
    file: OwnedFd,
    ringer: &'static Ringer,
}

impl Bell {
    pub fn new(file: OwnedFd) -> Result<Bell, Errno> {
        Ok(Bell { file, ringer: Ringer::get()? })
    }

    /// Adds one to its counter, if it has room.
    #[cold]
    pub fn ring(&self) {
        // Other threads may fill the list again, though not for ever.
        for _ in 0..16 {
            match self.ringer.ring(&self.file) {
                Err(Errno::AGAIN) => self.ringer.empty(),
                _ => return,
            }
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{read, write};

    #[test]
    fn each_ring_counts_beyond_the_room_for_those_that_are_done() {
        let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let bell = Bell::new(file).unwrap();
        let threads = [(); 3].map(|()| Bell::new(bell.file.try_clone().unwrap()).unwrap());
        std::thread::scope(|scope| {
            for bell in &threads {
                scope.spawn(|| (0..1000).for_each(|_| bell.ring()));
            }
        });
        let mut count = [0; 8];
        assert_eq!(read(&bell, &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), 3000);
    }

    /// As its maker may have it: full, and without O_NONBLOCK. A `write` would never end.
    #[test]
    fn a_counter_that_is_full_is_not_waited_for() {
        let file = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        write(&file, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let bell = Bell::new(file).unwrap();
        (0..3).for_each(|_| bell.ring());
        let mut count = [0; 8];
        assert_eq!(read(&bell, &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), u64::MAX);
    }
}
