//! Forks, programs that are run, and kills in mid transfer.

use super::*;
use std::process::{Child, Command, Stdio};

#[test]
fn a_forked_server_serves() {
    watchdog();
    let (l, port) = listener();
    let mut client = child("echo_client", port);
    let s = accept(l);
    // SAFETY: the child calls only what the library documents for it, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut buf = [0; 1000];
        loop {
            let n = recv(s, &mut buf, 0);
            if n <= 0 || send(s, &buf[..n as usize], 0) != n {
                break;
            }
        }
        let closed = rclose(s);
        // SAFETY: ends the child.
        unsafe { libc::_exit(closed) };
    }
    assert_eq!(rclose(s), 0, "the child's goes on");
    assert!(client.wait().unwrap().success());
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    assert_eq!(rclose(l), 0);
}

/// The peer introduces itself after the fork, to the child: its parent has nothing of that mapped.
#[test]
fn a_parent_lets_go_of_what_its_child_has_begun() {
    watchdog();
    let (l, port) = listener();
    let c = stream();
    assert_eq!(rfcntl(c, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
    assert_eq!((connect(c, port), errno()), (-1, libc::EINPROGRESS));
    let mut one = libc::pollfd { fd: c, events: libc::POLLOUT, revents: 0 };
    // The kernel connects; then it asks, and goes no further before it is looked at again.
    // SAFETY: one entry, twice.
    assert_eq!(unsafe { (libc::poll(&mut one, 1, -1), rpoll(&mut one, 1, 0)) }, (1, 0));
    let s = accept(l);
    // SAFETY: the child calls only what the library documents for it, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut buf = [0; 8];
        let good = recv(s, &mut buf, 0) == 4
            && send(s, &buf[..4], 0) == 4
            && rclose(c) == 0
            && rclose(s) == 0;
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    // SAFETY: one entry.
    assert_eq!(unsafe { rpoll(&mut one, 1, -1) }, 1);
    assert_eq!(rfcntl(c, libc::F_SETFL, 0), 0);
    let mut buf = [0; 8];
    assert_eq!((send(c, b"fork", 0), recv(c, &mut buf, 0)), (4, 4));
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!((unsafe { libc::waitpid(pid, &mut status, 0) }, status), (pid, 0));
    assert_eq!((recv(s, &mut buf, 0), errno()), (-1, libc::ENOTCONN));
    let mut one = libc::pollfd { fd: s, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    assert_eq!((unsafe { rpoll(&mut one, 1, -1) }, one.revents), (1, libc::POLLIN | libc::POLLERR));
    assert_eq!(rclose(s), 0);
    assert!(recv(c, &mut buf, 0) <= 0, "now nobody has the other end");
    [c, l].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
}

/// The peer would write into the parent.
#[test]
fn the_child_of_a_fork_maps_nothing() {
    watchdog();
    let (c, s) = pair_with(1);
    assert_eq!((send(c, b"1", 0), recv(s, &mut [0; 1], 0)), (1, 1));
    let mut buf = [0u8; 64];
    let p = buf.as_mut_ptr().cast();
    // SAFETY: `buf` outlives the map.
    unsafe {
        assert!(riomap(s, p, 64, libc::PROT_WRITE, 0, -1) >= 0, "its parent may");
        assert_eq!(riounmap(s, p, 64), 0);
    }
    // SAFETY: the child calls only what the library documents for it, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: refused before anything is touched; ends the child.
        unsafe {
            let refused =
                riomap(s, p, 64, libc::PROT_WRITE, 0, -1) == -1 && errno() == libc::EOPNOTSUPP;
            libc::_exit(i32::from(!refused));
        }
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!((unsafe { libc::waitpid(pid, &mut status, 0) }, status), (pid, 0));
    [c, s].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
}

/// Its child has the connection too, until it runs another program, which knows nothing of it.
#[test]
fn running_a_program_leaves_the_end_in_order() {
    watchdog();
    let (c, s) = pair();
    // The end that was accepted is complete once it has received.
    assert_eq!((send(c, b"1", 0), recv(s, &mut [0; 1], 0)), (1, 1));
    let mut command = Command::new("true");
    // SAFETY: does nothing; it makes the standard library fork instead of spawning.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, || Ok(())) };
    assert!(command.status().unwrap().success());
    assert_eq!(send(c, b"last", 0), 4);
    assert_eq!(rclose(c), 0);
    let mut buf = [0; 8];
    assert_eq!((recv(s, &mut buf, libc::MSG_WAITALL), &buf[..4]), (4, &b"last"[..]));
    assert_eq!(recv(s, &mut buf, 0), 0, "the end, not a reset");
    assert_eq!(rclose(s), 0);
}

/// Runs [`in_child`] in a process of its own.
fn child(role: &str, port: u16) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "processes::in_child", "--nocapture"])
        .env("RSOCKET_ROLE", role)
        .env("RSOCKET_PORT", port.to_string());
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// Byte `i` of every transfer.
fn pattern(i: u64) -> u8 {
    (i ^ i >> 8 ^ i >> 16) as u8
}

#[test]
fn in_child() {
    let Ok(role) = std::env::var("RSOCKET_ROLE") else { return };
    watchdog();
    let c = stream();
    assert_eq!(connect(c, std::env::var("RSOCKET_PORT").unwrap().parse().unwrap()), 0);
    match role.as_str() {
        "echo_client" => {
            for round in 0..200usize {
                let bytes: Vec<u8> =
                    (0..round * 7 + 1).map(|i| pattern((i + round) as u64)).collect();
                assert_eq!(send(c, &bytes, 0), bytes.len() as isize);
                let mut back = vec![0; bytes.len()];
                assert_eq!(recv(c, &mut back, libc::MSG_WAITALL), bytes.len() as isize);
                assert!(back == bytes);
            }
            assert_eq!(rshutdown(c, libc::SHUT_WR), 0);
            assert_eq!(recv(c, &mut [0; 1], 0), 0);
        }
        // Without `rclose`: one connection with bytes on their way, and one that it never used.
        "leaves" => {
            let (l, port) = listener();
            assert_eq!(send(c, &port.to_ne_bytes(), 0), 2);
            assert!(accept(l) >= 0);
            let bytes: Vec<u8> = (0..LAST).map(pattern).collect();
            assert_eq!(send(c, &bytes, 0), bytes.len() as isize);
            std::process::exit(0);
        }
        // Until it is killed.
        "transfer" => std::thread::scope(|scope| {
            scope.spawn(|| send_for_ever(c));
            receive_to_the_end(c);
        }),
        _ => unreachable!("{role}"),
    }
    assert_eq!(rclose(c), 0);
}

fn send_for_ever(fd: c_int) -> u64 {
    let mut at = 0;
    loop {
        let n = 1 + at as usize * 31 % 9000;
        let bytes: Vec<u8> = (0..n as u64).map(|i| pattern(at + i)).collect();
        match send(fd, &bytes, 0) {
            -1 => return at,
            n => at += n as u64,
        }
    }
}

/// How many bytes came, all of them right, and what ended it.
fn receive_to_the_end(fd: c_int) -> (u64, i32) {
    let mut at = 0;
    let mut buf = [0; 5000];
    loop {
        match recv(fd, &mut buf, 0) {
            -1 => return (at, errno()),
            0 => return (at, 0),
            n => {
                assert!(
                    buf[..n as usize].iter().enumerate().all(|(i, b)| *b == pattern(at + i as u64)),
                    "at {at}"
                );
                at += n as u64;
            }
        }
    }
}

/// What a program sends before it returns from `main`.
const LAST: u64 = 100_000;

/// As of TCP: only a process that was killed resets its connections.
#[test]
fn a_program_that_ends_leaves_ends_in_order() {
    watchdog();
    let (l, port) = listener();
    let mut leaving = child("leaves", port);
    let s = accept(l);
    let mut port = [0; 2];
    assert_eq!(recv(s, &mut port, libc::MSG_WAITALL), 2);
    let c = stream();
    assert_eq!(connect(c, u16::from_ne_bytes(port)), 0);
    assert!(leaving.wait().unwrap().success());
    assert_eq!(receive_to_the_end(s), (LAST, 0));
    assert_eq!(recv(c, &mut [0; 1], 0), 0, "the end of what was accepted and not used");
    [c, s, l].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
}

#[test]
fn two_hundred_kills_in_mid_transfer() {
    watchdog();
    let (l, port) = listener();
    assert_eq!(set(l, libc::SOL_SOCKET, libc::SO_RCVBUF, 8192), 0);
    let mut bytes = 0;
    for round in 0..200u64 {
        let mut victim = child("transfer", port);
        let s = accept(l);
        assert!(s >= 0);
        std::thread::scope(|scope| {
            scope.spawn(|| send_for_ever(s));
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(round * 37 % 5000));
                victim.kill().unwrap();
                victim.wait().unwrap();
            });
            let (n, end) = receive_to_the_end(s);
            assert_eq!(end, libc::ECONNRESET, "round {round}");
            bytes += n;
        });
        assert_eq!(rclose(s), 0);
    }
    println!("200 kills, {bytes} bytes verified");
    assert!(bytes > 0);
    assert_eq!(rclose(l), 0);
}
