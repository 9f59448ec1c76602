//! Debian's kernel, out of its package: `make check-guest` puts one into `target/guest`, `make check-arm64` one for
//! arm64 into `target/guest-arm64`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::machine::Machine;
use crate::tool::making;
use crate::{Skip, need, skip};

/// Most of the modules' bytes are for what no guest has. Of file systems, librdmacm's half in the
/// kernel needs configfs, and a disk ext4 with jbd2 and mbcache.
const LEFT_OUT: [&str; 4] = ["*/drivers/gpu/*", "*/drivers/media/*", "*/sound/*", "*/fs/[!cejm]*"];

/// An unpacked kernel package.
pub struct Kernel {
    root: PathBuf,
    version: String,
}

impl Kernel {
    /// The newest package, unpacked beside itself at the first use.
    pub fn find(machine: &Machine) -> Result<Kernel, Skip> {
        need("depmod")?;
        let folder = machine.folder();
        let packages =
            fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let newest = packages.filter(|path| path.extension().is_some_and(|e| e == "deb")).max();
        let Some(package) = newest else {
            return skip(format!(
                "no kernel package in {}; `{}` fetches one",
                folder.display(),
                machine.fetched_by
            ));
        };
        let root = package.with_extension("unpacked");
        let _one = making(&root);
        if !root.is_dir() {
            unpack(&package, &root);
        }
        let versions = fs::read_dir(root.join("lib/modules")).expect("modules in the package");
        let version = versions
            .flatten()
            .map(|entry| entry.file_name())
            .next()
            .expect("a kernel in the package");
        let this = Kernel { root, version: version.to_string_lossy().into_owned() };
        let plain = this.plain();
        if !plain.exists()
            && let Some(content) = uncompressed(&fs::read(this.compressed()).expect("a kernel"))
        {
            let unfinished = plain.with_extension("new");
            fs::write(&unfinished, content)
                .and_then(|()| fs::rename(&unfinished, &plain))
                .expect("placing the kernel");
        }
        Ok(this)
    }

    pub fn image(&self) -> PathBuf {
        let plain = self.plain();
        if plain.exists() { plain } else { self.compressed() }
    }

    fn compressed(&self) -> PathBuf {
        self.root.join(format!("boot/vmlinuz-{}", self.version))
    }

    fn plain(&self) -> PathBuf {
        self.root.join(format!("boot/plain-{}", self.version))
    }

    /// Where its modules are, with their lists.
    pub fn folder(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.version)
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether it has a module of this name, also one that is built in.
    pub fn has(&self, name: &str) -> bool {
        self.modprobe(name).1.status.success()
    }

    fn modprobe(&self, name: &str) -> (Command, Output) {
        let mut command = Command::new(need("modprobe").expect("modprobe is where depmod is"));
        command.arg("-d").arg(&self.root).args(["-S", &self.version, "--show-depends", name]);
        let said = command.output().expect("starting modprobe");
        (command, said)
    }

    /// The files of a module and of what it depends on, in loading order, as paths in the guest and
    /// here.
    pub fn module(&self, name: &str) -> Vec<(String, PathBuf)> {
        let (command, said) = self.modprobe(name);
        assert!(
            said.status.success(),
            "{command:?} failed:\n{}",
            String::from_utf8_lossy(&said.stderr)
        );
        let lines = String::from_utf8_lossy(&said.stdout).into_owned();
        // "insmod PATH OPTIONS"; "builtin NAME" needs no file.
        let files = lines
            .lines()
            .filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next());
        files
            .map(|file| {
                let file = PathBuf::from(file);
                let inside = file.strip_prefix(&self.root).expect("modules lie in the package");
                (format!("/{}", inside.display()), file.clone())
            })
            .collect()
    }
}

/// The kernel itself out of its image, which an emulated processor takes half of its boot to
/// unpack. See "Details of the real-mode header" in the kernel's Documentation/arch/x86/boot.rst.
/// None if that cannot be had, then the image serves; on arm64 Debian's is not compressed.
fn uncompressed(image: &[u8]) -> Option<Vec<u8>> {
    let word =
        |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + word(0x248)?;
    // The length of what comes out stands behind it.
    let payload = image.get(start..start + word(0x24c)? - 4)?;
    let tool = match payload.get(..2)? {
        [0xfd, b'7'] => "xz",
        [0x28, 0xb5] => "zstd",
        [0x02, 0x21] => "lz4",
        [0x1f, 0x8b] => "gzip",
        _ => return None,
    };
    let mut unpack = Command::new(need(tool).ok()?);
    let mut unpack = unpack.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    let mut to = unpack.stdin.take()?;
    let said = std::thread::scope(|scope| {
        scope.spawn(move || to.write_all(payload));
        unpack.wait_with_output()
    });
    said.ok()
        .filter(|said| said.status.success() && said.stdout.starts_with(b"\x7fELF"))
        .map(|said| said.stdout)
}

/// All or nothing: the folder gets its name when it is complete.
fn unpack(package: &Path, root: &Path) {
    let unfinished = root.with_extension("new");
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished).expect("a folder for the kernel");
    let mut contents = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starting dpkg-deb");
    let mut tar = Command::new("tar");
    tar.arg("-x")
        .arg("-C")
        .arg(&unfinished)
        .args(LEFT_OUT.map(|pattern| format!("--exclude={pattern}")));
    let tar = tar.stdin(contents.stdout.take().expect("a pipe")).status().expect("starting tar");
    assert!(
        contents.wait().is_ok_and(|s| s.success()) && tar.success(),
        "cannot unpack {}",
        package.display()
    );
    // Later releases have modules below /usr.
    if !unfinished.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", unfinished.join("lib")).expect("a link to modules");
    }
    let versions = fs::read_dir(unfinished.join("lib/modules")).expect("modules in the package");
    for version in versions.flatten() {
        let mut depmod = Command::new(need("depmod").expect("looked for before"));
        let done = depmod.arg("-b").arg(&unfinished).arg(version.file_name()).status();
        assert!(done.is_ok_and(|status| status.success()), "{depmod:?} failed");
    }
    fs::rename(&unfinished, root).expect("placing the kernel");
}
