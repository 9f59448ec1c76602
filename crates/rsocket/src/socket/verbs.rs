//! Sockets over verbs: opening, accepting, connecting and closing where librdmacm does what the
//! kernel's TCP does otherwise.
#![allow(unsafe_code)]

use super::lifecycle::adopt;
use super::{Phase, Socket};
use crate::verbs::connect::Connector;
use crate::{census, kernel};
use core::ptr::null_mut;
use core::sync::atomic::Ordering;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::RawFd;
use shm::Errno;

pub fn open(domain: i32) -> Result<RawFd, Errno> {
    let api = crate::verbs::api().ok_or(Errno::NODEV)?;
    place(Connector::open(api)?, domain, Phase::Idle).map(Socket::raw)
}

fn place(mut connector: Connector, domain: i32, phase: Phase) -> Result<&'static Socket, Errno> {
    match adopt(connector.number(), domain, phase) {
        Ok(socket) => {
            // SYNC: connector. Behind its making; nobody has the number yet.
            socket.connector.store(Box::into_raw(Box::new(connector)), Ordering::Release);
            socket.show(census::enter(None));
            Ok(socket)
        }
        Err(e) => {
            connector.close();
            Err(e)
        }
    }
}

/// librdmacm reads as much as the family says.
fn is_complete(addr: *const libc::sockaddr, len: u32) -> bool {
    if addr.is_null() || (len as usize) < size_of::<libc::sockaddr>() {
        return false;
    }
    // SAFETY: that long, by the caller.
    match i32::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => true,
        libc::AF_INET6 => len as usize >= size_of::<libc::sockaddr_in6>(),
        _ => false,
    }
}

/// # Safety
/// `addr` points to `len` bytes, or is null.
pub unsafe fn bind(socket: &Socket, addr: *const libc::sockaddr, len: u32) -> Result<(), Errno> {
    if !is_complete(addr, len) {
        return Err(Errno::INVAL);
    }
    let _held = socket.setup.lock().map_err(|_| Errno::AGAIN)?;
    // SAFETY: under `setup`.
    let connector = unsafe { socket.connector() }.ok_or(Errno::BADF)?;
    // SAFETY: a complete address.
    unsafe { connector.bind(addr) }
}

pub fn listen(socket: &Socket, backlog: i32) -> Result<(), Errno> {
    let _held = socket.setup.lock().map_err(|_| Errno::AGAIN)?;
    // SAFETY: under `setup`.
    let connector = unsafe { socket.connector() }.ok_or(Errno::BADF)?;
    connector.listen(backlog)?;
    socket.row().listens.store(1, Ordering::Relaxed);
    census::name(socket.row(), &[connector.address(false), connector.address(true)]);
    socket.set_phase(Phase::Listening);
    Ok(())
}

/// The next connection, whose answer is under way.
pub fn accept(listener: &Socket) -> Result<&'static Socket, Errno> {
    loop {
        {
            let _held = listener.setup.lock().map_err(|_| Errno::AGAIN)?;
            // SAFETY: under `setup`.
            let connector = unsafe { listener.connector() }.ok_or(Errno::BADF)?;
            if let Some(mut request) = connector.accept()? {
                match request.answer(&listener.config(), listener.inline()) {
                    Ok(()) => {
                        let socket = place(request, listener.domain, Phase::Accepting)?;
                        socket.inherit(listener);
                        return Ok(socket);
                    }
                    // Not one of us, or gone already: the next.
                    Err(_) => {
                        let number = request.number();
                        request.close();
                        // SAFETY: given to nobody.
                        unsafe { rustix::io::close(number) };
                        continue;
                    }
                }
            }
        }
        if listener.is_nonblocking() {
            return Err(Errno::AGAIN);
        }
        rustix::event::poll(&mut [PollFd::new(&listener.kernel(), PollFlags::IN)], None)?;
    }
}

/// Under `setup`.
///
/// # Safety
/// `addr` points to `len` bytes, or is null.
pub unsafe fn connect(socket: &Socket, addr: *const libc::sockaddr, len: u32) -> Result<(), Errno> {
    if !is_complete(addr, len) {
        return Err(Errno::INVAL);
    }
    // SAFETY: under `setup`.
    let connector = unsafe { socket.connector() }.ok_or(Errno::BADF)?;
    // SAFETY: a complete address.
    unsafe { connector.connect(addr) }?;
    socket.set_phase(Phase::Connecting);
    Ok(())
}

/// Nobody is inside any more, and the endpoint is gone.
pub fn close(socket: &Socket) {
    let connector = socket.connector.swap(null_mut(), Ordering::AcqRel);
    if !connector.is_null() {
        // SAFETY: from `place`, and taken by us alone.
        unsafe { Box::from_raw(connector) }.close();
    }
}

impl Socket {
    /// Own name, or the peer's, cut to the room that `len` tells, which then is its real length.
    ///
    /// # Safety
    /// `addr` is writable for `*len` bytes.
    pub unsafe fn name(
        &self,
        peer: bool,
        addr: *mut libc::sockaddr,
        len: *mut u32,
    ) -> Result<(), Errno> {
        if !self.is_verbs() {
            // SAFETY: by the contract.
            let done = match peer {
                // SAFETY: by the contract.
                true => unsafe { kernel::getpeername(self.raw(), addr, len) },
                // SAFETY: by the contract.
                false => unsafe { kernel::getsockname(self.raw(), addr, len) },
            };
            return if done == 0 { Ok(()) } else { Err(super::last_error()) };
        }
        let _held = self.setup.lock().map_err(|_| Errno::AGAIN)?;
        // SAFETY: under `setup`.
        let name = unsafe { self.connector() }.ok_or(Errno::BADF)?.address(peer);
        let real = match i32::from(name.ss_family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => return Err(Errno::NOTCONN),
        };
        // SAFETY: by the contract.
        let room = unsafe { len.read() } as usize;
        let from = (&raw const name).cast::<u8>();
        // SAFETY: no more than there is room for.
        unsafe { addr.cast::<u8>().copy_from_nonoverlapping(from, real.min(room)) };
        // SAFETY: by the contract.
        unsafe { len.write(real as u32) };
        Ok(())
    }
}
