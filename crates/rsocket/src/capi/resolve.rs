//! `rdma_getaddrinfo` and `rdma_freeaddrinfo`, with which programs for rsockets find addresses.
//! librdmacm's fails where there is no RDMA device; an rsocket over shared memory needs none.
//!
//! Over verbs librdmacm is asked, because it may find routes. Either library frees what the other
//! has made: all is of `malloc`.
#![allow(unsafe_code)]

use super::set_errno;
use crate::config::{self, Provider};
use crate::verbs::abi::{AddrInfo, PS_TCP, PS_UDP, QPT_RC, QPT_UD, Resolver, rai};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use libc::{addrinfo, sockaddr, socklen_t};
use shm::Errno;

/// What `rdma_getaddrinfo` may fail with.
enum Failure {
    /// -1 and this errno.
    Errno(Errno),
    /// One of `EAI_*`, which is what the function returns.
    Name(c_int),
}

/// As librdmacm's: 0, or -1 and errno, or one of `EAI_*`. One result; the first address that
/// `getaddrinfo` names.
///
/// # Safety
/// The names are null or strings, `hints` is null or valid with all that it points to, `res` is
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    res: *mut *mut AddrInfo,
) -> c_int {
    let provider = config::provider();
    if provider != Provider::Shared
        && let Some(resolver) = Resolver::system()
    {
        // SAFETY: the caller's obligation; so in this whole file.
        let done = unsafe { (resolver.rdma_getaddrinfo)(node, service, hints, res) };
        if done == 0 || provider == Provider::Verbs {
            return done;
        }
    }
    // SAFETY: as above.
    let hints = unsafe { hints.as_ref() };
    // SAFETY: as above.
    match unsafe { resolve(node, service, hints) } {
        Ok(found) => {
            // SAFETY: as above.
            unsafe { res.write(found) };
            0
        }
        Err(Failure::Errno(e)) => {
            set_errno(e);
            -1
        }
        Err(Failure::Name(code)) => code,
    }
}

/// # Safety
/// `res` is null, or what `rdma_getaddrinfo` has made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut AddrInfo) {
    let mut next = res;
    // SAFETY: as above.
    while let Some(one) = unsafe { next.as_ref() } {
        let this = next;
        next = one.next;
        for part in [
            one.connect,
            one.route,
            one.src_canonname.cast(),
            one.dst_canonname.cast(),
            one.src_addr.cast(),
            one.dst_addr.cast(),
            this.cast::<c_void>(),
        ] {
            // SAFETY: null, or of malloc; nobody else has it.
            unsafe { libc::free(part) };
        }
    }
}

/// Memory of `malloc`, with this content.
///
/// # Safety
/// `from` is readable for `len` bytes.
unsafe fn copied(from: *const c_void, len: usize) -> Result<*mut c_void, Failure> {
    // SAFETY: it has no obligation.
    let to = unsafe { libc::malloc(len.max(1)) };
    if to.is_null() {
        return Err(Failure::Errno(Errno::NOMEM));
    }
    // SAFETY: both are that long.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(from.cast(), len) };
    Ok(to)
}

/// # Safety
/// `from` is readable for `len` bytes.
unsafe fn address(from: *const sockaddr, len: socklen_t) -> Result<*mut sockaddr, Failure> {
    // SAFETY: by the contract.
    unsafe { copied(from.cast(), len as usize) }.map(<*mut c_void>::cast)
}

/// What is freed if its making ends early.
struct Made(*mut AddrInfo);

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: made here, and given to nobody.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

/// # Safety
/// As [`rdma_getaddrinfo`].
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Result<*mut AddrInfo, Failure> {
    let no_name = node.is_null() && service.is_null();
    if no_name && hints.is_none() {
        return Err(Failure::Errno(Errno::INVAL));
    }
    // SAFETY: all of it may be zero.
    let made = Made(unsafe { libc::calloc(1, size_of::<AddrInfo>()) }.cast());
    // SAFETY: null, or of that size, zeroed.
    let found = unsafe { made.0.as_mut() }.ok_or(Failure::Errno(Errno::NOMEM))?;
    match hints {
        Some(hints) if no_name => {
            found.flags = hints.flags;
            found.family = hints.family;
            found.qp_type = hints.qp_type;
            found.port_space = hints.port_space;
            if hints.dst_len != 0 {
                // SAFETY: as above.
                found.dst_addr = unsafe { address(hints.dst_addr, hints.dst_len)? };
                found.dst_len = hints.dst_len;
            }
        }
        // SAFETY: as above.
        _ => unsafe { look_up(node, service, hints, found)? },
    }
    if let Some(hints) = hints
        && found.src_len == 0
        && hints.src_len != 0
    {
        // SAFETY: as above.
        found.src_addr = unsafe { address(hints.src_addr, hints.src_len)? };
        found.src_len = hints.src_len;
    }
    Ok(core::mem::ManuallyDrop::new(made).0)
}

/// # Safety
/// As [`rdma_getaddrinfo`].
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
    found: &mut AddrInfo,
) -> Result<(), Failure> {
    let wanted = hints.map(asked);
    let wanted = wanted.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let mut list = null_mut();
    // SAFETY: as above.
    match unsafe { libc::getaddrinfo(node, service, wanted, &mut list) } {
        0 => {}
        code => return Err(Failure::Name(code)),
    }
    // SAFETY: on success there is at least one.
    let done = unsafe { list.as_ref() }.map_or(Err(Failure::Name(libc::EAI_NONAME)), |first| {
        // SAFETY: of getaddrinfo.
        unsafe { fill(found, hints, first) }
    });
    // SAFETY: of getaddrinfo, and not used any more.
    unsafe { libc::freeaddrinfo(list) };
    done
}

/// What `getaddrinfo` is asked for.
fn asked(hints: &AddrInfo) -> addrinfo {
    // SAFETY: all of it may be zero.
    let mut ai: addrinfo = unsafe { core::mem::zeroed() };
    for (ours, theirs) in
        [(rai::PASSIVE, libc::AI_PASSIVE), (rai::NUMERICHOST, libc::AI_NUMERICHOST)]
    {
        if hints.flags & ours != 0 {
            ai.ai_flags |= theirs;
        }
    }
    ai.ai_family = hints.family;
    ai.ai_socktype = match hints.qp_type {
        0 => 0,
        QPT_UD => libc::SOCK_DGRAM,
        // Reliable, unreliable and extended connections.
        _ => libc::SOCK_STREAM,
    };
    ai.ai_protocol = match hints.port_space {
        PS_TCP => libc::IPPROTO_TCP,
        PS_UDP => libc::IPPROTO_UDP,
        _ => 0,
    };
    ai
}

/// # Safety
/// `from` is a result of `getaddrinfo`.
unsafe fn fill(
    to: &mut AddrInfo,
    hints: Option<&AddrInfo>,
    from: &addrinfo,
) -> Result<(), Failure> {
    let is_stream = from.ai_socktype != libc::SOCK_DGRAM;
    let given = |value: Option<c_int>, or| value.filter(|n| *n != 0).unwrap_or(or);
    to.family = from.ai_family;
    to.qp_type = given(hints.map(|h| h.qp_type), if is_stream { QPT_RC } else { QPT_UD });
    to.port_space = given(hints.map(|h| h.port_space), if is_stream { PS_TCP } else { PS_UDP });
    let name = if from.ai_canonname.is_null() {
        null_mut()
    } else {
        // SAFETY: a string.
        let len = unsafe { CStr::from_ptr(from.ai_canonname) }.count_bytes() + 1;
        // SAFETY: that long.
        unsafe { copied(from.ai_canonname.cast(), len)? }.cast()
    };
    let is_passive = hints.is_some_and(|h| h.flags & rai::PASSIVE != 0);
    if is_passive {
        to.flags = rai::PASSIVE;
        to.src_canonname = name;
        // SAFETY: by the contract.
        to.src_addr = unsafe { address(from.ai_addr, from.ai_addrlen)? };
        to.src_len = from.ai_addrlen;
    } else {
        to.dst_canonname = name;
        // SAFETY: by the contract.
        to.dst_addr = unsafe { address(from.ai_addr, from.ai_addrlen)? };
        to.dst_len = from.ai_addrlen;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: AddrInfo = AddrInfo {
        flags: 0,
        family: 0,
        qp_type: 0,
        port_space: 0,
        src_len: 0,
        dst_len: 0,
        src_addr: null_mut(),
        dst_addr: null_mut(),
        src_canonname: null_mut(),
        dst_canonname: null_mut(),
        route_len: 0,
        route: null_mut(),
        connect_len: 0,
        connect: null_mut(),
        next: null_mut(),
    };

    fn ask(node: &CStr, hints: &AddrInfo, then: impl FnOnce(&AddrInfo)) -> c_int {
        let mut res = null_mut();
        // SAFETY: strings, hints, and a place for the result.
        let done = unsafe { rdma_getaddrinfo(node.as_ptr(), c"7471".as_ptr(), hints, &mut res) };
        if done == 0 {
            // SAFETY: filled.
            then(unsafe { &*res });
            // SAFETY: not used any more.
            unsafe { rdma_freeaddrinfo(res) };
        }
        done
    }

    /// Family, port and first byte of an address.
    fn of(addr: *const sockaddr) -> (c_int, u16, u8) {
        // SAFETY: IPv4 in these tests.
        let v4 = unsafe { &*addr.cast::<libc::sockaddr_in>() };
        let bytes = v4.sin_addr.s_addr.to_ne_bytes();
        (v4.sin_family.into(), u16::from_be(v4.sin_port), bytes[0])
    }

    #[test]
    fn the_other_end_without_a_device() {
        let hints = AddrInfo { port_space: PS_TCP, ..ZERO };
        let done = ask(c"127.0.0.1", &hints, |found| {
            assert_eq!(of(found.dst_addr), (libc::AF_INET, 7471, 127));
            assert_eq!((found.family, found.qp_type, found.port_space), (2, QPT_RC, PS_TCP));
            assert_eq!((found.dst_len, found.src_len, found.flags), (16, 0, 0));
            assert!(found.src_addr.is_null() && found.route_len == 0 && found.next.is_null());
        });
        assert_eq!(done, 0);
    }

    #[test]
    fn who_listens_and_who_comes_from_an_address() {
        let mut here = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: 1u16.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 9, 9, 9]) },
            sin_zero: [0; 8],
        };
        let src_addr = (&raw mut here).cast();
        let hints = AddrInfo { flags: rai::PASSIVE, qp_type: QPT_UD, ..ZERO };
        assert_eq!(
            ask(c"127.0.0.1", &hints, |found| {
                assert_eq!(of(found.src_addr), (libc::AF_INET, 7471, 127));
                assert_eq!((found.flags, found.dst_len), (rai::PASSIVE, 0));
                assert_eq!((found.qp_type, found.port_space), (QPT_UD, PS_UDP));
            }),
            0
        );
        let hints = AddrInfo { port_space: PS_TCP, src_addr, src_len: 16, ..ZERO };
        assert_eq!(
            ask(c"127.0.0.1", &hints, |found| {
                assert_eq!(of(found.src_addr), (libc::AF_INET, 1, 127));
                assert_ne!(found.src_addr, src_addr);
            }),
            0
        );
        // Without names the hints are the result.
        let hints = AddrInfo { dst_addr: src_addr, dst_len: 16, family: 2, flags: 4, ..ZERO };
        let mut res = null_mut();
        let none = core::ptr::null();
        // SAFETY: hints, and a place for the result.
        assert_eq!(unsafe { rdma_getaddrinfo(none, none, &hints, &mut res) }, 0);
        // SAFETY: filled.
        let found = unsafe { &*res };
        assert_eq!((of(found.dst_addr).1, found.flags, found.family), (1, 4, 2));
        // SAFETY: not used any more.
        unsafe { rdma_freeaddrinfo(res) };
    }

    #[test]
    fn what_cannot_be_found_is_said_in_the_words_of_getaddrinfo() {
        let numeric = AddrInfo { flags: rai::NUMERICHOST, ..ZERO };
        assert_eq!(ask(c"no-number", &numeric, |_| ()), libc::EAI_NONAME);
        let mixed = AddrInfo { qp_type: QPT_UD, port_space: PS_TCP, ..ZERO };
        assert_eq!(ask(c"127.0.0.1", &mixed, |_| ()), libc::EAI_SOCKTYPE);
        let strange = AddrInfo { family: 27, ..ZERO };
        assert_eq!(ask(c"127.0.0.1", &strange, |_| ()), libc::EAI_FAMILY);
        let mut res = null_mut();
        let none = core::ptr::null();
        // SAFETY: a place for the result.
        assert_eq!(unsafe { rdma_getaddrinfo(none, none, core::ptr::null(), &mut res) }, -1);
        assert_eq!(crate::socket::last_error(), Errno::INVAL);
    }
}
