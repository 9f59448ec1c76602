//! What differs between the guests of one architecture and of another.

use std::path::PathBuf;

use crate::tool::target;
use crate::{Skip, need, skip};

pub struct Machine {
    pub emulator: &'static str,
    /// What of it is emulated.
    pub options: &'static [&'static str],
    /// Below `target`: where its kernel's package is, and what puts it there.
    pub folder: &'static str,
    pub fetched_by: &'static str,
    /// Where the kernel talks, and where the script does.
    pub console: &'static str,
    pub script: &'static str,
    pub script_device: &'static [&'static str],
    /// Processors, and the emulator's threads for them.
    pub processors: [&'static str; 2],
    /// Of the kernel's line.
    pub append: &'static str,
}

/// One thread for all processors: with one for each a guest was seen to stand still, a processor
/// spinning and the other halted, and the tests took five times as long.
pub static X86_64: Machine = Machine {
    emulator: "qemu-system-x86_64",
    // The emulated IOMMU remaps interrupts only with the machine's interrupt controllers in one
    // place.
    options: &["-machine", "q35,kernel-irqchip=split", "-cpu", "max"],
    folder: "guest",
    fetched_by: "make check-guest",
    console: "ttyS0",
    script: "ttyS1",
    script_device: &["-serial", "chardev:script"],
    processors: ["2", "tcg,thread=single"],
    // On a busy machine the emulated timers look broken to a kernel that checks them.
    append: "no_timer_check",
};

/// A kernel of our own making, which has what Debian's has not: shared memory for its SMC.
pub static X86_64_WITH_SMC: Machine =
    Machine { folder: "guest-smc", fetched_by: "make check-smc", ..X86_64 };

/// A thread for each processor, so that programs that busily wait for each other go on at once.
pub static ARM64: Machine = Machine {
    emulator: "qemu-system-aarch64",
    // Signed pointers by an algorithm of the emulator's own: the published one takes half of its
    // time.
    options: &["-machine", "virt", "-cpu", "max,pauth-impdef=on"],
    folder: "guest-arm64",
    fetched_by: "make check-arm64",
    console: "ttyAMA0",
    script: "ttyS0",
    script_device: &["-device", "pci-serial,chardev=script"],
    processors: ["2", "tcg,thread=multi"],
    append: "",
};

pub static ARM64_WITH_PAGES_OF_16_KIB: Machine = Machine { folder: "guest-arm64-16k", ..ARM64 };

/// Debian has no such kernel: it is one of our own making.
pub static ARM64_WITH_PAGES_OF_64_KIB: Machine = Machine { folder: "guest-arm64-64k", ..ARM64 };

impl Machine {
    pub fn folder(&self) -> PathBuf {
        target().join(self.folder)
    }

    /// A busybox that runs there.
    pub fn busybox(&self) -> Result<PathBuf, Skip> {
        if self.emulator == X86_64.emulator {
            return need("busybox");
        }
        let folder = ARM64.folder();
        let fetched = folder.join("busybox");
        if fetched.is_file() {
            return Ok(fetched);
        }
        skip(format!("no busybox in {}; `{}` fetches one", folder.display(), self.fetched_by))
    }
}
