//! A device through VFIO: the kernel's IOMMU lets it reach the packet memory and its rings, and
//! nothing else.
//!
//! All devices of the process share one container, so that the packet memory is mapped and pinned
//! once and a packet has the same address for each of them. See Documentation/driver-api/vfio.rst
//! of the kernel.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Address, MappedBar, PciError, link_name};
use crate::arena::arena;
use crate::nic::dma::{Buffer, DmaError, DmaSpace, Memory, PacketMap};

/// First bus address of the packet memory: above what 32-bit devices and interrupts use, in reach
/// of every IOMMU.
const PACKETS: u64 = 4 << 30;
/// First bus address of buffers.
const BUFFERS: u64 = 256 << 30;
/// Region of the configuration space.
const CONFIG_REGION: u32 = 7;

/// `_IO(';', 100 + n)`, from linux/vfio.h.
const fn request(n: libc::Ioctl) -> libc::Ioctl {
    0x3b00 + 100 + n
}
const CHECK_EXTENSION: libc::Ioctl = request(1);
const SET_IOMMU: libc::Ioctl = request(2);
const GROUP_GET_STATUS: libc::Ioctl = request(3);
const GROUP_SET_CONTAINER: libc::Ioctl = request(4);
const GROUP_GET_DEVICE_FD: libc::Ioctl = request(6);
const DEVICE_GET_REGION_INFO: libc::Ioctl = request(8);
const IOMMU_MAP_DMA: libc::Ioctl = request(13);
const IOMMU_UNMAP_DMA: libc::Ioctl = request(14);

const TYPE1_IOMMU: usize = 1;
const TYPE1V2_IOMMU: usize = 3;
const GROUP_VIABLE: u32 = 1;
const REGION_MMAP: u32 = 4;
const DMA_READ_WRITE: u32 = 3;

#[repr(C)]
#[derive(Default)]
struct GroupStatus {
    argsz: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct RegionInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    cap_offset: u32,
    size: u64,
    offset: u64,
}

#[repr(C)]
struct DmaMap {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}

#[repr(C)]
struct DmaUnmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

/// The container, and what is mapped in it.
struct Container {
    file: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether a group has made the container complete and the packet memory was mapped.
    packets: bool,
    groups: Vec<(u32, Weak<Group>)>,
    /// Bytes of addresses given out for buffers.
    buffers: u64,
}

struct Group {
    file: OwnedFd,
    /// A group is set free before its container closes.
    container: Arc<Container>,
}

static CONTAINER: Mutex<Weak<Container>> = Mutex::new(Weak::new());

/// An open device.
pub(super) struct Device {
    address: Address,
    file: OwnedFd,
    group: Arc<Group>,
    config: u64,
    packets: PacketMap,
    buffers: Vec<(u64, Arc<Memory>)>,
}

impl Device {
    pub fn open(address: Address, group: u32) -> Result<Self, PciError> {
        let group = Group::open(address, group)?;
        group.container.map_packets(address)?;
        let name = std::ffi::CString::new(address.to_string()).unwrap_or_default();
        // SAFETY: the kernel reads the name, which ends with a zero.
        let file =
            unsafe { ioctl(group.file.as_fd(), GROUP_GET_DEVICE_FD, name.as_ptr() as usize) };
        let file = file.map_err(|errno| PciError::os(address, "open the VFIO device", errno))?;
        // SAFETY: a descriptor that the kernel made for us just now.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let packets = PacketMap::linear(PACKETS);
        let mut device = Self { address, file, group, config: 0, packets, buffers: Vec::new() };
        device.config = device.region(CONFIG_REGION)?.offset;
        Ok(device)
    }

    fn region(&self, index: u32) -> Result<RegionInfo, PciError> {
        let mut info =
            RegionInfo { argsz: size_of::<RegionInfo>() as u32, index, ..RegionInfo::default() };
        // SAFETY: the kernel fills the structure in, as long as it says it is.
        unsafe { ioctl(self.file.as_fd(), DEVICE_GET_REGION_INFO, &raw mut info as usize) }
            .map_err(|errno| PciError::os(self.address, "look at the regions", errno))?;
        Ok(info)
    }

    pub fn bar(&self, index: u32) -> Result<MappedBar, PciError> {
        let info = self.region(index)?;
        if info.flags & REGION_MMAP == 0 || info.size == 0 {
            return Err(PciError::NoBar { address: self.address, index });
        }
        MappedBar::map(&self.file, info.offset, info.size as usize)
            .map_err(|errno| PciError::os(self.address, "map the registers", errno))
    }

    /// The file and where in it the configuration space begins.
    pub fn config(&self) -> (BorrowedFd<'_>, u64) {
        (self.file.as_fd(), self.config)
    }
}

impl DmaSpace for Device {
    fn packets(&self) -> &PacketMap {
        &self.packets
    }

    fn buffer(&mut self, bytes: usize) -> Result<Buffer, DmaError> {
        let memory = Arc::new(Memory::anonymous(bytes)?);
        let iova = self.group.container.map_buffer(&memory)?;
        self.buffers.push((iova, memory.clone()));
        Ok(Buffer::new(memory, 0, bytes, iova))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for (iova, memory) in &self.buffers {
            self.group.container.unmap(*iova, memory.length());
        }
    }
}

impl Group {
    /// Opens the group, or finds it open: one process can open it once, and one of its devices may
    /// be in use already.
    fn open(address: Address, number: u32) -> Result<Arc<Self>, PciError> {
        let container = Container::get(address)?;
        let mut state = container.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) =
            state.groups.iter().find(|(n, _)| *n == number).and_then(|(_, group)| group.upgrade())
        {
            return Ok(group);
        }
        let file = open(&format!("/dev/vfio/{number}")).map_err(|errno| match errno {
            Errno::BUSY => PciError::InUse { address },
            Errno::NOENT => PciError::NoVfio { address, group: number },
            Errno::ACCESS => {
                let hint = format!(
                    "run as root, or let the administrator type `chown $USER /dev/vfio/{number}`"
                );
                PciError::NoRights { address, operation: "open the VFIO group", hint }
            }
            errno => PciError::os(address, "open the VFIO group", errno),
        })?;
        let mut status = GroupStatus { argsz: size_of::<GroupStatus>() as u32, flags: 0 };
        // SAFETY: the kernel fills the structure in.
        unsafe { ioctl(file.as_fd(), GROUP_GET_STATUS, &raw mut status as usize) }
            .map_err(|errno| PciError::os(address, "look at the VFIO group", errno))?;
        if status.flags & GROUP_VIABLE == 0 {
            return Err(PciError::NotViable {
                address,
                group: number,
                others: others(address, number),
            });
        }
        let raw = container.file.as_raw_fd();
        // SAFETY: the kernel reads the number of a descriptor.
        unsafe { ioctl(file.as_fd(), GROUP_SET_CONTAINER, &raw const raw as usize) }.map_err(
            |errno| {
                PciError::os(
                    address,
                    "share the address space of the process's other devices",
                    errno,
                )
            },
        )?;
        let group = Arc::new(Self { file, container: container.clone() });
        state.groups.retain(|(_, group)| group.strong_count() > 0);
        state.groups.push((number, Arc::downgrade(&group)));
        Ok(group)
    }
}

/// Devices of a group that kernel drivers hold.
fn others(address: Address, group: u32) -> Vec<String> {
    let folder = format!("/sys/kernel/iommu_groups/{group}/devices");
    let devices = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let held = devices.filter_map(|device| {
        let driver = link_name(device.path().join("driver"))?;
        Some((device.file_name().to_string_lossy().into_owned(), driver))
    });
    let held = held.filter(|(name, driver)| *name != address.to_string() && driver != "vfio-pci");
    held.map(|(name, driver)| format!("{name} ({driver})")).collect()
}

impl Container {
    /// The process's container, made for its first device.
    fn get(address: Address) -> Result<Arc<Self>, PciError> {
        let mut shared = CONTAINER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(container) = shared.upgrade() {
            return Ok(container);
        }
        let file = open("/dev/vfio/vfio")
            .map_err(|errno| PciError::os(address, "open /dev/vfio/vfio for the device", errno))?;
        let container = Arc::new(Self { file, state: Mutex::default() });
        *shared = Arc::downgrade(&container);
        Ok(container)
    }

    /// Chooses the kind of IOMMU and maps all packet memory, once; a container needs a group for
    /// that.
    fn map_packets(&self, address: Address) -> Result<(), PciError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.packets {
            return Ok(());
        }
        // SAFETY: the argument is a number.
        let newer = unsafe { ioctl(self.file.as_fd(), CHECK_EXTENSION, TYPE1V2_IOMMU) } == Ok(1);
        let kind = if newer { TYPE1V2_IOMMU } else { TYPE1_IOMMU };
        // SAFETY: the argument is a number.
        match unsafe { ioctl(self.file.as_fd(), SET_IOMMU, kind) } {
            // Set by an earlier device whose packet memory could not be mapped.
            Ok(_) | Err(Errno::BUSY | Errno::INVAL) => {}
            Err(Errno::PERM) => return Err(PciError::NoRemapping { address }),
            Err(Errno::NODEV) => return Err(PciError::NoType1 { address }),
            Err(errno) => return Err(PciError::os(address, "set up the IOMMU", errno)),
        }
        let arena = arena().pin();
        self.map(arena.base().as_ptr().addr(), arena.length(), PACKETS)
            .map_err(|error| PciError::Dma { address, error })?;
        state.packets = true;
        Ok(())
    }

    fn map_buffer(&self, memory: &Memory) -> Result<u64, DmaError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let iova = BUFFERS + state.buffers;
        self.map(memory.base().as_ptr().addr(), memory.length(), iova)?;
        state.buffers += memory.length() as u64;
        Ok(iova)
    }

    fn map(&self, vaddr: usize, size: usize, iova: u64) -> Result<(), DmaError> {
        let map = DmaMap {
            argsz: size_of::<DmaMap>() as u32,
            flags: DMA_READ_WRITE,
            vaddr: vaddr as u64,
            iova,
            size: size as u64,
        };
        // SAFETY: the kernel reads the structure, and pins memory that this process maps.
        match unsafe { ioctl(self.file.as_fd(), IOMMU_MAP_DMA, &raw const map as usize) } {
            Ok(_) => Ok(()),
            Err(errno) => {
                let hint = match errno {
                    Errno::NOMEM => {
                        ": raise the limit of locked memory (`ulimit -l unlimited`), or use fewer packets"
                    }
                    _ => "",
                };
                Err(DmaError::Refused { bytes: size, errno, hint })
            }
        }
    }

    fn unmap(&self, iova: u64, size: usize) {
        let unmap =
            DmaUnmap { argsz: size_of::<DmaUnmap>() as u32, flags: 0, iova, size: size as u64 };
        // A failure leaves the mapping to the end of the process.
        // SAFETY: the kernel reads the structure.
        let _ = unsafe { ioctl(self.file.as_fd(), IOMMU_UNMAP_DMA, &raw const unmap as usize) };
    }
}

fn open(path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// # Safety
/// `argument` is what the request expects: a number, or the address of a structure that lives over
/// the call.
unsafe fn ioctl(file: BorrowedFd, request: libc::Ioctl, argument: usize) -> Result<i32, Errno> {
    // SAFETY: the caller's.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, argument) };
    if result < 0 {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(result)
    }
}

const _: () = assert!(
    size_of::<RegionInfo>() == 32 && size_of::<DmaMap>() == 32 && size_of::<DmaUnmap>() == 24
);
