//! A receive that was in the kernel while the peer left TCP, and perhaps came back; and positions
//! in the stream that the kernel does not tell.
#![allow(unsafe_code)]

mod common;

use common::traffic::{Side, Traffic};
use common::{End, pair, raw_recv, serial, upgrade};
use smc::conn::Pieces;
use smc::reason;

fn back(end: &End) {
    assert!(end.conn.go_back_or_break(end.fd, reason::URGENT.code(), false), "{}", end.describe());
}

/// What the receive that `end` is inside of returns: its bytes, and how many of them are payload.
fn returns(end: &End) -> (Vec<u8>, usize) {
    let mut buf = [0; 100];
    let got = raw_recv(end.fd, &mut buf, 0).unwrap_or(0);
    (buf[..got].to_vec(), end.conn.leave_kernel_recv(end.fd, got, false))
}

fn all(end: &End) -> Result<Vec<u8>, i32> {
    let (mut bytes, mut buf) = (Vec::new(), [0; 100]);
    loop {
        match end.recv(&mut buf, 0) {
            Ok(0) | Err(libc::EAGAIN) => return Ok(bytes),
            Ok(n) => bytes.extend(&buf[..n]),
            Err(e) => return Err(e),
        }
    }
}

#[test]
fn payload_from_behind_the_return_is_payload() {
    let _serial = serial();
    for ends in [false, true] {
        let (a, b) = pair();
        assert!(a.conn.enter_kernel_recv());
        upgrade(&a, &b);
        back(&b);
        assert_eq!(b.send(b"payload"), Ok(7));
        if ends {
            b.shutdown(libc::SHUT_WR);
        }
        assert_eq!(returns(&a), (b"payload".to_vec(), 7), "{}", a.describe());
        if !ends {
            assert_eq!(b.send(b" and more"), Ok(9));
        }
        assert_eq!(
            all(&a).as_deref(),
            Ok(if ends { &b""[..] } else { b" and more" }),
            "{}",
            a.describe()
        );
        assert_eq!(a.send(b"answer"), Ok(6));
        assert_eq!(all(&b).as_deref(), Ok(&b"answer"[..]), "{}", b.describe());
    }
}

/// What the receive that `end` is inside of returns into buffers of 3, 7 and 90 bytes.
fn returns_in_pieces(end: &End) -> Vec<u8> {
    let mut buf = [0; 100];
    let got = raw_recv(end.fd, &mut buf, 0).unwrap_or(0);
    let base = buf.as_mut_ptr();
    let iov = [(0, 3), (3, 7), (10, 90)]
        .map(|(at, iov_len)| libc::iovec { iov_base: base.wrapping_add(at).cast(), iov_len });
    let payload = end.conn.leave_kernel_recv_into(end.fd, got, false, Some(Pieces::new(&iov)));
    buf[..payload].to_vec()
}

/// The bytes in the ring belong between what came over TCP in front of the switch and behind the
/// return, which the kernel gives out at once.
#[test]
fn what_is_in_the_ring_comes_in_front_of_what_follows_it() {
    let _serial = serial();
    let counts = |n: usize, from: usize| (0..n).map(|i| (from + i) as u8).collect::<Vec<u8>>();
    for before in [0, 1, 20] {
        for ring in [1, 4, 30, 60, 1000, usize::MAX] {
            for behind in [1, 9, 50, 200] {
                let (a, b) = pair();
                assert!(a.conn.enter_kernel_recv());
                let mut sent = counts(before, 0);
                assert!(before == 0 || b.send(&sent) == Ok(before));
                upgrade(&a, &b);
                // The whole ring, if that is asked for.
                let ring = b.send(&counts(ring.min(1 << 20), before)).unwrap();
                sent.extend(counts(ring, before));
                back(&b);
                sent.extend(counts(behind, before + ring));
                assert_eq!(b.send(&sent[before + ring..]), Ok(behind));
                b.shutdown(libc::SHUT_WR);
                let case = format!("{before}, {ring}, {behind}, {}", a.describe());
                let mut came = returns_in_pieces(&a);
                assert!(!came.is_empty(), "{case}");
                came.extend(all(&a).unwrap());
                assert!(came == sent, "{case}");
                assert_eq!(a.send(b"answer"), Ok(6));
                assert_eq!(all(&b).as_deref(), Ok(&b"answer"[..]), "{case}");
            }
        }
    }
}

/// It is in the application's hands already, who knows where: from a splice, into a pipe.
#[test]
fn payload_out_of_order_and_out_of_reach_is_a_reset() {
    let _serial = serial();
    let (a, b) = pair();
    assert!(a.conn.enter_kernel_recv());
    upgrade(&a, &b);
    assert_eq!(b.send(b"ring"), Ok(4));
    back(&b);
    assert_eq!(b.send(b"over TCP"), Ok(8));
    assert_eq!(returns(&a), (b"\0over TCP".to_vec(), 0), "{}", a.describe());
    assert_eq!(all(&a), Err(libc::ECONNRESET), "{}", a.describe());
    assert_eq!(all(&a), Ok(Vec::new()), "{}", a.describe());
}

/// A FIN counts as a byte that has arrived, and is none.
#[test]
fn an_end_behind_the_return_moves_nothing() {
    let _serial = serial();
    let (a, b) = pair();
    upgrade(&a, &b);
    assert_eq!(b.send(b"ring"), Ok(4));
    back(&b);
    assert_eq!(b.send(b" and TCP"), Ok(8));
    b.shutdown(libc::SHUT_WR);
    assert_eq!(all(&a).as_deref(), Ok(&b"ring and TCP"[..]), "{}", a.describe());
}

/// Puts this thread into a sandbox without getsockopt.
fn enter_sandbox() {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let steps = [
        step(0x20, 0, 0, 0),
        step(0x15, 0, 1, libc::SYS_getsockopt as u32),
        step(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_ptr().cast_mut() };
    // SAFETY: system calls on live memory; the filter ends with the thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            0
        );
    }
}

fn in_a_thread(f: impl FnOnce() + Send + 'static) {
    let done = std::thread::spawn(f).join();
    if let Err(panic) = done {
        std::panic::resume_unwind(panic);
    }
}

/// Whatever the upgrade has come to when the kernel stops telling positions: the bytes are right.
#[test]
fn nobody_tells_positions_any_more() {
    let _serial = serial();
    const SWITCHED: usize = 12;
    for steps in 0..=SWITCHED {
        in_a_thread(move || {
            // Bytes on TCP on either side of each step, some of them unread.
            let mut t = Traffic::new(pair());
            for i in 0..steps % SWITCHED {
                let Side::Ours(end) = &t.sides[i % 2] else { panic!() };
                end.step();
                t.send(i % 2, 10 + i);
                t.send(1 - i % 2, 20 + i);
                t.recv(i % 2, 15);
            }
            if steps == SWITCHED {
                // Sends have left TCP, and no receive has followed yet.
                t.send(0, 30);
                t.send(1, 50);
                t.recv(0, 20);
                let [Side::Ours(a), Side::Ours(b)] = &t.sides else { panic!() };
                upgrade(a, b);
            }
            enter_sandbox();
            for n in [1, 3000, 100_000] {
                for i in [0, 1] {
                    t.send(i, n);
                }
                t.settle();
            }
        });
    }
}

/// A receive that was under way at the exposure has taken nobody knows how much.
#[test]
fn a_position_that_is_lost_is_a_reset() {
    let _serial = serial();
    in_a_thread(|| {
        let (a, b) = pair();
        assert!(a.conn.enter_kernel_recv());
        upgrade(&a, &b);
        assert_eq!(b.send(b"ring"), Ok(4));
        enter_sandbox();
        assert_eq!(returns(&a), (b"\0".to_vec(), 0), "{}", a.describe());
        assert!(a.conn.is_broken());
        assert_eq!(
            (all(&a), a.reason()),
            (Err(libc::ECONNRESET), reason::SYSTEM),
            "{}",
            a.describe()
        );
    });
}
