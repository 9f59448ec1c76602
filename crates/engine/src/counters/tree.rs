//! The folder of a process under the run directory, and the removal of those whose process is gone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

const LOCK: &str = "lock";

/// Why there are no counters to be seen from outside.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// None of the places can be used.
    #[error(
        "no run directory: set SHORTWIRE_RUN_DIR, or XDG_RUNTIME_DIR, or make /run/shortwire writable"
    )]
    None,
    /// There is a place, and no folder can be made in it.
    #[error("cannot make {}: {error}", path.display())]
    Make {
        /// The folder that was to be made.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
}

/// Where processes publish: `$SHORTWIRE_RUN_DIR`, or `/run/shortwire` where it can be written, or
/// `$XDG_RUNTIME_DIR/shortwire`.
pub fn run_root() -> Result<PathBuf, RunDirError> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("SHORTWIRE_RUN_DIR") {
        return Ok(path);
    }
    let system = PathBuf::from("/run/shortwire");
    let writable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    if writable(&system) || !system.exists() && writable(Path::new("/run")) {
        return Ok(system);
    }
    set("XDG_RUNTIME_DIR").map(|path| path.join("shortwire")).ok_or(RunDirError::None)
}

/// This process's folder. It goes with this value.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Makes the folder under `root` and removes those of processes that are gone. A second one of
    /// the same process is named `PID.1`, and so on.
    pub fn create(root: &Path) -> Result<Self, RunDirError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |error| RunDirError::Make { path, error }
        };
        DirBuilder::new().recursive(true).mode(0o755).create(root).map_err(failed(root))?;
        sweep(root);
        let pid = std::process::id();
        for number in 0.. {
            let name = if number == 0 { pid.to_string() } else { format!("{pid}.{number}") };
            // Locked before it has its name: whoever sees the name finds it locked.
            let draft = root.join(format!(".{name}"));
            if DirBuilder::new()
                .mode(0o755)
                .create(&draft)
                .is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists)
            {
                continue;
            }
            let lock = lock_file(&draft, true).map_err(failed(&draft))?;
            let path = root.join(name);
            match fs::rename(&draft, &path) {
                Ok(()) => return Ok(Self { path, _lock: lock }),
                Err(_) if path.exists() => drop(fs::remove_dir_all(&draft)),
                Err(error) => {
                    let _ = fs::remove_dir_all(&draft);
                    return Err(failed(&path)(error));
                }
            }
        }
        Err(RunDirError::None)
    }

    /// The folder of this process.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of an object, made if need be.
    pub fn object(&self, group: &str, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(group).join(name);
        DirBuilder::new().recursive(true).mode(0o755).create(&path)?;
        Ok(path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn lock_file(folder: &Path, create: bool) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(create)
        .create(create)
        .truncate(false)
        .open(folder.join(LOCK))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// True while the process that made the folder lives. The lock tells, also across PID namespaces
/// and reused PIDs.
pub(super) fn alive(folder: &Path) -> bool {
    let shared = File::open(folder.join(LOCK))
        .map(|file| flock(&file, FlockOperation::NonBlockingLockShared));
    matches!(shared, Ok(Err(rustix::io::Errno::WOULDBLOCK)))
}

/// Removes the folders of processes that are gone.
pub fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let of_process =
            name.trim_start_matches('.').split('.').all(|part| part.parse::<u32>().is_ok());
        // A draft may be about to get its lock: there the PID has to do.
        let gone = if name.starts_with('.') { !maker_lives(&name) } else { !alive(&entry.path()) };
        if of_process && gone {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn maker_lives(name: &str) -> bool {
    let pid = name.trim_start_matches('.').split('.').next().and_then(|pid| pid.parse().ok());
    let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else { return true };
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}
