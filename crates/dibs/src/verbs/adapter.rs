//! The provider that a process uses, opened once, and its protection domain.

use super::Memory;
use crate::Errno;
use ::verbs::abi::{self, Context, Device, Ibv, Mr, PortAttr};
use ::verbs::software;
use core::ffi::c_void;
use core::fmt;

/// Where the kernel lists its devices.
const CLASS: &core::ffi::CStr = c"/sys/class/infiniband";
const PORTS: u8 = 2;
/// GIDs of a port that are looked at.
const GIDS: i32 = 8;

/// Why there is no verbs device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// The kernel has no RDMA device.
    NoDevice,
    /// libibverbs, or a function of it, is missing.
    NoLibrary,
    /// No device has an active port; iWARP is passed over, which connects by other means.
    NoPort,
    /// The device could not be opened.
    Os(Errno),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => f.write_str("no RDMA device"),
            Self::NoLibrary => f.write_str("libibverbs.so.1 cannot be opened"),
            Self::NoPort => f.write_str("no RDMA device with an active port"),
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
            let opened = Self::open(api, provider, unsafe { *list.add(i) });
            if opened.is_ok() || !matches!(opened, Err(Unavailable::NoPort)) {
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

    fn open(api: &'static Ibv, provider: Provider, device: *mut Device) -> Result<Self, Unavailable> {
        // SAFETY: an entry of the list.
        let context = unsafe { (api.ibv_open_device)(device) };
        if context.is_null() {
            return Err(Unavailable::Os(last_error()));
        }
        // SAFETY: an open device.
        let found = if unsafe { (*(*context).device).transport_type } == abi::TRANSPORT_IB {
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

    fn over(api: &'static Ibv, provider: Provider, context: *mut Context) -> Result<Self, Unavailable> {
        for port in 1..=PORTS {
            let mut attributes = PortAttr::default();
            // SAFETY: an open device and a place for the answer.
            let asked = unsafe { (api.ibv_query_port)(context, port, &mut attributes) };
            if asked != 0 || attributes.state != abi::PORT_ACTIVE {
                continue;
            }
            let mut gid = [0; 16];
            // SAFETY: as above.
            let has_gid = |&i: &i32| unsafe { (api.ibv_query_gid)(context, port, i, &mut gid) } == 0 && gid != [0; 16];
            let Some(gid_index) = (0..attributes.gid_tbl_len.min(GIDS)).find(has_gid) else { continue };
            // SAFETY: an open device.
            let pd = unsafe { (api.ibv_alloc_pd)(context) };
            if pd.is_null() {
                return Err(Unavailable::Os(last_error()));
            }
            let (gid_index, lid, mtu) = (gid_index as u8, attributes.lid, attributes.active_mtu);
            return Ok(Self { api, provider, context, pd, port, gid_index, gid, lid, mtu });
        }
        Err(Unavailable::NoPort)
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
    let dir = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
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
    // SAFETY: this thread's errno.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}
