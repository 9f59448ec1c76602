//! A buffer of SMC-D's loopback device: one side registers it, the other attaches it and moves data
//! into it. Between two processes, token, description and descriptor pass over a socket.
#![allow(unsafe_code)]

use dibs::{Device, Loopback, Peer};

fn main() {
    let (owner, sender) = (Loopback::new(), Loopback::new());
    owner.admit(sender.gid());
    sender.admit(owner.gid());

    let buffer = owner.register_dmb(1, sender.gid(), 1 << 14).expect("room for a buffer");
    let lent = owner.describe_dmb(buffer.token, true);

    let pid = std::process::id() as i32;
    let from = Peer { group: 1, gid: owner.gid(), pid, first: true, has_attached: false };
    let arena = lent.fd.as_ref().map(|fd| fd.raw());
    sender
        .attach_dmb(from, buffer.token, buffer.len, &lent.told, arena)
        .expect("a buffer within reach");
    let text = b"written by the sender";
    sender
        .move_data(buffer.token, 128, text.as_ptr(), text.len() as u32, true)
        .expect("room in the buffer");

    assert_eq!(owner.signals(buffer.token), Some(1));
    // SAFETY: within the buffer, to which nobody writes any more.
    let arrived = unsafe { std::slice::from_raw_parts(buffer.addr.add(128), text.len()) };
    println!("{}", String::from_utf8_lossy(arrived));
}
