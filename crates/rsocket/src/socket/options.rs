//! rsetsockopt, rgetsockopt, rfcntl and names: what librdmacm documents, and ENOTSUP for all else.
#![allow(unsafe_code)]

use super::lifecycle::last_error;
use super::{Phase, Socket};
use crate::config::{BUFFER_MAX, BUFFER_MIN, QUEUE_MAX, QUEUE_MIN};
use crate::kernel;
use crate::wire;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use shm::Errno;

/// The level of options for RDMA.
const SOL_RDMA: i32 = 0x10000;
const RDMA_SQSIZE: i32 = 0;
const RDMA_RQSIZE: i32 = 1;
const RDMA_INLINE: i32 = 2;
const RDMA_IOMAPSIZE: i32 = 3;
const RDMA_ROUTE: i32 = 4;
/// `sizeof(struct ibv_path_data)`.
const PATH_DATA: usize = 72;
/// What TCP_MAXSEG says without a path MTU, as in librdmacm.
const MAXSEG: i32 = 2048;

/// The int that an option's value begins with.
fn int(value: &[u8]) -> Result<i32, Errno> {
    value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::INVAL)
}

fn set_bit(word: &AtomicU64, bit: i32, on: bool) -> Result<(), Errno> {
    if on {
        word.fetch_or(1 << bit, Ordering::Relaxed);
    } else {
        word.fetch_and(!(1 << bit), Ordering::Relaxed);
    }
    Ok(())
}

fn bit(word: &AtomicU64, bit: i32) -> i32 {
    i32::from(word.load(Ordering::Relaxed) >> bit & 1 != 0)
}

/// The size that an application asks for, doubled for two halves, within what can be had.
fn buffer(value: i32) -> u32 {
    (value.max(0) as u32).saturating_mul(2).clamp(BUFFER_MIN, BUFFER_MAX)
}

impl Socket {
    /// Sizes are fixed once a connection is being made.
    fn is_fixed(&self) -> bool {
        !matches!(
            self.phase(),
            Phase::Idle | Phase::Listening | Phase::Connecting | Phase::Datagram
        )
    }

    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        if self.phase() == Phase::Datagram && level != SOL_RDMA {
            return self.set_kernel_option(level, name, value);
        }
        let o = &self.options;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) | (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                self.set_kernel_option(level, name, value)
            }
            // The kernel's socket has them for accept and connect.
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) if !self.is_verbs() => {
                self.set_kernel_option(level, name, value)?;
                self.note_limits();
                Ok(())
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.set_size(&o.rbuf, buffer(int(value)?)),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.set_size(&o.sbuf, buffer(int(value)?)),
            // Data that was sent is with the peer already, so there is nothing to linger for.
            (libc::SOL_SOCKET, libc::SO_LINGER) if value.len() < 8 => Err(Errno::INVAL),
            // Inverted: on is the default.
            (libc::SOL_SOCKET, libc::SO_LINGER) => set_bit(&o.socket, name, int(value)? == 0),
            // A peer that is gone is noticed at once, whatever the application asks for.
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE | libc::SO_OOBINLINE) => {
                set_bit(&o.socket, name, int(value)? != 0)
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => set_bit(&o.tcp, name, int(value)? != 0),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG | libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => {
                int(value).map(drop)
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => match int(value)? {
                seconds @ 1.. => {
                    o.keepalive_time.store(seconds as u32, Ordering::Relaxed);
                    Ok(())
                }
                _ => Err(Errno::INVAL),
            },
            (SOL_RDMA, _) => self.set_rdma_option(name, value),
            _ => Err(Errno::NOTSUP),
        }
    }

    fn set_rdma_option(&self, name: i32, value: &[u8]) -> Result<(), Errno> {
        if self.phase().is_opening() || self.is_fixed() {
            return Err(Errno::INVAL);
        }
        let o = &self.options;
        let limited = |low: u16| int(value).map(|n| (n as u32).clamp(low.into(), QUEUE_MAX.into()));
        match name {
            RDMA_SQSIZE => self.set_size(&o.sq, limited(QUEUE_MIN)?),
            RDMA_RQSIZE => self.set_size(&o.rq, limited(QUEUE_MIN)?),
            RDMA_INLINE => self.set_size(&o.inline, limited(0)?),
            RDMA_IOMAPSIZE => {
                let n = u16::try_from(int(value)?.clamp(0, 0x7fff)).unwrap_or(0);
                self.set_size(&o.iomaps, wire::from_scale(wire::to_scale(n)).into())
            }
            // There are no routes to choose from on one machine.
            RDMA_ROUTE if !value.is_empty() => Ok(()),
            RDMA_ROUTE => Err(Errno::INVAL),
            _ => Err(Errno::NOTSUP),
        }
    }

    fn set_size(&self, word: &AtomicU32, n: u32) -> Result<(), Errno> {
        // Without effect, not an error, once the buffers exist: as in librdmacm.
        if !self.is_fixed() {
            word.store(n, Ordering::Relaxed);
        }
        Ok(())
    }

    fn set_kernel_option(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        if self.is_verbs() {
            // Ports of the connection manager can be bound again at once, and IPv6 means IPv6.
            return int(value).map(drop);
        }
        // SAFETY: `value` is readable for its length.
        match unsafe {
            kernel::setsockopt(self.raw(), level, name, value.as_ptr().cast(), value.len() as u32)
        } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }

    /// Writes the value to `out` and returns its length. A buffer too small for the value is
    /// EINVAL.
    pub fn get_option(&self, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        if self.phase() == Phase::Datagram && level != SOL_RDMA {
            return self.get_kernel_option(level, name, out);
        }
        let o = &self.options;
        let read = |word: &AtomicU32| word.load(Ordering::Relaxed) as i32;
        let value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) | (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                return self.get_kernel_option(level, name, out);
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) if !self.is_verbs() => {
                return self.get_kernel_option(level, name, out);
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE | libc::SO_OOBINLINE) => bit(&o.socket, name),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.config().rbuf as i32,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => read(&o.sbuf),
            (
                libc::SOL_SOCKET,
                libc::SO_TYPE | libc::SO_DOMAIN | libc::SO_PROTOCOL | libc::SO_ACCEPTCONN,
            ) => {
                return self.get_kernel_option(level, name, out);
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let (on, off) = out.split_at_mut_checked(4).ok_or(Errno::INVAL)?;
                on.copy_from_slice(&(1 - bit(&o.socket, name)).to_ne_bytes());
                off.get_mut(..4).ok_or(Errno::INVAL)?.fill(0);
                return Ok(8);
            }
            (libc::SOL_SOCKET, libc::SO_ERROR) => self.take_error(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => bit(&o.tcp, name),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => 1,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => read(&o.keepalive_time),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => MAXSEG,
            (SOL_RDMA, RDMA_SQSIZE) => read(&o.sq),
            (SOL_RDMA, RDMA_RQSIZE) => read(&o.rq),
            (SOL_RDMA, RDMA_INLINE) => read(&o.inline),
            (SOL_RDMA, RDMA_IOMAPSIZE) => read(&o.iomaps),
            (SOL_RDMA, RDMA_ROUTE) => {
                return if out.len() < PATH_DATA { Err(Errno::INVAL) } else { Ok(0) };
            }
            _ => return Err(Errno::NOTSUP),
        };
        out.get_mut(..4).ok_or(Errno::INVAL)?.copy_from_slice(&value.to_ne_bytes());
        Ok(4)
    }

    /// Takes over what the kernel's socket says of how long calls may wait.
    pub(super) fn note_limits(&self) {
        for (limit, name) in self.options.limits.iter().zip([libc::SO_RCVTIMEO, libc::SO_SNDTIMEO])
        {
            let mut out = [0; size_of::<libc::timeval>()];
            let Ok(16) = self.get_kernel_option(libc::SOL_SOCKET, name, &mut out) else { continue };
            let [seconds, micros] = [0, 8]
                .map(|at| out[at..].first_chunk().map_or(0, |bytes| i64::from_ne_bytes(*bytes)));
            let time = seconds.saturating_mul(1_000_000).saturating_add(micros);
            limit.store(time.cast_unsigned(), Ordering::Relaxed);
        }
    }

    fn take_error(&self) -> i32 {
        match self.streaming() {
            Some(stream) => stream.take_error(),
            None => self.error.swap(0, Ordering::Relaxed),
        }
    }

    fn get_kernel_option(&self, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        if self.is_verbs() {
            let value = match name {
                libc::SO_TYPE if level == libc::SOL_SOCKET => libc::SOCK_STREAM,
                libc::SO_DOMAIN if level == libc::SOL_SOCKET => self.domain,
                libc::SO_PROTOCOL if level == libc::SOL_SOCKET => libc::IPPROTO_TCP,
                libc::SO_ACCEPTCONN if level == libc::SOL_SOCKET => {
                    i32::from(self.phase() == Phase::Listening)
                }
                _ => 1,
            };
            out.get_mut(..4).ok_or(Errno::INVAL)?.copy_from_slice(&value.to_ne_bytes());
            return Ok(4);
        }
        let mut len = out.len() as u32;
        // SAFETY: `out` is writable for its length.
        match unsafe {
            kernel::getsockopt(self.raw(), level, name, out.as_mut_ptr().cast(), &mut len)
        } {
            0 => Ok(len as usize),
            _ => Err(last_error()),
        }
    }

    pub fn fcntl(&self, command: i32, argument: i64) -> Result<i32, Errno> {
        match command {
            libc::F_GETFL => Ok(self.status_flags.load(Ordering::Relaxed)),
            libc::F_SETFL => {
                let flags = argument as i32;
                // The kernel's socket follows: accept and connect wait in the kernel.
                // SAFETY: no pointers.
                if unsafe { kernel::fcntl(self.raw(), libc::F_SETFL, flags.into()) } < 0 {
                    return Err(last_error());
                }
                self.status_flags.store(flags & !libc::O_ACCMODE | libc::O_RDWR, Ordering::Relaxed);
                Ok(0)
            }
            libc::F_GETFD | libc::F_SETFD => {
                // SAFETY: no pointers.
                match unsafe { kernel::fcntl(self.raw(), command, argument) } {
                    -1 => Err(last_error()),
                    n => Ok(n),
                }
            }
            _ => Err(Errno::NOTSUP),
        }
    }
}
