//! The provider that a process uses, opened once, and its protection domain.
#![allow(unsafe_code)]

use super::{Memory, link};
use crate::Errno;
use ::verbs::abi::{self, Context, Device, DeviceAttr, Ibv, Mr, PortAttr, access};
use ::verbs::software;
use core::ffi::c_void;
use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Where the kernel lists its devices.
const CLASS: &core::ffi::CStr = c"/sys/class/infiniband";
const PORTS: u8 = 2;
/// GIDs of a port that are looked at.
const GIDS: i32 = 8;
/// Vendors of soft-RoCE: what it says, and what it said before Linux 5.6.
const EMULATIONS: [u32; 2] = [0xff_ffff, 0];
/// What begins the GID of an IPv4 address.
const IPV4: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Why there is no verbs device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// The kernel has no RDMA device.
    NoDevice,
    /// libibverbs, or a function of it, is missing.
    NoLibrary,
    /// No device has an active port; iWARP is passed over, which connects by other means.
    NoPort,
    /// Over no address of an active port does the device reach itself.
    NoPath,
    /// The device could not be opened.
    Os(Errno),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => f.write_str("no RDMA device"),
            Self::NoLibrary => f.write_str("libibverbs.so.1 cannot be opened"),
            Self::NoPort => f.write_str("no RDMA device with an active port"),
            Self::NoPath => f.write_str("no RDMA device that reaches itself"),
            Self::Os(e) => write!(f, "the RDMA device cannot be opened: {e}"),
        }
    }
}

impl core::error::Error for Unavailable {}

/// What is behind the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// libibverbs: hardware, or the kernel's emulation of it.
    Hardware,
    /// [`software`].
    Software,
}

/// An open device, one of its ports, and a protection domain.
#[derive(Clone, Copy)]
pub struct Adapter {
    pub api: &'static Ibv,
    pub provider: Provider,
    pub context: *mut Context,
    pub pd: *mut c_void,
    pub port: u8,
    pub gid_index: u8,
    pub gid: [u8; 16],
    pub lid: u16,
    pub mtu: i32,
    /// It is the kernel's emulation, which stores what is written byte by byte: the owner may see a
    /// part of a word. What is added to a word it stores whole.
    pub adds_words: bool,
}

impl Adapter {
    /// libibverbs is opened only where the kernel has a device.
    pub fn hardware() -> Result<Self, Unavailable> {
        if !lists_devices() {
            return Err(Unavailable::NoDevice);
        }
        Self::first(Ibv::system().ok_or(Unavailable::NoLibrary)?, Provider::Hardware)
    }

    pub fn software() -> Result<Self, Unavailable> {
        Self::first(software::api(), Provider::Software)
    }

    /// Of the first device with a port that is active.
    fn first(api: &'static Ibv, provider: Provider) -> Result<Self, Unavailable> {
        let mut count = 0;
        // SAFETY: a place for the count.
        let list = unsafe { (api.ibv_get_device_list)(&mut count) };
        if list.is_null() {
            return Err(Unavailable::NoDevice);
        }
        let mut found = Err(if count > 0 { Unavailable::NoPort } else { Unavailable::NoDevice });
        for i in 0..count.max(0) as usize {
            // SAFETY: `count` entries.
            let opened = Self::open(api, provider, unsafe { *list.wrapping_add(i) });
            if !matches!(opened, Err(Unavailable::NoPort)) {
                found = opened;
            }
            if found.is_ok() {
                break;
            }
        }
        // SAFETY: from the call above; the device that was opened stays.
        unsafe { (api.ibv_free_device_list)(list) };
        found
    }

    fn open(
        api: &'static Ibv,
        provider: Provider,
        device: *mut Device,
    ) -> Result<Self, Unavailable> {
        // SAFETY: an entry of the list.
        let context = unsafe { (api.ibv_open_device)(device) };
        if context.is_null() {
            return Err(Unavailable::Os(last_error()));
        }
        // SAFETY: an open device's context.
        let device = unsafe { (*context).device };
        // SAFETY: the device that was opened.
        let found = if unsafe { (*device).transport_type } == abi::TRANSPORT_IB {
            Self::over(api, provider, context)
        } else {
            Err(Unavailable::NoPort)
        };
        if found.is_err() {
            // SAFETY: opened above, and used by nobody.
            unsafe { (api.ibv_close_device)(context) };
        }
        found
    }

    /// The first port that is active, and of its GIDs the first that leads back to it, IPv4 before
    /// others: all ends are on this machine, make the same choice, and need the way on which it is
    /// made.
    fn over(
        api: &'static Ibv,
        provider: Provider,
        context: *mut Context,
    ) -> Result<Self, Unavailable> {
        // SAFETY: an open device.
        let pd = unsafe { (api.ibv_alloc_pd)(context) };
        if pd.is_null() {
            return Err(Unavailable::Os(last_error()));
        }
        let mut device = DeviceAttr::default();
        // SAFETY: an open device and a place for the answer.
        let known = unsafe { (api.ibv_query_device)(context, &mut device) } == 0;
        let adds_words = known && EMULATIONS.contains(&device.vendor_id) && device.atomic_cap != 0;
        let mut none = Unavailable::NoPort;
        for port in 1..=PORTS {
            let mut attributes = PortAttr::default();
            // SAFETY: an open device and a place for the answer.
            let asked = unsafe { (api.ibv_query_port)(context, port, &mut attributes) };
            if asked != 0 || attributes.state != abi::PORT_ACTIVE {
                continue;
            }
            let (lid, mtu) = (attributes.lid, attributes.active_mtu);
            let at = |index: i32| {
                let mut gid = [0; 16];
                // SAFETY: as above.
                let known = unsafe { (api.ibv_query_gid)(context, port, index, &mut gid) } == 0
                    && gid != [0; 16];
                known.then_some(Self {
                    api,
                    provider,
                    context,
                    pd,
                    port,
                    gid_index: index as u8,
                    gid,
                    lid,
                    mtu,
                    adds_words,
                })
            };
            for of_ipv4 in [true, false] {
                for adapter in (0..attributes.gid_tbl_len.min(GIDS)).filter_map(at) {
                    if adapter.gid.starts_with(&IPV4) != of_ipv4 {
                        continue;
                    }
                    if provider == Provider::Software || link::leads_back(adapter) {
                        return Ok(adapter);
                    }
                    none = Unavailable::NoPath;
                }
            }
        }
        // SAFETY: nothing is left in it.
        unsafe { (api.ibv_dealloc_pd)(pd) };
        Err(none)
    }

    /// Puts the descriptors of the library where `park` puts such.
    pub fn park(&self, park: fn(i32) -> i32) {
        if self.provider == Provider::Hardware {
            // SAFETY: an open device, which nobody uses yet. The library looks the numbers up here
            // each time.
            let context = unsafe { &mut *self.context };
            context.cmd_fd = park(context.cmd_fd);
            context.async_fd = park(context.async_fd);
        }
    }

    /// Numbers that the library looks up each time, also in other threads.
    fn descriptors(&self) -> [&AtomicI32; 2] {
        [offset_of!(Context, cmd_fd), offset_of!(Context, async_fd)].map(|at| {
            let fd = self.context.wrapping_byte_add(at).cast::<i32>();
            // SAFETY: aligned, and there as long as the device is open. The library's own loads are
            // of whole words.
            unsafe { AtomicI32::from_ptr(fd) }
        })
    }

    /// A descriptor of the library's has another number besides.
    pub fn moved_fd(&self, old: i32, new: i32) {
        if self.provider == Provider::Hardware {
            for fd in self.descriptors() {
                let _ = fd.compare_exchange(old, new, Relaxed, Relaxed);
            }
        }
    }

    /// Whether this process may still use it: the kernel takes what is written to the device only
    /// from the credentials under which it was opened, and its emulation of RDMA has requests
    /// written to it.
    pub fn is_permitted(&self) -> bool {
        if self.provider == Provider::Software {
            return true;
        }
        let byte = [0u8];
        let [fd, _] = self.descriptors().map(|fd| fd.load(Relaxed));
        // SAFETY: the library's descriptor, used for one call, which is too short to be a command:
        // EINVAL.
        let r = unsafe { libc::syscall(libc::SYS_write, fd, byte.as_ptr(), byte.len()) };
        r >= 0 || last_error() != Errno::ACCESS
    }

    /// What a peer may do with memory that it writes to.
    pub fn writable(&self) -> i32 {
        access::LOCAL_WRITE
            | access::REMOTE_WRITE
            | access::REMOTE_READ
            | if self.adds_words { access::REMOTE_ATOMIC } else { 0 }
    }

    /// Memory that stays until [`Memory::end`].
    pub fn register(&self, base: *mut u8, len: usize, access: i32) -> Result<Memory, Errno> {
        // SAFETY: our own domain; what is not mapped is refused.
        let mr: *mut Mr = unsafe { (self.api.ibv_reg_mr)(self.pd, base.cast(), len, access) };
        // SAFETY: null, or a region of ours.
        let region = unsafe { mr.as_ref() }.ok_or_else(last_error)?;
        Ok(Memory { api: self.api, mr, lkey: region.lkey, rkey: region.rkey })
    }
}

fn lists_devices() -> bool {
    let dir =
        rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let Ok(class) = rustix::fs::open(CLASS, dir, rustix::fs::Mode::empty()) else { return false };
    let mut space = [core::mem::MaybeUninit::uninit(); 1024];
    let mut entries = rustix::fs::RawDir::new(&class, &mut space);
    let mut some = false;
    while let Some(Ok(entry)) = entries.next() {
        some |= !entry.file_name().to_bytes().starts_with(b".");
    }
    use rustix::fd::IntoRawFd;
    // SAFETY: ours; never dropped, because a drop goes through libc's close.
    unsafe { rustix::io::close(class.into_raw_fd()) };
    some
}

/// What a call of the library has left in errno.
pub fn last_error() -> Errno {
    // SAFETY: it has no obligation.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's errno.
    Errno::from_raw_os_error(unsafe { *errno })
}
