//! The data path against a queue: any interleaving of calls, with any sizes, in both modes of the
//! device.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::Ordering::*;

use common::queue::{Direction, iov};
use common::{bytes, copying, pair, rings, serial, upgrade};
use proptest::prelude::*;
use smc::config::CONFIG;
use smc::conn::{DmbHeader, Got, IN, OUT, Pieces, Sent};

common::over!(ism, verbs, checked_ism, checked_verbs);

#[derive(Clone, Debug)]
enum Op {
    Send(usize, usize),
    SendFrom(usize, usize, bool),
    Recv(usize, usize),
    Peek(usize),
    Discard(usize),
    RecvInto(usize, usize, bool),
    Ask,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![2 => 0..100usize, 4 => 0..9000usize, 3 => 0..70_000usize, 1 => 0..300_000usize]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (size(), 1..5000usize).prop_map(|(n, cut)| Op::Send(n, cut)),
        2 => (size(), size(), any::<bool>()).prop_map(|(n, limit, fails)| Op::SendFrom(n, limit, fails)),
        6 => (size(), 1..5000usize).prop_map(|(n, cut)| Op::Recv(n, cut)),
        2 => size().prop_map(Op::Peek),
        1 => size().prop_map(Op::Discard),
        2 => (size(), size(), any::<bool>()).prop_map(|(n, limit, fails)| Op::RecvInto(n, limit, fails)),
        1 => Just(Op::Ask),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving(
        ops in prop::collection::vec((any::<bool>(), op()), 1..120), code in 0..5u32, copy: bool,
    ) {
        let _serial = serial();
        CONFIG.dmb_size.store(16384 << code, Relaxed);
        CONFIG.copy.store(copy, Relaxed);
        let (a, b) = rings();
        let mut directions = [Direction::new(&a, &b, 1), Direction::new(&b, &a, 2)];
        for (which, op) in ops {
            let d = &mut directions[usize::from(which)];
            match op {
                Op::Send(n, cut) => d.send(n, cut)?,
                Op::SendFrom(n, limit, fails) => d.send_from(n, limit, fails)?,
                Op::Recv(n, cut) => d.recv(n, 0, cut)?,
                Op::Peek(n) => d.recv(n, libc::MSG_PEEK, 700)?,
                Op::Discard(n) => d.recv(n, libc::MSG_TRUNC, 900)?,
                Op::RecvInto(n, limit, fails) => d.recv_into(n, limit, fails)?,
                Op::Ask => d.ask(),
            }
            directions[0].check()?;
            directions[1].check()?;
        }
        for d in &mut directions {
            while !d.queue.is_empty() {
                d.recv(50_000, 0, 5000)?;
            }
            prop_assert_eq!(d.to.conn.rx.counts.bytes.load(Relaxed), d.sent);
            prop_assert_eq!(d.from.conn.tx.counts.bytes.load(Relaxed), d.sent);
        }
    }
}

/// Full to the last byte and empty to the last byte, at every offset at which the ring can wrap.
#[test]
fn edges_of_the_ring() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    for copy in [false, true] {
        CONFIG.copy.store(copy, Relaxed);
        let (a, b) = rings();
        let mut d = Direction::new(&a, &b, 3);
        let size = d.size as usize;
        for step in [1, 7, size - 1, size, 4096, size / 2] {
            for n in [size, size + 1, 1] {
                d.send(n, 1000).unwrap();
            }
            d.check().unwrap();
            assert!(
                d.queue.len() == size
                    && a.conn.send(a.fd, &mut Pieces::new(&[iov(b"x")])) == Sent::Full
            );
            d.recv(step, 0, 333).unwrap();
            d.ask();
            while !d.queue.is_empty() {
                d.recv(size / 5, 0, 5000).unwrap();
            }
            d.check().unwrap();
            if copying() {
                // Told with what is told next.
                assert!(b.conn.arm_data());
            }
            assert_eq!((d.free(size), b.conn.ready(b.fd) & IN), (size, 0));
        }
    }
}

/// A writer is woken when it can write again by its own measure, not by what the reader has looked
/// at so far: woken early it only sleeps again.
#[test]
fn a_doorbell_for_space_means_that_there_is_some() {
    let _serial = serial();
    let (a, b) = rings();
    let size = a.conn.tx.snapshot().size as usize;
    let data = vec![1; size];
    assert_eq!(a.send(&data[..size / 2]), Ok(size / 2));
    assert_eq!(b.recv(&mut [0; 1], 0), Ok(1));
    assert_eq!(a.send(&data[size / 2..]), Ok(size - size / 2));
    a.conn.arm_space();
    for (read, writable) in [(size / 4, false), (size / 4, true)] {
        assert_eq!(b.recv(&mut vec![0; read], 0), Ok(read));
        assert_eq!(a.conn.ready(a.fd) & OUT != 0, writable);
        assert_eq!(a.conn.doorbells_due() != 0, writable, "{}", a.describe());
    }
}

/// The 16 bits of the cursor's wrap count go round.
#[test]
fn more_laps_than_a_cursor_counts() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    let (a, b) = rings();
    let size = a.conn.tx.snapshot().size as usize;
    for lap in 0..70_000u32 {
        let sent = a.conn.send_from(a.fd, size, |dst, len| {
            // SAFETY: `dst` has room for `len` bytes.
            unsafe { dst.cast::<u32>().write_unaligned(lap) };
            Ok(len)
        });
        assert_eq!(sent, Sent::Bytes(size));
        let mut seen = u32::MAX;
        let got = b.conn.recv_into(b.fd, size, false, |src, len| {
            // SAFETY: `src` has `len` bytes, at least four.
            seen = unsafe { src.cast::<u32>().read_unaligned() };
            Ok(len)
        });
        assert_eq!((got, seen), (Got::Bytes(size), lap));
    }
}

/// A receiver sees the bytes that the device moved, not those of its own cache: copy mode writes
/// the same ring.
#[test]
fn the_header_is_what_smc_says() {
    let _serial = serial();
    let (a, b) = rings();
    assert_eq!(a.send(&[1; 100]), Ok(100));
    // SAFETY: an exposed buffer, which stays mapped.
    let h: &DmbHeader = unsafe { &*b.conn.my_header() };
    assert_eq!(h.kind.load(Relaxed) & 0xff, 0xfe);
    // Reserved, where no device that copies has a use for them.
    // Above it lies the image, or when the peer rang last.
    assert!(h.kind.load(Relaxed) >> 8 != 0 || !copying());
    assert_eq!(
        h.prod.load(Relaxed).to_le_bytes(),
        [0, 0, 100, 0, 0, 0, 0, 0],
        "wrap 0, count 100, no flags"
    );
    let mut buf = [0; 100];
    assert_eq!(b.recv(&mut buf, 0), Ok(100));
    if copying() {
        // It goes along with what is told next.
        assert!(b.conn.arm_data());
    }
    // SAFETY: as above.
    let h: &DmbHeader = unsafe { &*a.conn.my_header() };
    assert_eq!(h.cons.load(Relaxed).to_le_bytes(), [0, 0, 100, 0, 0, 0, 0, 0]);
}

/// MSG_PEEK sees both sides of the switch: whoever waits for all of it would otherwise wait for
/// ever.
#[test]
fn a_look_spans_the_switch() {
    let _serial = serial();
    let (a, b) = pair();
    let all = bytes(1, 0, 40_100);
    assert_eq!(b.send(&all[..40_000]), Ok(40_000));
    upgrade(&a, &b);
    common::until("both switches", || a.settle() & b.settle());
    assert_eq!(b.send(&all[40_000..]), Ok(100));
    let mut buf = vec![0; 60_000];
    for want in [10, 30_000, 40_050, 60_000] {
        let n = want.min(all.len());
        assert_eq!(a.recv(&mut buf[..want], libc::MSG_PEEK), Ok(n));
        assert_eq!(buf[..n], all[..n]);
    }
    let mut got = Vec::new();
    while got.len() < all.len() {
        let n = a.recv(&mut buf, 0).unwrap();
        got.extend_from_slice(&buf[..n]);
    }
    assert_eq!(got, all);
}
