//! The initial file system of a guest: an archive in cpio's "newc" format, see the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use super::kernel::Kernel;

/// What runs first. Programs of a test come before busybox's, its shell's own commands before both.
const INIT: &str = r#"#!/busybox sh
/busybox mkdir -p /proc /sys /dev /tmp /run /out /applets
/busybox --install -s /applets
export PATH=/bin:/applets HOME=/tmp
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev; mount -t tmpfs none /run
mkdir -p /dev/shm; mount -t tmpfs none /dev/shm
stty -F /dev/SCRIPT raw
exec </dev/null >/dev/SCRIPT 2>&1
for module in $(cat /modules); do modprobe $module || echo "cannot load $module"; done
[ ! -e /system-disk ] || {
    mkdir -p /system; mount -t ext4 /dev/vdb /system
    mkdir -p /system/out /system/applets /system/lib/modules
    for file in /busybox /last /script /all; do [ ! -e $file ] || cp $file /system/; done; cp -r /lib/modules/* /system/lib/modules/
    for at in dev proc sys run; do mount --move /$at /system/$at; done
    exec switch_root /system /busybox sh /last
}
exec /busybox sh /last
"#;

/// The root is what it stays; what runs last in a guest.
const LAST: &str = r#"
/busybox --install -s /applets
cd /tmp
/busybox sh /script
echo $? > /out/status
tar -c -C /out . > /dev/vda
sync
poweroff -f
"#;

/// Files by their path in the guest, from which folders follow.
pub struct Image {
    files: BTreeMap<String, (u32, Vec<u8>)>,
    modules: Vec<String>,
}

impl Image {
    /// `script`: the terminal on which the script's output leaves.
    pub fn new(busybox: &Path, script: &str) -> Image {
        let mut image = Image { files: BTreeMap::new(), modules: Vec::new() };
        image.file("/busybox", 0o755, fs::read(busybox).expect("busybox"));
        image.libraries(busybox);
        image.file("/init", 0o755, INIT.replace("SCRIPT", script).into());
        image.file("/last", 0o755, LAST.into());
        image
    }

    pub fn file(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        self.files.insert(path.trim_start_matches('/').to_string(), (mode, content));
    }

    pub fn module(&mut self, kernel: &Kernel, name: &str) {
        self.spare_module(kernel, name);
        self.modules.push(name.to_string());
    }

    pub fn spare_module(&mut self, kernel: &Kernel, name: &str) {
        for (inside, here) in kernel.module(name) {
            self.file(&inside, 0o644, fs::read(here).expect("a module"));
        }
    }

    pub fn program(&mut self, path: &Path) {
        let name = path.file_name().expect("a program has a name").to_string_lossy();
        self.file(&format!("/bin/{name}"), 0o755, fs::read(path).expect("a program"));
        self.libraries(path);
    }

    pub fn copy(&mut self, path: &Path) {
        self.file(&path.to_string_lossy(), 0o755, fs::read(path).expect("a file of this machine"));
        self.libraries(path);
    }

    /// Lines of ldd: "NAME => PATH (ADDRESS)", or "PATH (ADDRESS)" for the loader. Without
    /// libraries it fails.
    fn libraries(&mut self, program: &Path) {
        let said = Command::new("ldd")
            .arg(program)
            .env_remove("LD_PRELOAD")
            .output()
            .expect("starting ldd");
        for line in String::from_utf8_lossy(&said.stdout).lines() {
            let path = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some((path, content)) = path.and_then(|path| Some((path, fs::read(path).ok()?)))
            {
                self.file(path, 0o755, content);
            }
        }
    }

    pub fn write(mut self, to: &Path, kernel: &Kernel) {
        let modules = self.modules.join("\n") + "\n";
        self.file("/modules", 0o644, modules.into());
        for entry in fs::read_dir(kernel.folder()).expect("the kernel's modules").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("modules.") && !name.ends_with(".bin") {
                let mut content = fs::read_to_string(entry.path()).unwrap_or_default();
                if ["modules.dep", "modules.alias", "modules.symbols"].contains(&name.as_str()) {
                    content = self.of_modules_here(&content);
                }
                self.file(
                    &format!("/lib/modules/{}/{name}", kernel.version()),
                    0o644,
                    content.into(),
                );
            }
        }
        fs::write(to, self.archive()).expect("an initial file system");
    }

    /// Of a list of modules the lines about those that are here: an emulated processor is slow to
    /// read megabytes, and does for each module. Lines are "FILE: FILES", or end with the name of
    /// the module.
    fn of_modules_here(&self, list: &str) -> String {
        let plain = |file: &str| {
            let name = file.rsplit('/').next().unwrap_or_default();
            name.split(".ko").next().unwrap_or_default().replace('-', "_")
        };
        let here: BTreeSet<String> =
            self.files.keys().filter(|path| path.contains(".ko")).map(|path| plain(path)).collect();
        let about = |line: &str| match line.split_once(':') {
            Some((file, _)) if file.contains(".ko") => plain(file),
            _ => plain(line.split_whitespace().last().unwrap_or_default()),
        };
        let kept = list.lines().filter(|line| line.starts_with('#') || here.contains(&about(line)));
        kept.flat_map(|line| [line, "\n"]).collect()
    }

    fn archive(&self) -> Vec<u8> {
        let mut archive = Vec::new();
        let mut folders = BTreeSet::new();
        for path in self.files.keys() {
            folders.extend(path.match_indices('/').map(|(end, _)| &path[..end]));
        }
        for folder in folders {
            entry(&mut archive, folder, 0o040_755, &[]);
        }
        for (path, (mode, content)) in &self.files {
            entry(&mut archive, path, 0o100_000 | mode, content);
        }
        entry(&mut archive, "TRAILER!!!", 0, &[]);
        archive
    }
}

fn entry(archive: &mut Vec<u8>, path: &str, mode: u32, content: &[u8]) {
    let links = if mode & 0o040_000 == 0 { 1 } else { 2 };
    let fields =
        [0, mode, 0, 0, links, 0, content.len() as u32, 0, 0, 0, 0, path.len() as u32 + 1, 0];
    archive.extend(b"070701");
    archive.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
    archive.extend(path.bytes().chain([0]));
    pad(archive);
    archive.extend(content);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}
