//! Addresses of `std::net`, as the kernel has them.
#![allow(unsafe_code)]

use crate::table;
use rustix::fd::RawFd;
use rustix::net::addr::SocketAddrArg;
use shm::Errno;
use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, ToSocketAddrs};

pub fn domain(address: &SocketAddr) -> i32 {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

/// Calls `f` with the address as `sockaddr`.
pub fn with<R>(
    address: &SocketAddr,
    f: impl FnOnce(*const libc::sockaddr, u32) -> std::result::Result<R, Errno>,
) -> Result<R> {
    // SAFETY: rustix lends an initialised address for the call.
    Ok(unsafe { address.with_sockaddr(|ptr, len| f(ptr.cast(), len)) }?)
}

/// The first success for any of the addresses, or the last error.
pub fn each<T>(address: impl ToSocketAddrs, f: impl Fn(&SocketAddr) -> Result<T>) -> Result<T> {
    let mut last = Error::new(ErrorKind::InvalidInput, "no address to use");
    for address in address.to_socket_addrs()? {
        match f(&address) {
            Ok(found) => return Ok(found),
            Err(e) => last = e,
        }
    }
    Err(last)
}

pub fn local(fd: RawFd) -> Result<SocketAddr> {
    name(fd, false)
}

pub fn peer(fd: RawFd) -> Result<SocketAddr> {
    name(fd, true)
}

fn name(fd: RawFd, peer: bool) -> Result<SocketAddr> {
    // SAFETY: all of it may be zero.
    let mut name: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of_val(&name) as u32;
    // SAFETY: room for any address.
    unsafe { table::get(fd)?.name(peer, (&raw mut name).cast(), &mut len)? };
    // SAFETY: an address of that length.
    let name = unsafe { rustix::net::SocketAddrAny::read((&raw const name).cast(), len) };
    name.try_into().map_err(|_| Errno::AFNOSUPPORT.into())
}
