//! A stranger at the rendezvous: SEQPACKET sockets without the crate's help, and CLC messages to
//! say wrongly.
#![allow(unsafe_code)]

use std::io::Error;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smc::clc::negotiate::RELEASE;
use smc::clc::{
    Accept, Decline, Device, Devices, Eid, FirstContact, Gid, Message, Os, Proposal, SizeCode,
    SmcD, SmcDLevel, SmcDv2, Version,
};
use smc::inet::TcpInfo;
use smc::reason::Reason;

static STRANGER: AtomicU64 = AtomicU64::new(7);

/// The next stranger is somebody else: what we keep of one, such as a link group, must not help
/// another test along.
pub fn next_stranger() {
    STRANGER.fetch_add(1, Relaxed);
}

/// The stranger's device.
pub fn gid() -> Gid {
    Gid { hi: 0x1111_2222_3333_4444, lo: STRANGER.load(Relaxed) }
}

/// The stranger's device on that fabric: an ism device is in the partition that the CHID names.
pub fn gid_on(chid: u16) -> Gid {
    let gid = Gid { lo: gid().lo + u64::from(chid), ..gid() };
    if (0xff00..0xffff).contains(&chid) {
        Gid { hi: gid.hi & (u64::MAX >> 16) | u64::from(chid) << 48, ..gid }
    } else {
        gid
    }
}

/// A token in the stranger's arena.
pub fn token(slot: u64) -> u64 {
    STRANGER.load(Relaxed) << 24 | slot
}

/// The rendezvous name of the connection that `fd` is one end of.
fn address(fd: i32) -> (libc::sockaddr_un, u32) {
    let mut names = smc::inet::names(fd).expect("both names");
    names.sort_by_key(|a| a.key());
    let hex: String = names.iter().flat_map(|a| a.key()).map(|b| format!("{b:02x}")).collect();
    // SAFETY: all-zero is a valid address.
    let mut a: libc::sockaddr_un = unsafe { zeroed() };
    a.sun_family = libc::AF_UNIX as u16;
    let name = format!("shortwire/2/{hex}");
    for (to, from) in a.sun_path[1..].iter_mut().zip(name.as_bytes()) {
        *to = *from as _;
    }
    (a, 3 + name.len() as u32)
}

fn socket() -> OwnedFd {
    // SAFETY: integers only; the descriptor is fresh.
    unsafe {
        OwnedFd::from_raw_fd(libc::socket(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
            0,
        ))
    }
}

/// Takes the rendezvous name of a connection.
pub fn listen(fd: i32) -> OwnedFd {
    let (s, (a, len)) = (socket(), address(fd));
    // SAFETY: a live address of that length.
    let r = unsafe {
        libc::bind(s.as_raw_fd(), (&raw const a).cast(), len) | libc::listen(s.as_raw_fd(), 4)
    };
    assert_eq!(r, 0, "bind: {}", Error::last_os_error());
    s
}

pub fn accept(listener: &OwnedFd) -> OwnedFd {
    // SAFETY: no address is asked for; the descriptor is fresh.
    let fd = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC,
        )
    };
    assert!(fd >= 0, "accept: {}", Error::last_os_error());
    // SAFETY: checked.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub fn connect(fd: i32) -> Option<OwnedFd> {
    let (s, (a, len)) = (socket(), address(fd));
    // SAFETY: a live address of that length.
    let r = unsafe { libc::connect(s.as_raw_fd(), (&raw const a).cast(), len) };
    (r == 0).then_some(s)
}

/// One datagram with any number of descriptors.
pub fn say(to: &OwnedFd, message: &[u8], fds: &[i32]) {
    let iov = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut control = [0u64; 64];
    // SAFETY: all-zero is a valid msghdr; the control buffer is aligned and large enough for 100
    // descriptors.
    let r = unsafe {
        let mut m: libc::msghdr = zeroed();
        m.msg_iov = (&raw const iov).cast_mut();
        m.msg_iovlen = 1;
        if !fds.is_empty() {
            m.msg_control = control.as_mut_ptr().cast();
            m.msg_controllen = libc::CMSG_SPACE(4 * fds.len() as u32) as _;
            let c = libc::CMSG_FIRSTHDR(&raw const m);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(4 * fds.len() as u32) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), libc::CMSG_DATA(c), 4 * fds.len());
        }
        libc::sendmsg(to.as_raw_fd(), &raw const m, libc::MSG_NOSIGNAL)
    };
    if r < 0 && !fds.is_empty() && Error::last_os_error().raw_os_error() == Some(libc::EPERM) {
        // Since Linux 6.16 whoever is not admitted yet cannot pass a descriptor.
        return say(to, message, &[]);
    }
    // A peer that has hung up already has made its point.
    assert!(
        r >= 0 || Error::last_os_error().raw_os_error() == Some(libc::EPIPE),
        "sendmsg: {}",
        Error::last_os_error()
    );
}

/// One datagram and a descriptor that came with it; None when the other end is closed or silent.
/// `peek` leaves it there.
pub fn hear(from: i32, peek: bool) -> Option<(Vec<u8>, Option<OwnedFd>)> {
    let mut buffer = [0u8; 4096];
    let mut control = [0u64; 8];
    let iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero is a valid msghdr; everything it names is live, and a descriptor that came
    // is fresh.
    unsafe {
        let mut m: libc::msghdr = zeroed();
        m.msg_iov = (&raw const iov).cast_mut();
        m.msg_iovlen = 1;
        m.msg_control = control.as_mut_ptr().cast();
        m.msg_controllen = size_of_val(&control) as _;
        let flags =
            libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | if peek { libc::MSG_PEEK } else { 0 };
        let n = libc::recvmsg(from, &raw mut m, flags);
        let c = libc::CMSG_FIRSTHDR(&raw const m);
        let fd = (!c.is_null() && (*c).cmsg_type == libc::SCM_RIGHTS)
            .then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(c).cast::<i32>().read_unaligned()));
        (n > 0).then(|| (buffer[..n as usize].to_vec(), fd))
    }
}

/// What is heard, decoded.
pub fn hear_clc(from: &OwnedFd) -> Option<Message> {
    hear(from.as_raw_fd(), false).map(|(raw, _)| Message::decode(&raw).expect("a CLC message"))
}

/// A message as it goes out, with the trailer of a sender whose end of the stream is `fd`.
pub fn write(message: &Message, fd: i32) -> Vec<u8> {
    let info = TcpInfo::of(fd).expect("TCP_INFO");
    with_trailer(encode(message), info.sent(), info.arrived())
}

pub fn encode(message: &Message) -> Vec<u8> {
    let mut out = vec![0; 700];
    let n = message.encode(&mut out).expect("it fits");
    out.truncate(n);
    out
}

pub fn with_trailer(mut raw: Vec<u8>, sent: u64, arrived: u64) -> Vec<u8> {
    raw.extend(b"SHORTW\x01\x01");
    raw.extend(sent.to_be_bytes());
    raw.extend(arrived.to_be_bytes());
    raw
}

pub fn proposal(chid: u16) -> Proposal {
    let mut devices = Devices::new();
    devices.push(Device { gid: gid(), chid }).expect("room for one");
    Proposal::smcd(RELEASE, Default::default(), Some(Eid::LOOPBACK_SEID), devices)
}

/// The stranger's half of a first contact: slot 0, 64 KiB.
pub fn half() -> SmcD {
    SmcD {
        gid: gid(),
        token: token(0),
        index: 0,
        size: SizeCode::new(2).expect("a code"),
        link_id: [0, 1, 0, 0],
        level: SmcDLevel::V2(SmcDv2 {
            chid: 0xffff,
            eid: Some(Eid::LOOPBACK_SEID),
            first_contact: Some(FirstContact {
                os: Os::LINUX,
                release: RELEASE,
                ..FirstContact::default()
            }),
        }),
    }
}

pub fn v2(half: &mut SmcD) -> &mut SmcDv2 {
    match &mut half.level {
        SmcDLevel::V2(v2) => v2,
        SmcDLevel::V1 { .. } => panic!("made as version 2"),
    }
}

pub fn accept_of(half: SmcD) -> Message {
    Message::Accept(Accept::SmcD(half))
}

pub fn confirm_of(half: SmcD) -> Message {
    Message::Confirm(Accept::SmcD(half))
}

pub fn decline_of(why: Reason) -> Message {
    Message::Decline(Decline::new(Version::V2, why))
}

/// A memfd of `len` bytes with these seals.
pub fn memfd(len: u64, seals: i32) -> OwnedFd {
    // SAFETY: a literal name; the descriptor is fresh.
    unsafe {
        let fd =
            libc::memfd_create(c"stranger".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
        assert!(
            fd >= 0
                && libc::ftruncate(fd, len as i64) == 0
                && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
        );
        OwnedFd::from_raw_fd(fd)
    }
}

pub const SEALED: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Bytes of an arena with `slots` buffers of 64 KiB.
pub const fn arena(slots: u64) -> u64 {
    11 * 4096 + slots * (64 << 10)
}
