//! Counters of programs that have ended, which their users want kept (`smc::kept`).

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use smc::kept::{File, MAGIC, NAME, Row, VERSION};

use crate::numbers;
use crate::processes::printable;
use crate::tables::Totals;

/// What programs of one name have counted that have ended.
#[derive(Clone)]
pub struct Kept {
    pub uid: u32,
    pub program: String,
    pub totals: Totals,
}

fn folder() -> PathBuf {
    env::var_os("SHORTWIRE_RUN_DIR")
        .filter(|f| !f.is_empty())
        .map_or("/dev/shm".into(), PathBuf::from)
}

/// That of a user.
pub fn path(uid: u32) -> PathBuf {
    folder().join(format!("{NAME}{uid}"))
}

/// Of all users whose files this process may read.
pub fn kept() -> Vec<Kept> {
    kept_in(&folder())
}

/// The same in another folder than the usual one.
pub fn kept_in(folder: &Path) -> Vec<Kept> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let uids = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(NAME)?.parse::<u32>().ok());
    let mut uids: Vec<u32> = uids.collect();
    uids.sort_unstable();
    uids.into_iter().filter_map(|uid| read(folder, uid).ok()).flatten().collect()
}

/// Whether this user wants counters kept.
pub fn is_wanted(uid: u32) -> bool {
    read(&folder(), uid).is_ok()
}

/// Keeps the counters of this user's programs from now on, if that was not done already.
pub fn keep(uid: u32) -> io::Result<()> {
    keep_in(&folder(), uid)
}

/// The same of those that have this folder for theirs.
pub fn keep_in(folder: &Path, uid: u32) -> io::Result<()> {
    if read(folder, uid).is_ok() {
        return Ok(());
    }
    let length = size_of::<File>();
    let mut bytes = vec![0; length];
    for (at, word) in [MAGIC, VERSION, size_of::<Row>() as u64].into_iter().enumerate() {
        bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_ne_bytes());
    }
    // Under another name until it is whole.
    let unfinished = folder.join(format!("{NAME}{uid}.new"));
    let _ = fs::remove_file(&unfinished);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o600))?;
    file.write_all(&bytes)?;
    fs::rename(&unfinished, folder.join(format!("{NAME}{uid}")))
}

/// Forgets them, and keeps no further ones.
pub fn forget(uid: u32) -> io::Result<()> {
    match fs::remove_file(path(uid)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The folder is everybody's: what another user has put there under this name is not read.
fn read(folder: &Path, uid: u32) -> io::Result<Vec<Kept>> {
    let not_ours = || io::Error::from(ErrorKind::InvalidData);
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(folder.join(format!("{NAME}{uid}")))?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.uid() != uid || meta.len() != size_of::<File>() as u64 {
        return Err(not_ours());
    }
    let [earlier, file] = numbers::read_twice::<File>(&file)?;
    let (earlier, file) = earlier.first().zip(file.first()).ok_or_else(not_ours)?;
    file.rows.iter().zip(&earlier.rows).for_each(|(row, then)| row.stats.is_behind(&then.stats));
    let words = [&file.magic, &file.version, &file.row_size].map(|word| word.load(Relaxed));
    if words != [MAGIC, VERSION, size_of::<Row>() as u64] {
        return Err(not_ours());
    }
    let last = file.rows.len() - 1;
    let used = file.rows.iter().enumerate().filter_map(|(number, row)| {
        let bytes = row.name.each_ref().map(|word| word.load(Relaxed).to_ne_bytes()).concat();
        let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        let program = match name {
            [] if number == last => "(others)".into(),
            [] => return None,
            name => printable(&String::from_utf8_lossy(name)),
        };
        let totals = Totals::of(&row.stats);
        (totals != Totals::default()).then_some(Kept { uid, program, totals })
    });
    Ok(used.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_file_of_the_user_is_read() {
        let folder = env::temp_dir().join(format!("shortwire-kept-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert!(read(&folder, uid).is_err());
        keep_in(&folder, uid).unwrap();
        assert!(read(&folder, uid).is_ok_and(|kept| kept.is_empty()));
        let path = folder.join(format!("{NAME}{uid}"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut bytes = fs::read(&path).unwrap();
        // A name and one counter of the first row.
        bytes[24..29].copy_from_slice(b"re\x1bis");
        bytes[40] = 7;
        fs::write(&path, &bytes).unwrap();
        let kept = kept_in(&folder);
        assert_eq!((kept.len(), kept[0].program.as_str(), kept[0].uid), (1, "re?is", uid));
        assert_eq!(kept[0].totals.rx.sizes[0], 7);
        bytes[0] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(read(&folder, uid).is_err(), "of another layout");
        fs::write(&path, "short").unwrap();
        assert!(read(&folder, uid).is_err());
        // One that is damaged is made anew.
        keep_in(&folder, uid).unwrap();
        assert!(read(&folder, uid).is_ok());
        fs::rename(&path, folder.join(format!("{NAME}{}", uid + 1))).unwrap();
        assert!(read(&folder, uid + 1).is_err(), "another user's");
        fs::remove_dir_all(folder).unwrap();
    }
}
