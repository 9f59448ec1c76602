//! What tells one TCP connection from an earlier one with the same addresses.

use crate::channel;
use crate::clc::Message;
use crate::inet::TcpInfo;

/// Behind each Proposal, Accept and Confirm: what its sender has sent and received on the TCP stream, so that a name
/// left over from an earlier connection with the same addresses is told apart.
const MARK: &[u8; 8] = b"SHORTWR1";

const TRAILER: usize = 24;

pub(super) fn write(message: &Message, fd: i32, out: &mut [u8; channel::MAX]) -> Option<usize> {
    let n = message.encode(out).ok()?;
    let info = TcpInfo::of(fd)?;
    out.get_mut(n..n + 8)?.copy_from_slice(MARK);
    out.get_mut(n + 8..n + 16)?.copy_from_slice(&info.sent().to_be_bytes());
    out.get_mut(n + 16..n + 24)?.copy_from_slice(&info.arrived().to_be_bytes());
    Some(n + TRAILER)
}

/// The sender cannot have received more than we have sent.
pub(super) fn same_stream(raw: &[u8], fd: i32) -> bool {
    let Some(at) = raw.len().checked_sub(TRAILER) else { return false };
    let word = |at: usize| u64::from_be_bytes(raw[at..at + 8].try_into().unwrap_or_default());
    let Some(info) = TcpInfo::of(fd) else { return false };
    raw[at..at + 8] == *MARK && word(at + 16) <= info.sent()
}
