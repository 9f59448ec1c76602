//! Alone in its process: a number that was closed may soon be somebody else's.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use shortwire_rsocket::capi::rclose;
use shortwire_rsocket::net::{RsocketListener, RsocketStream};
use std::io::Write;
use std::os::fd::AsRawFd;

unsafe extern "C" {
    fn rrecv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
}

/// While another thread receives what is there: a wrong number for it, and no more than that.
#[test]
fn an_rsocket_may_be_closed_beside_a_receive() {
    let listener = RsocketListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for _ in 0..200 {
        let client = std::thread::spawn(move || RsocketStream::connect(address).unwrap());
        let server = std::mem::ManuallyDrop::new(listener.accept().unwrap().0);
        let mut client = client.join().unwrap();
        client.write_all(&[5; 4000]).unwrap();
        let fd = server.as_raw_fd();
        let reader = std::thread::spawn(move || {
            let mut byte = 0u8;
            // SAFETY: one byte.
            while unsafe { rrecv(fd, (&raw mut byte).cast(), 1, 0) } == 1 {
                assert_eq!(byte, 5);
            }
        });
        assert_eq!(rclose(fd), 0);
        reader.join().unwrap();
    }
}
