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
