//! Alone in its process, which forks and counts its mappings.
#![allow(unsafe_code)]

use shortwire_rsocket::net::{Builder, RsocketListener, RsocketStream};
use std::io::{Read, Write};

const LEN: usize = 64 << 10;

/// Who closes a connection that a child got by fork, too, has its buffers to itself from then on.
#[test]
fn a_buffer_is_its_owners_again_when_the_connection_is_closed() {
    let listener = Builder::new().iomaps(4).listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer = std::thread::spawn(move || Builder::new().iomaps(4).connect(address).unwrap());
    let mut owner: RsocketStream = accepted(&listener);
    let mut peer = peer.join().unwrap();
    let buffer = vec![1u8; LEN].leak();
    // SAFETY: never freed, and looked at by volatile reads alone.
    let offset = unsafe { owner.map(buffer.as_mut_ptr(), LEN, None) }.unwrap();
    owner.write_all(b"x").unwrap();
    peer.read_exact(&mut [0]).unwrap();
    assert_eq!(peer.write_at(&[2; LEN], offset).unwrap(), LEN);
    // SAFETY: the child ends at once.
    match unsafe { libc::fork() } {
        // SAFETY: ends this process alone, in the child.
        0 => unsafe { libc::_exit(0) },
        // SAFETY: waits for it.
        child => assert_eq!(unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) }, child),
    }
    drop(owner);
    let _ = peer.write_at(&[3; LEN], offset);
    for at in 0..LEN {
        // SAFETY: within the buffer.
        let byte = unsafe { buffer.as_ptr().add(at).read_volatile() };
        assert_ne!(byte, 3, "byte {at}");
    }
    drop(peer);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("shortwire-iomap")).count();
    assert_eq!(shared, 0, "{maps}");
}

fn accepted(listener: &RsocketListener) -> RsocketStream {
    listener.accept().unwrap().0
}
