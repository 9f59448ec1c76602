//! What is particular to verbs, over the software provider, beside the suite for all devices.
#![allow(unsafe_code)]

use super::*;
use crate::conformance::{Pair, run};
use crate::faults;

const LEN: u32 = 1 << 14;
const GROUP: u32 = 0;

fn me() -> i32 {
    std::process::id() as i32
}

/// Two devices of a process with a link between them.
fn pair(slots: u32, max_dmbs: u32) -> (Box<Verbs>, Box<Verbs>) {
    let ends = [0; 2].map(|_| Box::new(Verbs::with_limits(slots, max_dmbs)));
    let [a, b] = &ends;
    a.admit(b.gid());
    b.admit(a.gid());
    for (own, peer) in [(a, b), (b, a)] {
        assert_eq!(own.open(true), Ok(Provider::Software), "these machines have no RDMA");
        // The link comes with the first buffer.
        let first = own.register_dmb(GROUP, peer.gid(), LEN).unwrap();
        assert!(own.unregister_dmb(first.token) && own.release_dmb(first.token, 0));
    }
    for (own, peer) in [(a, b), (b, a)] {
        own.connect(GROUP, peer.end(GROUP).unwrap(), me()).unwrap();
    }
    for own in [a, b] {
        own.probe(GROUP).unwrap();
    }
    let [a, b] = ends;
    (a, b)
}

fn byte(addr: *mut u8) -> u8 {
    // SAFETY: an address within a mapping of the test's devices.
    unsafe { addr.read_volatile() }
}

#[test]
fn conforms() {
    for (slots, max_dmbs) in [(1, 7), (3, 10), (1024, 1500)] {
        let (a, b) = pair(slots, max_dmbs);
        run(Pair { a: &*a, b: &*b });
        run(Pair { a: &*b, b: &*a });
        assert!(!a.is_broken(GROUP) && !b.is_broken(GROUP));
        [a, b].iter().for_each(|device| device.drop_group(GROUP));
    }
}

#[test]
fn conforms_with_faults() {
    for (slots, max_dmbs) in [(1, 7), (3, 10)] {
        let (a, b) = pair(slots, max_dmbs);
        faults::run(Pair { a: &*a, b: &*b });
        faults::run(Pair { a: &*b, b: &*a });
        [a, b].iter().for_each(|device| device.drop_group(GROUP));
    }
}

#[test]
fn is_a_device_that_copies_and_says_what_is_behind_it() {
    let device = Box::new(Verbs::new());
    assert_eq!((device.name(), device.chid(), device.provider()), ("verbs", 0xFF02, None));
    // Without RDMA the reason is told, and the software provider is only what somebody asks for.
    if device.open(false) == Err(Unavailable::NoDevice) {
        assert_eq!(Unavailable::NoDevice.to_string(), "no RDMA device");
        assert_eq!((device.open(true), device.chid()), (Ok(Provider::Software), 0xFF03));
    }
}

/// Whatever bytes go before a word, and however many: nobody sees half of it.
#[test]
fn words_arrive_whole() {
    const ROUNDS: u64 = 100_000;
    let (a, b) = pair(4, 8);
    let dmb = a.register_dmb(GROUP, b.gid(), LEN).unwrap();
    let remote = b.reach(GROUP, a.gid(), dmb.token, dmb.len, a.place(dmb.token).unwrap()).unwrap();
    // SAFETY: the second word of the buffer, aligned, mapped as long as the device has it.
    let word = unsafe { &*dmb.addr.cast::<AtomicU64>().wrapping_add(1) };
    let all = |n: u64| u64::from_ne_bytes([n as u8; 8]);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let bytes = [0u8; 2 * 4096];
            for n in 0..=ROUNDS {
                // Laid end to end, the word would come from within 16 bytes of its own place in a
                // page.
                let len = 4096 - 7 + n as usize % 15;
                let value = all(if n == ROUNDS { 0xff } else { n % 0xff });
                let here = [piece(bytes.as_ptr() as u64, len), piece((&raw const value) as u64, 8)];
                let there = [piece(remote.place.addr + 64, len), piece(remote.place.addr + 8, 8)];
                // SAFETY: both live here.
                let written = unsafe { b.write(remote.link, remote.place.rkey, &here, &there) };
                assert_eq!(written, Ok(len + 8));
            }
        });
        loop {
            let seen = word.load(Ordering::Relaxed);
            assert_eq!(seen, all(seen));
            if seen == all(0xff) {
                break;
            }
        }
    });
    [a, b].iter().for_each(|device| device.drop_group(GROUP));
}

#[test]
fn ends_keep_what_they_say() {
    let end = End {
        gid: core::array::from_fn(|i| i as u8),
        qpn: 0x0102_0304,
        psn: 0x0506_0708,
        lid: 0x090a,
        mtu: 0x0b0c,
        images_at: 0x1516_1718_191a_1b1c,
        images: 0x0d0e_0f10,
        signals: 0x1112_1314,
    };
    let raw = end.encode();
    assert_eq!((End::decode(&raw), &raw[16..20]), (end, &[1, 2, 3, 4][..]));
}

#[test]
fn buffers_of_a_group_without_a_link_or_with_senseless_places_are_refused() {
    let (a, b) = pair(4, 8);
    let d = a.register_dmb(GROUP, b.gid(), LEN).unwrap();
    let place = a.place(d.token).unwrap();
    assert_eq!(place.addr, d.addr as u64);
    let attach = |group, len, place| b.reach(group, a.gid(), d.token, len, place).map(drop);
    assert_eq!(attach(9, LEN, place), Err(AttachError::UnknownToken));
    for bad in [
        Place { rkey: 0, ..place },
        Place { addr: place.addr + 1, ..place },
        Place { addr: u64::MAX - 7, ..place },
        Place { signal: place.signal + 1, ..place },
    ] {
        assert_eq!(attach(GROUP, LEN, bad), Err(AttachError::BadShare), "{bad:?}");
    }
    for len in [0, LEN - 1, LEN + 1] {
        assert_eq!(attach(GROUP, len, place), Err(AttachError::BadShare));
    }
    // Not connected yet.
    let e = b.register_dmb(5, a.gid(), LEN).unwrap();
    assert_eq!(attach(5, LEN, place), Err(AttachError::Os(Errno::NOTCONN)));
    assert!(b.place(e.token).is_some());
    assert_eq!(attach(GROUP, LEN, place), Ok(()));
    let another = b.reach(GROUP, Gid::new(1, 2), d.token, LEN, place).map(drop);
    assert_eq!(another, Err(AttachError::BadShare), "another owner's");
    assert_eq!(b.connect(GROUP, a.end(GROUP).unwrap(), me()), Err(Errno::ISCONN));
}

/// What an owner did not register is not written, and the link is no good any more: all requests
/// behind that one fail.
#[test]
fn a_lie_about_a_buffer_breaks_the_link() {
    for lie in [
        |place: &mut Place| place.rkey ^= 1 << 20,
        |place: &mut Place| place.addr += 8,
        |place: &mut Place| place.addr -= 4096,
    ] {
        let (a, b) = pair(4, 8);
        let d = a.register_dmb(GROUP, b.gid(), LEN).unwrap();
        let mut place = a.place(d.token).unwrap();
        lie(&mut place);
        b.reach(GROUP, a.gid(), d.token, LEN, place).unwrap();
        let all = vec![7u8; LEN as usize];
        assert_eq!(
            b.move_data(d.token, 0, all.as_ptr(), LEN, true),
            Err(MoveError::Os(Errno::FAULT))
        );
        assert!(b.is_broken(GROUP) && a.signals(d.token) == Some(0));
        assert!((0..LEN as usize).all(|i| byte(d.addr.wrapping_add(i)) == 0));
        let good = a.register_dmb(GROUP, b.gid(), LEN).unwrap();
        b.reach(GROUP, a.gid(), good.token, LEN, a.place(good.token).unwrap()).unwrap();
        assert_eq!(
            b.move_data(good.token, 0, [1].as_ptr(), 1, true),
            Err(MoveError::Os(Errno::NOTCONN))
        );
    }
}

/// The end that connects first must not write before the other has. That names a further buffer only
/// behind that, so from then on there is nothing to wait for.
#[test]
fn a_further_buffer_shows_that_the_other_end_is_connected() {
    let ends = [0; 2].map(|_| Box::new(Verbs::with_limits(4, 8)));
    let [server, client] = &ends;
    server.admit(client.gid());
    client.admit(server.gid());
    let made = |own: &Verbs, peer: &Verbs| {
        own.open(true).unwrap();
        own.register_dmb(GROUP, peer.gid(), LEN).unwrap()
    };
    let attach = |own: &Verbs, of: &Verbs, dmb: &Dmb, first: bool, has_attached: bool| {
        let told = of.describe_dmb(dmb.token, first).told;
        let peer = Peer { group: GROUP, gid: of.gid(), pid: me(), first, has_attached };
        own.attach_dmb(peer, dmb.token, LEN, &told, None).map(drop)
    };
    let put = |dmb: &Dmb| client.move_data(dmb.token, 0, [9].as_ptr(), 1, false);
    let (there, here) = (made(server, client), made(client, server));
    assert_eq!(attach(client, server, &there, true, false), Ok(()));
    assert_eq!(put(&there), Err(MoveError::Os(Errno::AGAIN)));
    assert_eq!(attach(server, client, &here, true, true), Ok(()));
    let further = made(server, client);
    assert_eq!(attach(client, server, &further, false, false), Ok(()));
    assert_eq!((put(&further), put(&there)), (Ok(()), Ok(())));
    assert_eq!((byte(further.addr), byte(there.addr)), (9, 9));
}

#[test]
fn what_ended_is_not_written() {
    let (a, b) = pair(4, 8);
    let d = a.register_dmb(GROUP, b.gid(), LEN).unwrap();
    let place = a.place(d.token).unwrap();
    let there = b.reach(GROUP, a.gid(), d.token, LEN, place).unwrap();
    b.move_data(d.token, 3, [9].as_ptr(), 1, true).unwrap();
    assert_eq!((byte(d.addr.wrapping_add(3)), a.signals(d.token)), (9, Some(1)));
    a.drop_group(GROUP);
    assert_eq!(b.move_data(d.token, 3, [9].as_ptr(), 1, true), Err(MoveError::Os(Errno::SRCH)));
    assert_eq!((byte(d.addr.wrapping_add(3)), a.place(d.token), a.end(GROUP)), (0, None, None));
    b.drop_group(GROUP);
    assert_eq!(byte(there.words), 0, "readable after the end");
    assert_eq!(b.move_data(d.token, 3, [9].as_ptr(), 1, true), Err(MoveError::UnknownToken));
}

#[test]
fn bytes_come_back_too_and_images_are_read_by_the_peer() {
    let (a, b) = pair(4, 8);
    let d = a.register_dmb(GROUP, b.gid(), 1 << 20).unwrap();
    let there = b.reach(GROUP, a.gid(), d.token, 1 << 20, a.place(d.token).unwrap()).unwrap();
    let sent: Vec<u8> = (0..200_000).map(|i| (i * 7 + i / 256) as u8).collect();
    b.move_data(d.token, 500, sent.as_ptr(), sent.len() as u32, false).unwrap();
    let mut back = vec![0; sent.len()];
    b.read(there.link, there.place.rkey, there.place.addr + 500, &mut back).unwrap();
    assert!(back == sent);
    // SAFETY: the attacher's own memory.
    unsafe { there.words.cast::<u64>().write_volatile(0x1234_5678_9abc) };
    let link = a.number_of(GROUP).unwrap();
    let mut word = [0; 8];
    a.read_image(link, there.words as u64, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 0x1234_5678_9abc);
    // What cannot be an image is not asked for.
    let base = b.end(GROUP).unwrap().images_at;
    for wild in [0, 1, base - 1, base + link::IMAGES as u64 - 7, u64::MAX - 7] {
        assert_eq!(a.read_image(link, wild, &mut word), Err(Errno::FAULT));
    }
    assert!(!a.is_broken(GROUP));
    // Readable is not writable.
    let key = b.end(GROUP).unwrap().images;
    let (here, at) = (piece(word.as_ptr() as u64, 8), piece(there.words as u64, 8));
    // SAFETY: a local.
    assert_eq!(unsafe { a.write(link, key, &[here], &[at]) }, Err(Errno::FAULT));
}

#[test]
fn a_fork_child_has_no_link() {
    let (a, b) = pair(4, 8);
    let d = a.register_dmb(GROUP, b.gid(), LEN).unwrap();
    b.reach(GROUP, a.gid(), d.token, LEN, a.place(d.token).unwrap()).unwrap();
    let link = b.number_of(GROUP).unwrap();
    // SAFETY: the child uses what is its own and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused =
            b.move_data(d.token, 0, [1].as_ptr(), 1, false) == Err(MoveError::Os(Errno::NOTCONN));
        b.after_fork_child();
        let gone = b.end(GROUP).is_none() && b.read(link, 1, 0, &mut [0]) == Err(Errno::NOTCONN);
        let anew = b.register_dmb(GROUP, a.gid(), LEN).is_ok() && b.end(GROUP).is_some();
        // SAFETY: ends the process here.
        unsafe { libc::_exit(i32::from(!(refused && gone && anew))) };
    }
    let mut status = -1;
    // SAFETY: our child, and a local.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    b.move_data(d.token, 0, [1].as_ptr(), 1, false).unwrap();
}
