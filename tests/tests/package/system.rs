//! A whole system of its own to install into: this machine's files, or those of a fresh Debian,
//! with everything that is written kept apart in memory. What was written is there to look at, and
//! gone with the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;

use system_tests::{Case, Proc, Skip, millis, need, secs, skip};

pub struct System {
    /// In whose mount namespace it is.
    holder: Proc,
    place: PathBuf,
}

impl System {
    /// Over the files below `lower`, which stay as they are.
    pub fn over(c: &Case, lower: &Path) -> Result<System, Skip> {
        if !rustix::process::geteuid().is_root() {
            return skip("needs root, to lay one file system over another");
        }
        for program in ["dpkg", "chroot", "nsenter"] {
            need(program)?;
        }
        let place = c.dir().join("system");
        fs::create_dir_all(&place).expect("a directory");
        let script = format!(
            "set -e; cd {}; mount --make-rprivate /; mount -t tmpfs none .; mkdir written work root
             mount -t overlay none -o lowerdir={},upperdir=$PWD/written,workdir=$PWD/work root
             mount --bind /proc root/proc; mount --rbind /dev root/dev; mount -t tmpfs none root/run; mount -t tmpfs none root/tmp
             rm -f root/var/lib/man-db/auto-update # else every page of the machine is read again
             echo ready; exec sleep 1000",
            place.display(),
            lower.display()
        );
        // From where the tmpfs is, not what it hides.
        let script = script.replace("mount -t tmpfs none .;", "mount -t tmpfs none $PWD; cd $PWD;");
        let mut holder = c
            .start("system", Command::new(need("unshare")?).args(["--mount", "sh", "-c", &script]));
        while !holder.stdout().starts_with("ready") {
            if holder.poll().is_some() {
                return skip(format!("no overlay can be mounted: {}", holder.stderr().trim()));
            }
            sleep(millis(5));
        }
        Ok(System { holder, place })
    }

    /// Where it is, seen from processes outside.
    pub fn outside(&self, path: &str) -> PathBuf {
        let pid = self.holder.pid();
        Path::new(&format!("/proc/{pid}/root"))
            .join(self.place.strip_prefix("/").expect("an absolute path"))
            .join(path)
    }

    /// A program in it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.pid().to_string(), "--mount", "chroot"]);
        command.arg(self.place.join("root")).arg(program);
        command
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C");
        command.env_remove("LD_PRELOAD").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// A program that has it as the root of a mount namespace of its own, as services have. A chroot
    /// allows no user namespaces.
    pub fn service(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let script = "cd $0; pivot_root . mnt; cd /; umount -l /mnt; exec \"$@\"";
        command.args(["--target", &self.holder.pid().to_string(), "--mount"]);
        command.args(["unshare", "--mount", "sh", "-ec", script]);
        command.arg(self.place.join("root")).arg(program);
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env_remove("LD_PRELOAD");
        command
    }

    /// Runs a shell script in it, which must succeed, and gives what it printed on both streams.
    pub fn sh(&self, c: &Case, script: &str) -> String {
        let mut shell = c.start("sh", self.command("sh").args(["-ec", script]));
        shell.success(secs(120));
        shell.stdout() + &shell.stderr()
    }

    /// Copies a file to its /tmp.
    pub fn take(&self, file: &Path) {
        let name = file.file_name().expect("a file's name");
        fs::copy(file, self.outside("root/tmp").join(name)).expect("copying into the system");
    }

    /// What was written or removed there, but the notes of the package manager and its kin.
    pub fn changes(&self) -> Vec<String> {
        let noted = [
            "var/lib/dpkg",
            "var/lib/apt",
            "var/lib/man-db",
            "var/log",
            "var/cache",
            "etc/ld.so.cache",
            "run",
            "tmp",
            "root",
        ];
        let top = self.outside("written");
        let mut found = Vec::new();
        let mut open = vec![top.clone()];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = path.strip_prefix(&top).expect("below the top").display().to_string();
                if noted
                    .iter()
                    .any(|known| name == *known || name.starts_with(&format!("{known}/")))
                {
                    continue;
                }
                match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    true => open.push(path),
                    false => found.push(name),
                }
            }
        }
        found
    }
}
