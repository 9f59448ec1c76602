//! `struct rdma_addrinfo` of librdmacm, and what its hints may say.

use core::ffi::{c_char, c_int, c_void};

use libc::{sockaddr, socklen_t};

/// `RDMA_PS_UDP`: the port space of datagrams.
pub const PS_UDP: c_int = 0x0111;
/// `IBV_QPT_UD`: a queue pair for datagrams.
pub const QPT_UD: c_int = 4;

/// Bits of `AddrInfo::flags`.
pub mod rai {
    /// For who listens.
    pub const PASSIVE: i32 = 1;
    /// The name is a number: nothing is asked of name servers.
    pub const NUMERICHOST: i32 = 2;
    /// Routes are not wanted.
    pub const NOROUTE: i32 = 4;
    /// The family is a hint for the name.
    pub const FAMILY: i32 = 8;
}

/// `struct rdma_addrinfo`. All that it points to is of `malloc`, by whichever library it was made, so
/// that any `rdma_freeaddrinfo` can free it.
#[repr(C)]
pub struct AddrInfo {
    /// Bits of [`rai`].
    pub flags: c_int,
    /// `AF_INET` or `AF_INET6`.
    pub family: c_int,
    /// `IBV_QPT_RC`, `IBV_QPT_UD`, or others.
    pub qp_type: c_int,
    /// `RDMA_PS_TCP`, `RDMA_PS_UDP`, or others.
    pub port_space: c_int,
    /// Length of the address here.
    pub src_len: socklen_t,
    /// Length of the address of the other end.
    pub dst_len: socklen_t,
    /// Address here, or null.
    pub src_addr: *mut sockaddr,
    /// Address of the other end, or null.
    pub dst_addr: *mut sockaddr,
    /// Canonical name here, or null.
    pub src_canonname: *mut c_char,
    /// Canonical name of the other end, or null.
    pub dst_canonname: *mut c_char,
    /// Bytes of `route`.
    pub route_len: usize,
    /// Path records of InfiniBand, or null.
    pub route: *mut c_void,
    /// Bytes of `connect`.
    pub connect_len: usize,
    /// Data to put in front of private data, or null.
    pub connect: *mut c_void,
    /// The next result, or null.
    pub next: *mut Self,
}
