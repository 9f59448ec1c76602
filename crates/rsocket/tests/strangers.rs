//! Alone in its process, whose mappings it counts.

use shortwire_rsocket::net::{RsocketListener, RsocketStream};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

/// Who connects and is refused takes nothing with it, however often.
#[test]
fn strangers_take_no_memory_of_a_server() {
    let listener = RsocketListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The first round fills what is kept for later use.
    let mut before = 0;
    for strangers in [100, 400] {
        let clients = std::thread::spawn(move || clients(address, strangers));
        let _accepted = listener.accept().unwrap();
        clients.join().unwrap();
        let now = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let grown = now.saturating_sub(before);
        assert!(before == 0 || grown < 50, "{grown} mappings more after {strangers} strangers");
        before = now;
    }
}

fn clients(address: SocketAddr, strangers: usize) {
    for _ in 0..strangers {
        let mut stranger = TcpStream::connect(address).unwrap();
        // The listener may have refused it already.
        let _ = stranger.write_all(&[0x55; 200]);
    }
    drop(RsocketStream::connect(address).unwrap());
}
