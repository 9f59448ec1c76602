//! What an operator does with `ip link`, from inside: find an interface, look at it, set it up.
//!
//! All by ioctl on a throwaway socket: see netdevice(7). Works in the calling thread's network
//! namespace.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Why an interface cannot be found or changed. Each message is a sentence for people.
#[derive(Debug, thiserror::Error)]
pub enum NetdevError {
    /// ENODEV: there is none of this name.
    #[error(
        "there is no interface \"{name}\" in this network namespace; `ip link` lists those that exist{hint}"
    )]
    NotFound {
        /// What was looked for.
        name: String,
        /// Names that exist, as the end of the sentence.
        hint: String,
    },
    /// The kernel has no such names.
    #[error(
        "\"{0}\" cannot be the name of an interface: 1 to 15 characters, no space and no \"/\""
    )]
    BadName(String),
    /// EPERM or EACCES.
    #[error("not permitted to {operation} of {name}: run as root or grant CAP_NET_ADMIN")]
    NotPermitted {
        /// The interface.
        name: String,
        /// What was tried, as in "set the MTU".
        operation: &'static str,
    },
    /// Any other answer of the system.
    #[error("cannot {operation} of {name}: {error}")]
    Os {
        /// The interface.
        name: String,
        /// What was tried, as in "set the MTU".
        operation: &'static str,
        /// The system's answer.
        error: io::Error,
    },
}

/// An interface of the network namespace that the calling thread was in when it was found.
#[derive(Debug)]
pub struct Netdev {
    name: String,
    index: u32,
    control: OwnedFd,
}

impl Netdev {
    /// The interface of this name, in the calling thread's network namespace.
    pub fn find(name: &str) -> Result<Netdev, NetdevError> {
        check_name(name)?;
        let os = |error: io::Error| NetdevError::Os {
            name: name.into(),
            operation: "open a control socket",
            error,
        };
        let control = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|errno| os(errno.into()))?;
        match rustix::net::netdevice::name_to_index(&control, name) {
            Ok(index) => Ok(Netdev { name: name.into(), index, control }),
            Err(rustix::io::Errno::NODEV) => {
                Err(NetdevError::NotFound { name: name.into(), hint: hint() })
            }
            Err(errno) => {
                Err(NetdevError::Os { name: name.into(), operation: "find", error: errno.into() })
            }
        }
    }

    /// The name by which it was found.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in its network namespace (`ifindex`).
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether it still exists under this name: an interface may go away, and another one take its
    /// name.
    pub fn exists(&self) -> bool {
        rustix::net::netdevice::name_to_index(&self.control, &self.name) == Ok(self.index)
    }

    /// In bytes, without the Ethernet header.
    pub fn mtu(&self) -> Result<u32, NetdevError> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFMTU, &mut request, "read the MTU")?;
        // SAFETY: SIOCGIFMTU has filled in this member.
        Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
    }

    /// Sets the longest payload of a frame, in bytes (SIOCSIFMTU).
    pub fn set_mtu(&self, mtu: u32) -> Result<(), NetdevError> {
        let mut request = self.request();
        request.ifr_ifru.ifru_mtu = mtu as i32;
        self.ioctl(libc::SIOCSIFMTU, &mut request, "set the MTU")
    }

    fn flags(&self) -> Result<i32, NetdevError> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFFLAGS, &mut request, "read the flags")?;
        // SAFETY: SIOCGIFFLAGS has filled in this member.
        Ok(i32::from(unsafe { request.ifr_ifru.ifru_flags }))
    }

    /// Administratively up: `ip link set dev NAME up`.
    pub fn is_up(&self) -> Result<bool, NetdevError> {
        Ok(self.flags()? & libc::IFF_UP != 0)
    }

    /// Up and with a carrier.
    pub fn is_running(&self) -> Result<bool, NetdevError> {
        Ok(self.flags()? & libc::IFF_RUNNING != 0)
    }

    /// Sets it up or down (IFF_UP); whether frames go through is up to the other end, too.
    pub fn set_up(&self, up: bool) -> Result<(), NetdevError> {
        let flags = self.flags()?;
        let mut request = self.request();
        let wanted = if up { flags | libc::IFF_UP } else { flags & !libc::IFF_UP };
        request.ifr_ifru.ifru_flags = wanted as i16;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request, "change the state")
    }

    /// Its own address, which the kernel sends from (SIOCGIFHWADDR).
    pub fn mac_address(&self) -> Result<[u8; 6], NetdevError> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFHWADDR, &mut request, "read the address")?;
        // SAFETY: SIOCGIFHWADDR has filled in this member.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        Ok(std::array::from_fn(|i| byte(address.sa_data[i])))
    }

    /// Receive frames for all addresses until the result is dropped. The kernel counts who wants
    /// that, and forgets us when the process ends.
    pub fn promiscuous(&self) -> Result<Promiscuous, NetdevError> {
        let name = || self.name.clone();
        let operation = "receive frames for all addresses";
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                NetdevError::NotPermitted { name: name(), operation }
            }
            _ => NetdevError::Os { name: name(), operation, error },
        };
        let (family, flags) = (AddressFamily::PACKET, SocketFlags::CLOEXEC);
        // Protocol 0: it receives nothing itself.
        let socket = rustix::net::socket_with(family, SocketType::RAW, flags, None)
            .map_err(|e| failed(e.into()))?;
        let request = libc::packet_mreq {
            mr_ifindex: self.index as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        // SAFETY: the option's value is a `packet_mreq`.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const request).cast(),
                size_of_val(&request) as u32,
            )
        };
        if result == 0 {
            Ok(Promiscuous { _socket: socket })
        } else {
            Err(failed(io::Error::last_os_error()))
        }
    }

    fn request(&self) -> libc::ifreq {
        named_request(&self.name)
    }

    fn ioctl(
        &self,
        number: libc::Ioctl,
        request: &mut libc::ifreq,
        operation: &'static str,
    ) -> Result<(), NetdevError> {
        // SAFETY: every request used here reads and writes one `ifreq`.
        let result = unsafe { libc::ioctl(self.control.as_raw_fd(), number, &raw mut *request) };
        if result == 0 {
            return Ok(());
        }
        let (name, error) = (self.name.clone(), io::Error::last_os_error());
        Err(match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => NetdevError::NotPermitted { name, operation },
            Some(libc::ENODEV) => NetdevError::NotFound { name, hint: hint() },
            _ => NetdevError::Os { name, operation, error },
        })
    }
}

/// Keeps an interface promiscuous.
#[derive(Debug)]
pub struct Promiscuous {
    _socket: OwnedFd,
}

pub(crate) fn check_name(name: &str) -> Result<(), NetdevError> {
    let bad = name.is_empty()
        || name.len() >= libc::IFNAMSIZ
        || name.bytes().any(|b| b == b'/' || b == 0 || b == b':' || b.is_ascii_whitespace());
    if bad || name == "." || name == ".." { Err(NetdevError::BadName(name.into())) } else { Ok(()) }
}

/// An `ifreq` for the interface of that name, which [`check_name`] has seen.
pub(crate) fn named_request(name: &str) -> libc::ifreq {
    // SAFETY: integers and arrays of them; all zeros is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// A `char` of C, which has a sign on x86-64 and none on arm64.
fn byte(char: libc::c_char) -> u8 {
    u8::from_ne_bytes(char.to_ne_bytes())
}

/// The name in an `ifreq` that the kernel has filled in.
pub(crate) fn request_name(request: &libc::ifreq) -> String {
    let bytes: Vec<u8> = request.ifr_name.iter().map(|&c| byte(c)).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}

/// Names in reach, so that a misspelt one is seen at once.
fn hint() -> String {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names: Vec<&str> =
        table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    match names.len() {
        0 => String::new(),
        1..=12 => format!(" (now: {})", names.join(", ")),
        n => format!(" (now: {}, and {} more)", names[..12].join(", "), n - 12),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_and_described() {
        let lo = Netdev::find("lo").unwrap();
        assert!(lo.exists() && lo.index() > 0);
        assert!(lo.mtu().unwrap() >= 1500);
        assert_eq!(lo.mac_address().unwrap(), [0; 6]);
    }

    #[test]
    fn missing_and_impossible_names_are_told_apart() {
        assert!(matches!(Netdev::find("nosuchif0"), Err(NetdevError::NotFound { .. })));
        for name in ["", "a/b", "a b", "sixteen-letters-", ".."] {
            assert!(matches!(Netdev::find(name), Err(NetdevError::BadName(_))), "{name}");
        }
    }
}
