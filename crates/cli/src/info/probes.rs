//! Kernel features, each tried in earnest.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::null_mut;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, netlink, recv, send, socket_with,
};
use rustix::process::getuid;
use serde::Serialize;

use crate::sys;

#[derive(Serialize)]
pub struct Feature {
    pub name: &'static str,
    pub works: bool,
    pub problem: Option<String>,
    /// What happens where it is missing.
    pub without: &'static str,
}

pub fn all() -> Vec<Feature> {
    let mut features = vec![
        feature(
            "sealed shared memory (memfd)",
            sealed_memory(),
            "nothing can be upgraded, all stays TCP",
        ),
        feature(
            "abstract Unix sockets",
            abstract_socket().map(drop),
            "ends cannot meet, all stays TCP",
        ),
        feature(
            "peer credentials (SO_PEERCRED)",
            peer_credentials(),
            "ends cannot check each other, all stays TCP",
        ),
    ];
    match connected_pair() {
        Ok(pair) => {
            features.push(feature(
                "exact socket lookup (inet_diag)",
                socket_lookup(&pair),
                "only processes of the same user can share memory",
            ));
            features.push(feature(
                "stream position (TCP_INFO bytes_sent)",
                stream_position(pair),
                "the switch offset is unknown, all stays TCP",
            ));
        }
        Err(error) => features.push(feature(
            "TCP over 127.0.0.1",
            Err(error),
            "is the loopback interface up?",
        )),
    }
    features
}

fn feature(name: &'static str, outcome: Result<()>, without: &'static str) -> Feature {
    Feature {
        name,
        works: outcome.is_ok(),
        problem: outcome.err().map(|error| format!("{error:#}")),
        without,
    }
}

/// The control pages of a connection: writable through our mapping made before the seal, for nobody
/// else.
fn sealed_memory() -> Result<()> {
    let memory = memfd_create("shortwire-probe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .context("memfd_create")?;
    ftruncate(&memory, 4096).context("ftruncate")?;
    let ours = map_writable(&memory).context("mmap")?;
    let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let sealed = fcntl_add_seals(&memory, seals).context("sealing against future writers");
    let second = map_writable(&memory);
    // SAFETY: exactly the mapping made above, to which no reference exists.
    let _ = unsafe { munmap(ours, 4096) };
    sealed?;
    match second {
        Err(_) => Ok(()),
        Ok(mapping) => {
            // SAFETY: exactly the mapping just made, to which no reference exists.
            let _ = unsafe { munmap(mapping, 4096) };
            bail!("a sealed page can still be mapped for writing")
        }
    }
}

fn map_writable(memory: &OwnedFd) -> Result<*mut std::ffi::c_void> {
    // SAFETY: a fresh mapping at an address the kernel chooses touches no existing memory.
    let mapping = unsafe {
        mmap(null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, memory, 0)
    };
    Ok(mapping?)
}

/// The way in which the two ends of a connection meet: listener, client, and the accepted end.
fn abstract_socket() -> Result<(OwnedFd, OwnedFd)> {
    let name = format!("shortwire-probe-{}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let make =
        || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (listener, client) = (make()?, make()?);
    bind(&listener, &address).context("bind")?;
    listen(&listener, 1).context("listen")?;
    connect(&client, &address).context("connect")?;
    let accepted = accept(&listener).context("accept")?;
    Ok((client, accepted))
}

fn peer_credentials() -> Result<()> {
    let (client, accepted) = abstract_socket()?;
    for end in [&client, &accepted] {
        let credentials = socket_peercred(end)?;
        ensure!(
            credentials.uid == getuid(),
            "the kernel names another user than the one at the other end"
        );
    }
    Ok(())
}

fn connected_pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    Ok((client, listener.accept()?.0))
}

/// `tcpi_bytes_sent` in struct tcp_info.
const BYTES_SENT: usize = 200;

fn stream_position((mut client, mut accepted): (TcpStream, TcpStream)) -> Result<()> {
    client.write_all(b"twelve bytes")?;
    accepted.read_exact(&mut [0; 12])?;
    let info = sys::tcp_info(client.as_fd())?;
    let field = info.get(BYTES_SENT..BYTES_SENT + 8).and_then(|bytes| bytes.try_into().ok());
    let sent = field
        .map(u64::from_ne_bytes)
        .context("this kernel's TCP_INFO is too short (before Linux 4.19)")?;
    ensure!(sent == 12, "12 bytes were sent but the kernel counts {sent}");
    Ok(())
}

/// SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, and the length of the two structures behind the netlink
/// header.
const LOOKUP: u16 = 20;
const REQUEST: u16 = 1;
const HEADER: usize = 16;
const REQUEST_LENGTH: usize = HEADER + 56;
const UID_IN_ANSWER: usize = HEADER + 64;

/// Asks for the one socket with these addresses, as anyone may.
fn socket_lookup((client, _): &(TcpStream, TcpStream)) -> Result<()> {
    let (SocketAddr::V4(local), SocketAddr::V4(peer)) = (client.local_addr()?, client.peer_addr()?)
    else {
        bail!("127.0.0.1 is not IPv4")
    };
    let mut request = Vec::with_capacity(REQUEST_LENGTH);
    request.extend((REQUEST_LENGTH as u32).to_ne_bytes());
    request.extend(LOOKUP.to_ne_bytes());
    request.extend(REQUEST.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([libc::AF_INET as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(local.port().to_be_bytes());
    request.extend(peer.port().to_be_bytes());
    request.extend(local.ip().octets());
    request.extend([0; 12]);
    request.extend(peer.ip().octets());
    request.extend([0; 12]);
    request.extend([0; 4]);
    request.extend([0xFF; 8]);
    let channel = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .context("netlink socket")?;
    set_socket_timeout(&channel, Timeout::Recv, Some(Duration::from_secs(1)))
        .context("netlink socket")?;
    send(&channel, &request, SendFlags::empty()).context("netlink request")?;
    let mut answer = [0u8; 512];
    let (_, length) = recv(&channel, &mut answer, RecvFlags::empty()).context("netlink answer")?;
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    ensure!(
        length >= UID_IN_ANSWER + 8 && kind == LOOKUP,
        "the kernel does not answer (is the module tcp_diag missing?)"
    );
    let uid = u32::from_ne_bytes(answer[UID_IN_ANSWER..UID_IN_ANSWER + 4].try_into()?);
    ensure!(uid == getuid().as_raw(), "the kernel names user {uid} as the owner of our socket");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probes_pass_on_a_kernel_that_runs_the_project() {
        for feature in all() {
            assert!(feature.works, "{}: {:?}", feature.name, feature.problem);
        }
    }
}
