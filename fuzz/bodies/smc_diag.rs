//! What the target for the kernel's list of SMC sockets does with its input.

use connections::smc_diag::{Carrier, decode, decode_answer};

/// No bytes are too strange: each socket takes a message of its own, its device can be shown on a
/// terminal, and what is behind the first messages changes nothing of them.
pub fn smc_diag(bytes: &[u8]) {
    let found = decode_answer(bytes);
    // A header of a message and its fixed part.
    assert!(found.len() <= bytes.len() / 80);
    for socket in &found {
        assert!(
            socket.device.len() <= 64 && socket.device.bytes().all(|byte| byte.is_ascii_graphic())
        );
        assert!(socket.device.is_empty() || !matches!(socket.carrier, Carrier::Tcp { .. }));
        assert_eq!(socket.is_listener(), socket.state == "LISTEN");
    }
    let part = decode_answer(&bytes[..bytes.len() / 2]);
    assert_eq!(found[..part.len()], part);
    if let Some(alone) = decode(bytes) {
        // The fixed part is what it was, whatever becomes of attributes.
        let bare = decode(&bytes[..64]).map(|bare| (bare.state, bare.local, bare.peer, bare.inode));
        assert_eq!(bare, Some((alone.state, alone.local, alone.peer, alone.inode)));
    }
}
