//! Two ends in one process.

use super::*;
use crate::provider::conformance;
use crate::provider::faulty::{Faults, Faulty};
use rustix::fd::IntoRawFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Connected queue pairs with `receives` and `memory` bytes on either side.
pub fn pair(receives: [u16; 2], memory: [usize; 2]) -> [QueuePair; 2] {
    static GROUP: AtomicU32 = AtomicU32::new(1 << 30);
    let sockets =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let own = [0, 1].map(|i| {
        let layout = Layout::new(receives[i], memory[i]).unwrap();
        let group = GROUP.fetch_add(1, Ordering::Relaxed);
        (
            DEVICE.register_dmb(group, DEVICE.gid(), layout.dmb_len().unwrap()).unwrap(),
            layout,
            group,
        )
    });
    let pid = std::process::id() as i32;
    let end = |i: usize, socket: RawFd| {
        let (mine, theirs) = (own[i], own[1 - i]);
        let peer =
            DEVICE.map_dmb(mine.2, DEVICE.gid(), theirs.0.token, theirs.0.len, None).unwrap();
        QueuePair::new((mine.0, mine.1), (peer, theirs.1), mine.2, socket, [pid, pid])
    };
    [end(0, sockets.0.into_raw_fd()), end(1, sockets.1.into_raw_fd())]
}

#[test]
fn conforms() {
    let [a, b] = pair([64, 16], [8192, 20_000]);
    conformance::run(&a, &b);
}

#[test]
fn conforms_with_late_completions() {
    let faults = Faults { inline: 16, full: 0, burst: 3, fail: 0 };
    let [a, b] = pair([64, 64], [8192, 8192]).map(|qp| Faulty::new(qp, faults, 12345));
    conformance::run(&a, &b);
}

/// The doorbell for the pieces of one send waits for the last of them, if the peer would take the
/// processor from the sender; those of the other lane do not, nor those for a peer elsewhere.
#[test]
fn a_peer_on_the_same_processor_is_woken_behind_the_last_piece() {
    let [a, b] = pair([64, 64], [8192, 8192]);
    let post = |lane| {
        let to = Remote { addr: b.memory().addr, key: b.memory().key };
        // SAFETY: bytes of a constant; nobody else posts.
        unsafe { a.post_write(lane, &[(b"piece".as_ptr(), 5)], to, Some(1), 1) }.unwrap();
    };
    let rung = || {
        let mut fds = [PollFd::from_borrowed_fd(b.socket(), PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    };
    // The peer's word: it has asked for its doorbell on this processor, or on another.
    let asks_on = |cpu: u32| {
        b.take_event();
        b.request_event();
        QueuePair::word(a.own, SLEPT_ON).store(cpu + 1, Ordering::Relaxed);
    };
    // A thread on one processor, so that it stays the same one.
    let cpu = rustix::thread::sched_getcpu();
    let mut only = rustix::thread::CpuSet::new();
    only.set(cpu);
    rustix::thread::sched_setaffinity(None, &only).unwrap();
    let here = cpu as u32;

    asks_on(here);
    assert!(a.peer_needs_this_processor());
    a.hold_events();
    post(Lane::Stream);
    post(Lane::Stream);
    assert!(!rung());
    a.release_events();
    assert!(rung());

    asks_on(here);
    a.hold_events();
    post(Lane::Control);
    assert!(rung());
    a.release_events();

    asks_on(here + 1);
    assert!(!a.peer_needs_this_processor());
    a.hold_events();
    post(Lane::Stream);
    assert!(rung());
    a.release_events();

    // Without a send of many pieces, as ever.
    asks_on(here);
    post(Lane::Stream);
    assert!(rung());
}

#[test]
fn layouts_of_a_peer_are_checked() {
    let good = Layout::new(384, 1 << 20).unwrap();
    let len = good.dmb_len().unwrap();
    assert_eq!(Layout::of_peer(good.stream_slots, good.memory, len), Some(good));
    for (slots, memory, len) in [
        (good.stream_slots, good.memory, len / 2),
        (500, 0, len),
        (1 << 18, 0, len),
        (0, 0, len),
        (512, u32::MAX, len),
    ] {
        assert_eq!(Layout::of_peer(slots, memory, len), None, "{slots} {memory} {len}");
    }
    assert_eq!(Layout::new(16, 1 << 30), None);
}

/// Whoever tells us so: where the peer's entries are is not a buffer of its application.
#[test]
fn the_control_lane_writes_to_the_connections_memory_alone() {
    let [a, b] = pair([64, 64], [8192, 8192]);
    let mut tables = vec![0u64; crate::provider::TABLES / 8];
    b.lend_tables(tables.as_mut_ptr().cast());
    let mut buffer = [0u8; 100];
    let region = b.expose(buffer.as_mut_ptr(), buffer.len()).unwrap();
    let to = Remote { addr: region.addr, key: region.key };
    // SAFETY: bytes of a constant; nobody else posts.
    let post = |lane| unsafe { a.post_write(lane, &[(b"piece".as_ptr(), 5)], to, None, 1) };
    assert_eq!(post(Lane::Control), Err(PostError::Access));
    assert_eq!(buffer, [0; 100]);
    assert_eq!(post(Lane::Stream), Ok(()));
    assert_eq!(&buffer[..5], b"piece");
    b.conceal(region);
    [a, b].iter().for_each(|end| end.close(true));
}
