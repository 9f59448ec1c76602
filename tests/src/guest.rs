//! A virtual machine under software emulation, for what needs a kernel or a device that this
//! machine has not.
//!
//! A guest is Debian's own kernel, an initial file system with busybox and what a test adds, and
//! one shell script. It ends with the script. What the script prints is the output of the emulator,
//! what it leaves in `/out` comes back as files. Emulation is for function, never for figures. [`pair`]
//! boots two that are connected.

mod image;
mod kernel;
mod machine;
pub mod pair;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Case, Proc, Skip, need, skip};
use image::Image;
use kernel::Kernel;
use machine::{
    ARM64, ARM64_WITH_PAGES_OF_16_KIB, ARM64_WITH_PAGES_OF_64_KIB, Machine, X86_64, X86_64_WITH_SMC,
};

/// Megabytes of memory of a guest.
const MEMORY: u32 = 1024;
/// Of one with a system of its own.
const MEMORY_OF_SYSTEM: u32 = 2048;
/// Bytes of the disk on which `/out` comes back.
const OUT: u64 = 64 << 20;

/// A guest to be.
pub struct Guest {
    machine: &'static Machine,
    kernel: Kernel,
    image: Image,
    qemu: Command,
    memory: u32,
    disks: Vec<PathBuf>,
    /// Processors, and the emulator's threads for them.
    processors: [&'static str; 2],
}

/// A guest at work.
pub struct Running {
    emulator: Proc,
    dir: PathBuf,
}

/// What a guest left.
pub struct Ended {
    /// Of the script; None if the guest ended before it did.
    pub status: Option<i32>,
    /// What the script printed.
    pub output: String,
    /// What the kernel said.
    pub console: String,
    /// What the emulator said: its IOMMU tells of each access that it refused.
    pub emulator: String,
    /// `/out` of the guest.
    pub out: PathBuf,
}

/// Where `make check-arm64` puts what guests of arm64 are made of.
pub fn arm64_folder() -> PathBuf {
    ARM64.folder()
}

impl Guest {
    /// A guest with nothing but busybox, and the modules that the harness itself uses.
    pub fn new() -> Result<Guest, Skip> {
        if !cfg!(target_arch = "x86_64") {
            return skip("guests are written for x86-64");
        }
        Guest::of(&X86_64)
    }

    /// The same, with a kernel whose SMC has a device on one machine, as SMC-D and by software RDMA. It needs no modules.
    pub fn with_kernels_smc() -> Result<Guest, Skip> {
        if !cfg!(target_arch = "x86_64") {
            return skip("guests are written for x86-64");
        }
        Guest::of(&X86_64_WITH_SMC)
    }

    /// The same for arm64, on any machine. Programs are those that are built for it: their libraries are to be
    /// added as files.
    pub fn arm64() -> Result<Guest, Skip> {
        Guest::of(&ARM64)
    }

    /// The same, with another kernel.
    pub fn arm64_with_pages_of_16_kib() -> Result<Guest, Skip> {
        Guest::of(&ARM64_WITH_PAGES_OF_16_KIB)
    }

    /// The same, with a kernel of our own making, which needs no modules.
    pub fn arm64_with_pages_of_64_kib() -> Result<Guest, Skip> {
        Guest::of(&ARM64_WITH_PAGES_OF_64_KIB)
    }

    fn of(machine: &'static Machine) -> Result<Guest, Skip> {
        let mut qemu = Command::new(need(machine.emulator)?);
        qemu.args(machine.options);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        let mut guest = Guest {
            machine,
            kernel: Kernel::find(machine)?,
            image: Image::new(&machine.busybox()?, machine.script),
            qemu,
            memory: MEMORY,
            disks: Vec::new(),
            processors: machine.processors,
        };
        guest.modules(&["virtio_pci", "virtio_blk"]);
        Ok(guest)
    }

    /// A disk with an ext4 file system becomes its root in front of the script; what is written there is
    /// forgotten.
    pub fn system(&mut self, disk: &Path) -> &mut Guest {
        self.image.file("/system-disk", 0o644, Vec::new());
        self.memory = MEMORY_OF_SYSTEM;
        // Later kernels have it within themselves.
        if self.kernel.has("crc32c_generic") {
            self.modules(&["crc32c_generic"]);
        }
        self.modules(&["ext4"]).disk(disk)
    }

    /// Another disk, /dev/vdc behind that of the system; what is written there is forgotten.
    pub fn disk(&mut self, disk: &Path) -> &mut Guest {
        self.disks.push(disk.to_path_buf());
        self
    }

    /// It shares memory, or a network, with another guest. With one thread the emulator leaves out
    /// locks and fences of instructions: no other processor of its own could tell, one of another
    /// emulator can. One processor runs, a second would be possible: where none is, an idle guest was seen to
    /// stand still for minutes, until a packet came.
    pub fn with_others(&mut self) -> &mut Guest {
        self.processors = ["1,maxcpus=2", "tcg,thread=multi"];
        self
    }

    /// Kernel modules, loaded before the script runs, and what they depend on.
    pub fn modules(&mut self, names: &[&str]) -> &mut Guest {
        for name in names {
            self.image.module(&self.kernel, name);
        }
        self
    }

    /// Kernel modules that are there and not loaded.
    pub fn spare_modules(&mut self, names: &[&str]) -> &mut Guest {
        for name in names {
            self.image.spare_module(&self.kernel, name);
        }
        self
    }

    /// A program of this machine with its shared libraries; it is found by its name.
    pub fn program(&mut self, path: &Path) -> &mut Guest {
        self.image.program(path);
        self
    }

    /// A file of this machine at the same place in the guest, with the shared libraries that it
    /// needs.
    pub fn copy(&mut self, path: &Path) -> &mut Guest {
        self.image.copy(path);
        self
    }

    /// A file of this machine, at another place in the guest, and without its libraries.
    pub fn place(&mut self, path: &Path, inside: &str) -> &mut Guest {
        let content = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self.image.file(inside, 0o755, content);
        self
    }

    /// A file of the guest.
    pub fn file(&mut self, path: &str, content: impl Into<Vec<u8>>) -> &mut Guest {
        self.image.file(path, 0o644, content.into());
        self
    }

    /// Arguments of the emulator: devices.
    pub fn qemu(&mut self, arguments: &[&str]) -> &mut Guest {
        self.qemu.args(arguments);
        self
    }

    /// Starts it. The script runs in busybox's shell.
    pub fn start(mut self, case: &Case, name: &str, append: &str, script: &str) -> Running {
        let dir = case.dir().join(name);
        fs::create_dir_all(&dir).expect("a directory for the guest");
        self.image.file("/script", 0o755, script.into());
        self.image.write(&dir.join("initrd"), &self.kernel);
        let disk = fs::File::create(dir.join("disk")).and_then(|file| file.set_len(OUT));
        disk.expect("a disk for the guest");
        // All but the machine's own save a third of the emulated boot; without zeros in all memory that it
        // hands out, the kernel takes a tenth less of the whole time.
        let spared = "quiet nokaslr mitigations=off init_on_alloc=0 cryptomgr.notests";
        let Machine { console, append: of_machine, .. } = self.machine;
        let line = format!("console={console} panic=-1 {of_machine} {spared} {append}");
        self.qemu
            .arg("-kernel")
            .arg(self.kernel.image())
            .arg("-initrd")
            .arg(dir.join("initrd"))
            .args(["-append", &line]);
        let [processors, accelerator] = self.processors;
        self.qemu.args(["-smp", processors, "-accel", accelerator]);
        self.qemu.args(["-m", &self.memory.to_string()]);
        self.qemu
            .arg("-drive")
            .arg(format!("if=none,id=out,format=raw,file={}", dir.join("disk").display()));
        self.qemu.args(["-device", "virtio-blk-pci,drive=out"]);
        for (number, disk) in self.disks.iter().enumerate() {
            let options = format!("if=none,id=disk{number},format=raw,snapshot=on");
            self.qemu.arg("-drive").arg(format!("{options},file={}", disk.display()));
            self.qemu.args(["-device", &format!("virtio-blk-pci,drive=disk{number}")]);
        }
        self.qemu.arg("-serial").arg(format!("file:{}", dir.join("console").display()));
        self.qemu.args(["-chardev", "stdio,id=script,signal=off"]).args(self.machine.script_device);
        Running { emulator: case.start(name, &mut self.qemu), dir }
    }

    /// Runs it to its end.
    pub fn run(self, case: &Case, append: &str, script: &str, limit: Duration) -> Ended {
        self.start(case, "guest", append, script).wait(limit)
    }
}

impl Running {
    /// Waits until the script has printed a line that starts so.
    pub fn wait_line(&mut self, start: &str, limit: Duration) -> String {
        self.emulator.wait_line(start, limit)
    }

    /// Waits for its end, which must come in time.
    pub fn wait(mut self, limit: Duration) -> Ended {
        let status = self.emulator.wait(limit);
        assert!(status.success(), "the emulator failed: {status}\n{}", self.emulator.stderr());
        let out = self.dir.join("out");
        let unpacked = fs::create_dir_all(&out).is_ok()
            && Command::new("tar")
                .arg("-xf")
                .arg(self.dir.join("disk"))
                .arg("-C")
                .arg(&out)
                .output()
                .is_ok();
        let text = |path: PathBuf| {
            String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
        };
        Ended {
            status: unpacked.then(|| text(out.join("status")).trim().parse().ok()).flatten(),
            output: self.emulator.stdout(),
            console: text(self.dir.join("console")),
            emulator: self.emulator.stderr(),
            out,
        }
    }
}

impl Ended {
    /// The output of a script that ended well.
    pub fn success(&self) -> &str {
        assert_eq!(
            self.status,
            Some(0),
            "the script's status; it printed\n{}\n-- console\n{}",
            self.output,
            self.console
        );
        assert!(
            !self.output.contains("cannot load "),
            "modules are missing:\n{}\n-- console\n{}",
            self.output,
            self.console
        );
        &self.output
    }
}
