//! A device through its sysfs files: registers by `resourceN`, memory by huge pages at their
//! physical addresses.
//!
//! For machines without an IOMMU. Nothing keeps such a device from memory that is not ours, so its
//! driver must be right: [`super::guard`] takes bus mastering away if the process ends without
//! having done so.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::param::page_size;

use super::guard::Guard;
use super::{Address, MappedBar, PciError};
use crate::arena::{HugeError, arena};
use crate::nic::dma::{Buffer, DmaError, DmaSpace, Memory, PAGE, PacketMap};

/// An open device.
pub(super) struct Device {
    address: Address,
    folder: PathBuf,
    /// Locked: one process at a time.
    config: File,
    packets: PacketMap,
    /// A huge page for rings, cut from the front, and its physical address.
    rings: Option<(Arc<Memory>, u64)>,
    used: usize,
    guard: Option<Guard>,
}

impl Device {
    pub fn open(address: Address, folder: PathBuf) -> Result<Self, PciError> {
        let config = open(&folder.join("config"))
            .map_err(|e| PciError::os(address, "open the configuration space", e))?;
        flock(&config, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::WOULDBLOCK => PciError::InUse { address },
            errno => PciError::os(address, "lock the configuration space", errno),
        })?;
        let packets = packet_map().map_err(|error| PciError::Dma { address, error })?;
        Ok(Self { address, folder, config, packets, rings: None, used: 0, guard: None })
    }

    pub fn bar(&self, index: u32) -> Result<MappedBar, PciError> {
        let failed = |errno| PciError::os(self.address, "map the registers", errno);
        let path = self.folder.join(format!("resource{index}"));
        if !path.exists() {
            return Err(PciError::NoBar { address: self.address, index });
        }
        let file = open(&path).map_err(failed)?;
        let length = rustix::fs::fstat(&file).map_err(failed)?.st_size as usize;
        MappedBar::map(&file, 0, length).map_err(failed)
    }

    pub fn config(&self) -> (BorrowedFd<'_>, u64) {
        (self.config.as_fd(), 0)
    }

    /// From now on a guard process restores the command register if this process ends without doing
    /// so.
    pub fn watch(&mut self, command: u16) -> Result<(), PciError> {
        if self.guard.is_none() {
            let guard = Guard::start(self.config.as_fd(), command);
            self.guard =
                Some(guard.map_err(|errno| PciError::os(self.address, "start the guard", errno))?);
        }
        Ok(())
    }
}

impl DmaSpace for Device {
    fn packets(&self) -> &PacketMap {
        &self.packets
    }

    fn buffer(&mut self, bytes: usize) -> Result<Buffer, DmaError> {
        let size = bytes.next_multiple_of(4096);
        if self.rings.as_ref().is_none_or(|_| self.used + size > PAGE) {
            if size > PAGE {
                return Err(DmaError::Memory(bytes, Errno::INVAL));
            }
            let page = Memory::huge().map_err(|_| DmaError::Huge(too_few(1)))?;
            let address = physical(page.base())?;
            // A page that is full is kept by the buffers in it.
            self.rings = Some((Arc::new(page), address));
            self.used = 0;
        }
        let Some((page, address)) = &self.rings else {
            return Err(DmaError::Memory(bytes, Errno::NOMEM));
        };
        let offset = self.used;
        self.used += size;
        Ok(Buffer::new(page.clone(), offset, bytes, address + offset as u64))
    }
}

fn open(path: &Path) -> Result<File, Errno> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Puts the packet memory on huge pages and finds out where they are.
fn packet_map() -> Result<PacketMap, DmaError> {
    let arena = arena();
    let pages = arena.length() / PAGE;
    arena.use_huge_pages().map_err(|error| {
        match error {
        HugeError::InUse => DmaError::Huge(
            "packets exist already, on pages that may move; name this app first in the configuration, or start without \
             the apps that hold packets, such as XDP"
                .into(),
        ),
        // One more for the rings.
        HugeError::Refused(_) => DmaError::Huge(too_few(pages + 1)),
    }
    })?;
    let addresses: Result<Vec<u64>, DmaError> = (0..pages)
        .map(|page| {
            // SAFETY: inside of the arena.
            physical(unsafe { arena.base().add(page * PAGE) })
        })
        .collect();
    Ok(PacketMap::scattered(addresses?))
}

fn too_few(wanted: usize) -> String {
    let read = |name: &str| {
        super::read_text(&Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").join(name))
    };
    let number = |name: &str| read(name).and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    let (all, free) = (number("nr_hugepages"), number("free_hugepages"));
    let need = all + wanted.saturating_sub(free);
    format!(
        "{wanted} huge pages of 2 MiB are needed where there is no IOMMU, and {free} are free; type\n  \
         echo {need} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages\nor set fewer packets (--packets)"
    )
}

/// The physical address of a page of ours, by `/proc/self/pagemap`
/// (Documentation/admin-guide/mm/pagemap.rst).
fn physical(byte: NonNull<u8>) -> Result<u64, DmaError> {
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    let (address, page) = (byte.as_ptr().addr() as u64, page_size() as u64);
    let mut entry = [0; 8];
    let read = File::open("/proc/self/pagemap")
        .and_then(|file| file.read_exact_at(&mut entry, address / page * 8));
    let entry = u64::from_le_bytes(entry);
    // Without the capability the kernel shows frame 0.
    if read.is_err() || entry & PRESENT == 0 || entry & FRAME == 0 {
        return Err(DmaError::Huge(
            "no right to know physical addresses, which a device without an IOMMU needs: run as root (CAP_SYS_ADMIN)"
                .into(),
        ));
    }
    Ok((entry & FRAME) * page + address % page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_there_has_an_address() {
        let memory = Memory::anonymous(8192).unwrap();
        // SAFETY: inside of the mapping.
        let second = unsafe { memory.base().add(4096 + 40) };
        match physical(second) {
            Ok(address) => assert_eq!(address % 4096, 40),
            Err(error) => assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}"),
        }
    }

    #[test]
    fn too_few_pages_says_how_many() {
        let text = too_few(100_000);
        assert!(
            text.contains("100000 huge pages") && text.contains("> /sys/kernel/mm/hugepages/"),
            "{text}"
        );
    }
}
