//! What the ends say and hear: messages on record, Declines, and our half of an Accept or Confirm.

use super::*;

pub(super) fn say(conn: &Conn, ch: Met, message: &[u8], pass: Option<i32>) -> bool {
    trace::note(conn, Way::Sent, message);
    ch.say(conn, message, pass)
}

/// Says our half of an Accept or Confirm, and passes what goes with it. Whether it has gone.
#[inline(never)]
pub(super) fn say_ours(
    conn: &Conn,
    ch: Met,
    ours: impl FnOnce() -> Message,
    lent: &Lent,
    info: &TcpInfo,
) -> bool {
    let mut out = [0u8; channel::MAX];
    let message = mark::write(&ours(), &lent.told, info, &mut out);
    message.is_some_and(|n| say(conn, ch, &out[..n], lent.fd.as_ref().map(shm::Handle::raw)))
}

pub(super) fn hear(
    conn: &Conn,
    ch: Met,
    buffer: &mut [u8; channel::MAX],
) -> Result<(usize, Option<i32>), Silence> {
    let got = ch.hear(conn, buffer)?;
    trace::note(conn, Way::Received, &buffer[..got.0]);
    Ok(got)
}

/// Takes a message that was looked at already, and whatever came with it.
#[inline(never)]
pub(super) fn consume(conn: &Conn, ch: Met) {
    if let Ok((_, Some(uninvited))) = hear(conn, ch, &mut [0; channel::MAX]) {
        sys::close(uninvited);
    }
}

/// The peer's Decline has come: why the connection stays TCP.
pub(super) fn declined(conn: &Conn, said: &Decline) -> Reason {
    let theirs = said.v2.and_then(|v2| Releases::of_word(v2.extra[0]));
    match theirs.filter(|_| said.diagnosis == reason::VERSION) {
        Some(theirs) => differs(conn, theirs),
        None => {
            conn.upgrade.is_declined(said.diagnosis);
            reason::PEER_DECL
        }
    }
}

/// Whether memory can be shared with the sender of a message, by the releases that it speaks. One
/// that names none is told apart later, by `is_same_stream`.
pub(super) fn speaks_ours(conn: &Conn, raw: &[u8]) -> Result<(), Reason> {
    match mark::releases(raw) {
        Some(theirs) if theirs.common(Releases::ours()).is_none() => Err(differs(conn, theirs)),
        _ => Ok(()),
    }
}

fn differs(conn: &Conn, theirs: Releases) -> Reason {
    conn.upgrade.is_of_another_release(Mismatch { ours: Releases::ours(), theirs });
    reason::VERSION
}

pub(super) fn decline(conn: &Conn, ch: Met, why: Reason) -> Next {
    decline_in(Version::V2, conn, ch, why)
}

/// Declines in the peer's version.
#[inline(never)]
pub(super) fn decline_in(version: Version, conn: &Conn, ch: Met, why: Reason) -> Next {
    let mut out = [0u8; channel::MAX];
    // Read the pending message first: a socket closed with unread data is reset, and the peer would
    // see that before our Decline.
    consume(conn, ch);
    let mut decline = Decline::new(version, why);
    if let Some(v2) = decline.v2.as_mut().filter(|_| why == reason::VERSION) {
        v2.extra[0] = Releases::ours().word();
    }
    if let Ok(n) = Message::Decline(decline).encode(&mut out) {
        let _ = say(conn, ch, &out[..n], None);
    }
    if let Some(t) = table::get() {
        t.stats.handshake_errors.fetch_add(1, Relaxed);
    }
    Next::Tcp(why)
}

/// Our half of an Accept or Confirm; `first` has the release to be spoken, at first contact.
pub(super) fn ends_message(
    id: u32,
    kind: Kind,
    dmb: &dibs::Dmb,
    eid: Option<Eid>,
    first: Option<u8>,
) -> Accept {
    Accept::SmcD(SmcD {
        gid: group::own_gid(id, kind),
        token: dmb.token,
        index: 0,
        size: SizeCode::compress(u64::from(dmb.len), SizeCode::MAX),
        link_id: (id << 8).to_ne_bytes(),
        level: SmcDLevel::V2(SmcDv2 {
            chid: kind.chid(),
            eid,
            first_contact: first.map(|release| FirstContact {
                os: Os::LINUX,
                release,
                hostname: hostname(),
                features: clc::FEATURE_EMULATED_ISM,
                vendor: if group::wants_integrity(kind) { FirstContact::INTEGRITY } else { [0; 4] },
                ..FirstContact::default()
            }),
        }),
    })
}

fn hostname() -> Hostname {
    let name = rustix::system::uname();
    Hostname::new(name.nodename().to_str().unwrap_or(""))
}
