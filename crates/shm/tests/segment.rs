//! Segments against files that are not what they should be.
#![allow(unsafe_code)]
#![cfg(not(loom))]

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate};
use rustix::fs::{memfd_create, open};
use rustix::io::{Errno, FdFlags, fcntl_getfd};
use rustix::mm::{MprotectFlags, mprotect};
use shm::segment::{PAGE, kernel_page};
use shm::{OpenError, Segment};

fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: open for as long as the segment that it came from is.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn file(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("test", flags).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn read(p: *const u8) -> u8 {
    // SAFETY: within a mapping of the test.
    unsafe { p.read_volatile() }
}

fn write(p: *mut u8, v: u8) {
    // SAFETY: within a mapping of the test.
    unsafe { p.write_volatile(v) }
}

/// What the kernel maps at `addr`.
fn mapping(addr: *const u8) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .find(|line| {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let hex = |s| usize::from_str_radix(s, 16).unwrap();
            (hex(from)..hex(to)).contains(&addr.addr())
        })
        .map(String::from)
}

#[test]
fn a_discarded_part_is_zeros_and_costs_nothing() {
    let page = kernel_page();
    let a = Segment::create(c"test", 8 * page).unwrap();
    let b = Segment::open(a.fd().unwrap(), page, 8 * page).unwrap();
    let at = |place: usize| read(b.base().wrapping_add(place));
    for place in 0..8 {
        write(a.base().wrapping_add(place * page), 1);
    }
    let blocks = || rustix::fs::fstat(borrow(a.fd().unwrap())).unwrap().st_blocks;
    let before = blocks();
    assert!(a.discard(page, 6 * page));
    assert!(blocks() < before);
    for place in 0..8 {
        assert_eq!(at(place * page), u8::from(place == 0 || place == 7), "page {place}");
    }
    assert!(!a.discard(page + 1, page), "no page lies within");
}

/// As a buffer lies where the kernel's pages are larger than the unit of our layouts.
#[test]
fn nothing_beside_a_discarded_part_is_lost() {
    let page = kernel_page();
    let a = Segment::create(c"test", 4 * page).unwrap();
    for place in 0..8 * 2 {
        write(a.base().wrapping_add(place * page / 4), 1);
    }
    assert!(a.discard(page / 2, 2 * page));
    for place in 0..8 * 2 {
        let within = (2..10).contains(&place);
        assert_eq!(read(a.base().wrapping_add(place * page / 4)), u8::from(!within), "{place}");
    }
}

#[test]
fn both_mappings_are_the_same_memory() {
    let a = Segment::create(c"test", 4 * PAGE).unwrap();
    let b = Segment::open(a.fd().unwrap(), PAGE, 4 * PAGE).unwrap();
    assert_eq!((a.len(), b.len()), (4 * PAGE, 4 * PAGE));
    assert_ne!(a.base(), b.base());
    assert!(b.fd().is_none());
    let last = 4 * PAGE - 1;
    assert_eq!(read(b.base().wrapping_add(last)), 0);
    write(a.base().wrapping_add(last), 7);
    assert_eq!(read(b.base().wrapping_add(last)), 7);
    write(b.base(), 9);
    drop(b);
    assert_eq!(read(a.base()), 9);
}

#[test]
fn nobody_can_resize_or_unseal_it() {
    let s = Segment::create(c"test", 2 * PAGE).unwrap();
    let fd = borrow(s.fd().unwrap());
    for len in [0, PAGE as u64, 3 * PAGE as u64] {
        assert_eq!(ftruncate(fd, len), Err(Errno::PERM));
    }
    assert_eq!(fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
    let bigger = fallocate(fd, FallocateFlags::empty(), 0, 3 * PAGE as u64);
    assert_eq!(bigger, Err(Errno::PERM));
}

#[test]
fn holes_punched_by_a_peer_read_as_zeros() {
    let s = Segment::create(c"test", 2 * PAGE).unwrap();
    write(s.base(), 5);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(borrow(s.fd().unwrap()), hole, 0, 2 * PAGE as u64).unwrap();
    assert_eq!(read(s.base()), 0);
}

#[test]
fn files_that_could_be_resized_are_refused() {
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
        let f = file(PAGE as u64, seals);
        let opened = Segment::open(f.as_raw_fd(), PAGE, PAGE);
        assert_eq!(opened.unwrap_err(), OpenError::NotSealed);
    }
}

#[test]
fn what_is_no_memfd_is_refused() {
    let (pipe, _w) = rustix::pipe::pipe().unwrap();
    let null = open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    let plain = std::fs::File::open("/proc/self/status").unwrap();
    for fd in [pipe.as_fd(), null.as_fd(), plain.as_fd()] {
        let opened = Segment::open(fd.as_raw_fd(), 1, usize::MAX);
        assert_eq!(opened.unwrap_err(), OpenError::NotMemfd);
    }
    for fd in [-1, i32::MIN, i32::MAX] {
        let opened = Segment::open(fd, 1, usize::MAX);
        assert_eq!(opened.unwrap_err(), OpenError::Os(Errno::BADF));
    }
}

#[test]
fn huge_pages_are_refused() {
    // Their faults fail with SIGBUS when the pool is empty.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let Ok(fd) = memfd_create("test", flags) else {
        println!("skipped: no hugetlb memfds on this kernel");
        return;
    };
    if ftruncate(&fd, 2 << 20).is_err() {
        println!("skipped: no huge pages of 2 MiB");
        return;
    }
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let opened = Segment::open(fd.as_raw_fd(), PAGE, 2 << 20);
    assert_eq!(opened.unwrap_err(), OpenError::NotMemfd);
}

#[test]
fn sizes_are_checked() {
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let page = PAGE as u64;
    for (len, min, max, good) in [
        (2 * page, PAGE, 2 * PAGE, true),
        (2 * page, 2 * PAGE, 2 * PAGE, true),
        (page, 2 * PAGE, 4 * PAGE, false),
        (5 * page, 2 * PAGE, 4 * PAGE, false),
        (2 * page + 1, PAGE, 4 * PAGE, false),
        (1, 0, 4 * PAGE, false),
        (0, 0, 4 * PAGE, false),
        (1 << 50, PAGE, 4 * PAGE, false),
    ] {
        let f = file(len, sealed);
        match Segment::open(f.as_raw_fd(), min, max) {
            Ok(s) => assert!(good && s.len() as u64 == len),
            Err(e) => assert!(!good && e == OpenError::BadSize(len), "{len} {e:?}"),
        }
    }
    assert_eq!(Segment::create(c"test", 0).unwrap_err(), Errno::INVAL);
    assert_eq!(Segment::create(c"test", PAGE + 1).unwrap_err(), Errno::INVAL);
}

#[test]
fn readers_cannot_write() {
    let s = Segment::create_sealed_for_readers(c"test", PAGE).unwrap();
    let fd = s.fd().unwrap();
    assert_eq!(Segment::open(fd, PAGE, PAGE).unwrap_err(), OpenError::Os(Errno::PERM));
    assert_eq!(rustix::io::pwrite(borrow(fd), b"x", 0), Err(Errno::PERM));
    let r = Segment::open_readonly(fd, PAGE, PAGE).unwrap();
    let rw = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the mapping of `r`, which no code assumes to be read-only.
    let opened_up = unsafe { mprotect(r.base().cast(), PAGE, rw) };
    assert_eq!(opened_up, Err(Errno::ACCESS));
    write(s.base(), 3);
    assert_eq!(read(r.base()), 3);
}

#[test]
fn the_descriptor_is_out_of_the_way() {
    let s = Segment::create(c"test", PAGE).unwrap();
    let fd = s.fd().unwrap();
    assert!(fd >= 64, "{fd}");
    assert_eq!(fcntl_getfd(borrow(fd)).unwrap(), FdFlags::CLOEXEC);
}

#[test]
fn a_stolen_descriptor_is_left_alone() {
    let s = Segment::create(c"test", PAGE).unwrap();
    let fd = s.fd().unwrap();
    // What closefrom and a few opens do.
    let other = file(PAGE as u64, SealFlags::empty());
    // SAFETY: both numbers are open; the segment's is taken away from it on purpose.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    assert_eq!(s.fd(), None);
    drop(s);
    ftruncate(borrow(fd), 1).expect("still open");
    // SAFETY: the test's own copy by now.
    unsafe { rustix::io::close(fd) };
}

#[test]
fn dropped_means_gone() {
    let mut s = Segment::create(c"shm-test-drop", PAGE).unwrap();
    let (base, fd) = (s.base(), s.fd().unwrap());
    assert!(mapping(base).unwrap().contains("shm-test-drop"));
    s.close_fd();
    assert_eq!(s.fd(), None);
    drop(s);
    assert!(!mapping(base).is_some_and(|m| m.contains("shm-test-drop")));
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    assert!(!name.is_ok_and(|n| n.to_string_lossy().contains("shm-test-drop")));
}

#[test]
fn retired_memory_is_zero_and_writable_but_private() {
    let s = Segment::create(c"shm-test-retire", 2 * PAGE).unwrap();
    let peer = Segment::open(s.fd().unwrap(), PAGE, 2 * PAGE).unwrap();
    write(s.base(), 1);
    let retired = s.retire();
    let (base, len) = (retired.base(), retired.len());
    assert_eq!(len, 2 * PAGE);
    assert!(!mapping(base).unwrap().contains("shm-test-retire"));
    assert_eq!((read(base), read(base.wrapping_add(len - 1))), (0, 0));
    write(base, 2);
    assert_eq!(read(peer.base()), 1);
}

#[test]
fn retired_addresses_serve_again() {
    let s = Segment::create(c"shm-test-old", 2 * PAGE).unwrap();
    let place = s.base();
    let retired = s.retire();
    let mut other = Segment::create(c"shm-test-other", PAGE).unwrap();
    let at = other.base();
    let mut new = Segment::create(c"shm-test-new", 2 * PAGE).unwrap();
    let peer = Segment::open(new.fd().unwrap(), PAGE, 2 * PAGE).unwrap();
    write(new.base(), 7);
    new.settle_on(retired);
    assert_eq!((new.base(), read(place)), (place, 7));
    write(place, 8);
    assert_eq!(read(peer.base()), 8);
    assert!(mapping(place).unwrap().contains("shm-test-new"));
    // One of another length stays where it is.
    other.settle_on(new.retire());
    assert_eq!((other.base(), read(place)), (at, 0));
}

#[test]
fn what_is_left_stays_mapped() {
    let s = Segment::create(c"shm-test-leave", PAGE).unwrap();
    let (base, fd) = (s.base(), s.fd().unwrap());
    write(base, 4);
    s.leave();
    assert_eq!(read(base), 4);
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    assert!(!name.is_ok_and(|n| n.to_string_lossy().contains("shm-test-leave")));
}
