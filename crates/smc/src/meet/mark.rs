//! What stands behind the messages of a handshake: which releases its sender speaks, and what tells
//! one TCP connection from an earlier one with the same addresses.

use dibs::Told;

use crate::channel;
use crate::clc::Message;
use crate::inet::TcpInfo;
use crate::release::Releases;

/// Behind each Proposal, Accept and Confirm: the oldest and the newest release of its sender, and
/// what that has sent and received on the TCP stream, so that a name left over from an earlier
/// connection with the same addresses is told apart.
const MARK: &[u8; 6] = b"SHORTW";

const TRAILER: usize = 24;

/// The message, what the device tells of the buffer that it names, and the mark: bytes in `out`,
/// None if they do not fit.
pub(super) fn write(
    message: &Message,
    told: &Told,
    info: &TcpInfo,
    out: &mut [u8; channel::MAX],
) -> Option<usize> {
    let mut n = message.encode(out).ok()?;
    let [sent, arrived] = [info.sent(), info.arrived()].map(u64::to_be_bytes);
    for part in [told.bytes(), MARK, &speaks(), &sent, &arrived] {
        out.get_mut(n..n + part.len())?.copy_from_slice(part);
        n += part.len();
    }
    Some(n)
}

/// The mark of a connection over which nothing was sent yet.
pub(super) fn fresh() -> [u8; TRAILER] {
    let mut mark = [0; TRAILER];
    mark[..6].copy_from_slice(MARK);
    mark[6..8].copy_from_slice(&speaks());
    mark
}

fn speaks() -> [u8; 2] {
    let Releases { oldest, newest } = Releases::ours();
    [oldest, newest]
}

/// The releases that the sender of a message speaks; None where the message is none of ours.
pub(super) fn releases(raw: &[u8]) -> Option<Releases> {
    let mark = raw.get(raw.len().checked_sub(TRAILER)?..)?;
    Releases::new(mark[6], mark[7]).filter(|_| mark[..6] == *MARK)
}

/// What the sender's device told of its buffer; nothing if it is more than a device tells.
pub(super) fn told(raw: &[u8]) -> Told {
    let rest =
        raw.get(5..7).and_then(|len| raw.get(usize::from(u16::from_be_bytes([len[0], len[1]]))..));
    let told = rest.and_then(|rest| rest.get(..rest.len().checked_sub(TRAILER)?));
    told.and_then(Told::new).unwrap_or_default()
}

/// Whether the message is of the connection that the kernel says this of: its sender cannot have
/// received more than we have sent.
pub(super) fn is_same_stream(raw: &[u8], info: &TcpInfo) -> bool {
    let Some(at) = raw.len().checked_sub(TRAILER).filter(|_| releases(raw).is_some()) else {
        return false;
    };
    let word = |at: usize| u64::from_be_bytes(raw[at..at + 8].try_into().unwrap_or_default());
    word(at + 16) <= info.sent()
}
