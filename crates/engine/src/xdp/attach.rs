//! The redirect program of an interface, shared by the queues of this process and gone with the
//! last of them.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use super::bpf::{GENERIC, Link, NATIVE, Program, XskMap};
use super::program::{Filter, redirect_to_sockets};
use std::os::fd::AsFd;

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// In the kernel's stack, after an skb was made: any interface, slower.
    Generic,
}

impl Mode {
    /// As the option `mode` of the app is written.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
        }
    }
}

/// Why no program is attached. Each message is a sentence for people.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// EBUSY or EEXIST.
    #[error(
        "the interface already has an XDP program: see it with `ip link show`, remove it with `ip link set dev IF xdp off` \
         or stop the program that holds it"
    )]
    Occupied,
    /// One interface has one program in this process.
    #[error(
        "another app of this engine uses the interface with another filter or mode: give both the same"
    )]
    OtherSettings,
    /// EPERM.
    #[error(
        "loading an XDP program needs the capabilities CAP_BPF and CAP_NET_ADMIN: run as root or grant them"
    )]
    NotPermitted,
    /// ENODEV.
    #[error("the interface does not exist any more")]
    Gone,
    /// More than [`Filter::MAX_PORTS`].
    #[error("more than {} ports in a filter", Filter::MAX_PORTS)]
    TooManyPorts,
    /// Any other answer of the system.
    #[error("cannot attach an XDP program in {mode} mode: {error}")]
    Os {
        /// The mode that was tried, `any` where no mode had been yet.
        mode: &'static str,
        /// The system's answer.
        error: io::Error,
    },
}

/// More queues than any driver has; an entry costs eight bytes.
const QUEUES: u32 = 1024;

/// An attached redirect program and its map from queue to socket.
#[derive(Debug)]
pub struct Attachment {
    map: XskMap,
    mode: Mode,
    /// Why it is not native although that was tried.
    fallback: Option<io::Error>,
    filter: Filter,
    _link: Link,
}

/// An interface index means something in its network namespace only.
type Place = (u64, u32);
static ATTACHED: LazyLock<Mutex<HashMap<Place, Weak<Attachment>>>> = LazyLock::new(Mutex::default);

impl Attachment {
    /// Attaches to the interface, or joins what this process has attached there before. `mode` of
    /// `None`: native if the driver takes it, else generic.
    pub fn open(
        ifindex: u32,
        mode: Option<Mode>,
        filter: &Filter,
    ) -> Result<Arc<Attachment>, AttachError> {
        if filter.ports.len() > Filter::MAX_PORTS {
            return Err(AttachError::TooManyPorts);
        }
        let place = (network_namespace(), ifindex);
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        attached.retain(|_, attachment| attachment.strong_count() > 0);
        if let Some(existing) = attached.get(&place).and_then(Weak::upgrade) {
            let same = existing.filter == *filter && mode.is_none_or(|mode| mode == existing.mode);
            return if same { Ok(existing) } else { Err(AttachError::OtherSettings) };
        }
        let new = Arc::new(Self::attach(ifindex, mode, filter)?);
        attached.insert(place, Arc::downgrade(&new));
        Ok(new)
    }

    fn attach(
        ifindex: u32,
        mode: Option<Mode>,
        filter: &Filter,
    ) -> Result<Attachment, AttachError> {
        let loading = |error: io::Error| AttachError::from_io("any", error);
        let map = XskMap::create(QUEUES).map_err(loading)?;
        let program = Program::load("shortwire_xdp", &redirect_to_sockets(map.as_fd(), filter))
            .map_err(loading)?;
        let attach = |mode: Mode| {
            let flag = if mode == Mode::Native { NATIVE } else { GENERIC };
            program.attach(ifindex, flag)
        };
        let first = mode.unwrap_or(Mode::Native);
        let (mode, fallback, link) = match attach(first) {
            Ok(link) => (first, None, link),
            Err(error) if mode.is_none() && !is_final(&error) => {
                let link = attach(Mode::Generic)
                    .map_err(|error| AttachError::from_io("generic", error))?;
                (Mode::Generic, Some(error), link)
            }
            Err(error) => return Err(AttachError::from_io(first.name(), error)),
        };
        Ok(Attachment { map, mode, fallback, filter: filter.clone(), _link: link })
    }

    /// The mode that it is attached in.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What the driver answered to native mode, if generic mode took its place.
    pub fn fallback(&self) -> Option<&io::Error> {
        self.fallback.as_ref()
    }

    /// Packets of `queue` go to `socket` from now on.
    pub fn direct(&self, queue: u32, socket: BorrowedFd) -> io::Result<()> {
        self.map.set(queue, socket)
    }

    /// Packets of `queue` go to the kernel's stack from now on.
    pub fn release(&self, queue: u32) {
        // The kernel has removed the entry itself if the interface is gone.
        let _ = self.map.remove(queue);
    }
}

/// An error that generic mode would answer as well.
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES | libc::ENODEV)
    )
}

impl AttachError {
    fn from_io(mode: &'static str, error: io::Error) -> AttachError {
        match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => AttachError::Occupied,
            Some(libc::EPERM) => AttachError::NotPermitted,
            Some(libc::ENODEV) => AttachError::Gone,
            _ => AttachError::Os { mode, error },
        }
    }
}

/// The inode of the calling thread's network namespace, 0 if /proc does not tell.
fn network_namespace() -> u64 {
    rustix::fs::stat("/proc/thread-self/ns/net").map_or(0, |stat| stat.st_ino)
}
