//! Registers of a device.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The registers of a device: 32-bit words by their offset in the base address register's region.
///
/// Everything that was written to DMA memory before `write32` is seen by a device that acts on that
/// write. `&self`, because a device changes whether or not its driver looks; what a read clears is
/// the device's matter.
pub trait Bar {
    /// `offset` is a multiple of 4 inside of the region; hardware answers elsewhere with all ones.
    fn read32(&self, offset: u32) -> u32;

    /// `offset` as for [`Self::read32`]. Memory that was written before is in place when the device
    /// sees this.
    fn write32(&self, offset: u32, value: u32);

    /// Waits so long for the device. A model lets its own time pass instead.
    fn settle(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Sets and clears bits of a register; one read and one write.
    fn change32(&self, offset: u32, clear: u32, set: u32) {
        self.write32(offset, self.read32(offset) & !clear | set);
    }
}

/// A region of a real device, mapped.
#[derive(Debug)]
pub struct MappedBar {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the pointer only names the mapping, which belongs to the process; device registers have
// no thread.
unsafe impl Send for MappedBar {}
// SAFETY: as above; every access is one load or store, which the device takes from any processor.
unsafe impl Sync for MappedBar {}

impl MappedBar {
    /// Maps `length` bytes from `offset` of a VFIO device or of a `resourceN` file.
    pub fn map(file: impl AsFd, offset: u64, length: usize) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, offset)?
        };
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, length })
    }

    #[inline(always)]
    fn place(&self, offset: u32) -> *mut u32 {
        let offset = offset as usize;
        assert!(offset + 4 <= self.length && offset.is_multiple_of(4), "register {offset:#x}");
        self.base.as_ptr().wrapping_add(offset).cast()
    }
}

impl Bar for MappedBar {
    #[inline(always)]
    fn read32(&self, offset: u32) -> u32 {
        // SAFETY: inside of the mapping and aligned, as `place` checked.
        let value = unsafe { self.place(offset).read_volatile() };
        // What the device put into memory before it set what was read must not have been read
        // earlier.
        fence(Ordering::Acquire);
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a barrier has no operands. The fence above orders what other processors wrote, this
        // one what a device did, which need not be in the same domain of shared memory.
        unsafe {
            std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
        }
        u32::from_le(value)
    }

    #[inline(always)]
    fn write32(&self, offset: u32, value: u32) {
        before_device_write();
        // SAFETY: inside of the mapping and aligned, as `place` checked.
        unsafe { self.place(offset).write_volatile(value.to_le()) };
    }
}

impl Drop for MappedBar {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of which no reference outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Puts stores to ordinary memory before the store to a register that follows.
#[inline(always)]
fn before_device_write() {
    // On x86 stores to uncached memory stay behind earlier stores, so that holding the compiler is
    // enough.
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands. The fence above orders towards other processors only, this
    // one towards devices.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}
