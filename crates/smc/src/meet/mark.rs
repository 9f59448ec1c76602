//! What tells one TCP connection from an earlier one with the same addresses.

use dibs::ism::Place;

use crate::channel;
use crate::clc::Message;
use crate::inet::TcpInfo;

/// Behind each Proposal, Accept and Confirm: what its sender has sent and received on the TCP stream, so that a name
/// left over from an earlier connection with the same addresses is told apart.
const MARK: &[u8; 8] = b"SHORTWR1";

const TRAILER: usize = 24;

/// Between message and mark, for a buffer on the ism device: where its arena lies.
const PLACE: usize = 24;

pub(super) fn write(message: &Message, place: Option<Place>, fd: i32, out: &mut [u8; channel::MAX]) -> Option<usize> {
    let mut n = message.encode(out).ok()?;
    if let Some(place) = place {
        for word in [place.base, place.len, place.proof] {
            out.get_mut(n..n + 8)?.copy_from_slice(&word.to_be_bytes());
            n += 8;
        }
    }
    let info = TcpInfo::of(fd)?;
    out.get_mut(n..n + 8)?.copy_from_slice(MARK);
    out.get_mut(n + 8..n + 16)?.copy_from_slice(&info.sent().to_be_bytes());
    out.get_mut(n + 16..n + 24)?.copy_from_slice(&info.arrived().to_be_bytes());
    Some(n + TRAILER)
}

/// Where the sender's arena lies, if it said so.
pub(super) fn place(raw: &[u8]) -> Option<Place> {
    let message = usize::from(u16::from_be_bytes(raw.get(5..7)?.try_into().ok()?));
    let place = raw.get(message..).filter(|rest| rest.len() == PLACE + TRAILER)?;
    let word = |at: usize| u64::from_be_bytes(place[at..at + 8].try_into().unwrap_or_default());
    Some(Place { base: word(0), len: word(8), proof: word(16) })
}

/// The sender cannot have received more than we have sent.
pub(super) fn same_stream(raw: &[u8], fd: i32) -> bool {
    let Some(at) = raw.len().checked_sub(TRAILER) else { return false };
    let word = |at: usize| u64::from_be_bytes(raw[at..at + 8].try_into().unwrap_or_default());
    let Some(info) = TcpInfo::of(fd) else { return false };
    raw[at..at + 8] == *MARK && word(at + 16) <= info.sent()
}
