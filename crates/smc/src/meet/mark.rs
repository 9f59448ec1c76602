//! What tells one TCP connection from an earlier one with the same addresses.

use dibs::{ism, verbs};

use crate::channel;
use crate::clc::Message;
use crate::device::Kind;
use crate::group::At;
use crate::inet::TcpInfo;

/// Behind each Proposal, Accept and Confirm: what its sender has sent and received on the TCP stream, so that a name
/// left over from an earlier connection with the same addresses is told apart.
const MARK: &[u8; 8] = b"SHORTWR1";

const TRAILER: usize = 24;

/// Between message and mark, for a buffer that cannot be mapped: where it lies, in three words.
const PLACE: usize = 24;

pub(super) fn write(message: &Message, at: At, info: &TcpInfo, out: &mut [u8; channel::MAX]) -> Option<usize> {
    let mut n = message.encode(out).ok()?;
    let mut put = |bytes: &[u8]| {
        out.get_mut(n..n + bytes.len())?.copy_from_slice(bytes);
        n += bytes.len();
        Some(())
    };
    let (words, end) = match at {
        At::Shared => (None, None),
        At::Ism(place) => (Some([place.base, place.len, place.proof]), None),
        At::Verbs(place, end) => (Some([place.addr, place.signal, place.rkey.into()]), end),
    };
    for word in words.iter().flatten() {
        put(&word.to_be_bytes())?;
    }
    if let Some(end) = end {
        put(&end.encode())?;
    }
    put(MARK)?;
    put(&info.sent().to_be_bytes())?;
    put(&info.arrived().to_be_bytes())?;
    Some(n)
}

/// What the sender said of its buffer's place, which the device of the message tells how to understand.
pub(super) fn place(raw: &[u8], kind: Kind) -> At {
    let rest = raw.get(5..7).and_then(|len| raw.get(usize::from(u16::from_be_bytes([len[0], len[1]]))..));
    let Some((words, rest)) = rest.and_then(|rest| rest.split_first_chunk::<PLACE>()) else { return At::Shared };
    let word = |at: usize| u64::from_be_bytes(words[at..at + 8].try_into().unwrap_or_default());
    match (kind, rest.len().checked_sub(TRAILER)) {
        (Kind::Ism, Some(0)) => At::Ism(ism::Place { base: word(0), len: word(8), proof: word(16) }),
        (Kind::Verbs, Some(more @ (0 | verbs::End::BYTES))) => {
            let Ok(rkey) = u32::try_from(word(16)) else { return At::Shared };
            let end = rest.first_chunk().filter(|_| more > 0).map(verbs::End::decode);
            At::Verbs(verbs::Place { addr: word(0), signal: word(8), rkey }, end)
        }
        _ => At::Shared,
    }
}

/// Whether the message is of the connection that the kernel says this of: its sender cannot have received more than we have sent.
pub(super) fn is_same_stream(raw: &[u8], info: &TcpInfo) -> bool {
    let Some(at) = raw.len().checked_sub(TRAILER) else { return false };
    let word = |at: usize| u64::from_be_bytes(raw[at..at + 8].try_into().unwrap_or_default());
    raw[at..at + 8] == *MARK && word(at + 16) <= info.sent()
}
