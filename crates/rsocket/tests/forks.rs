//! Alone in its process, which forks and counts its mappings.
#![allow(unsafe_code)]

use shortwire_rsocket::net::{RsocketListener, RsocketStream};
use std::io::{Read, Write};

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// A server that runs a helper now and then has connections that the helper got, too, and that it
/// closes itself.
#[test]
fn a_connection_that_a_child_got_too_leaves_nothing_when_it_is_closed() {
    const CONNECTIONS: usize = 400;
    let listener = RsocketListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        for _ in 0..CONNECTIONS {
            let mut stream = RsocketStream::connect(address).unwrap();
            stream.write_all(&[7; 1000]).unwrap();
            let mut end = Vec::new();
            stream.read_to_end(&mut end).unwrap();
            assert_eq!(end, b"bye");
        }
    });
    let mut after_a_few = 0;
    for number in 0..CONNECTIONS {
        let mut stream = listener.accept().unwrap().0;
        let mut data = [0; 1000];
        stream.read_exact(&mut data).unwrap();
        assert_eq!(data, [7; 1000]);
        // SAFETY: the child ends at once, as one that runs another program does for us.
        match unsafe { libc::fork() } {
            // SAFETY: ends this process alone, in the child.
            0 => unsafe { libc::_exit(0) },
            // SAFETY: waits for it.
            child => assert_eq!(unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) }, child),
        }
        stream.write_all(b"bye").unwrap();
        drop(stream);
        if number == CONNECTIONS / 2 {
            after_a_few = mappings();
        }
    }
    client.join().unwrap();
    let grown = mappings().saturating_sub(after_a_few);
    assert!(grown < 50, "{grown} mappings more after {} connections", CONNECTIONS / 2);
}
