//! Objects of scripts in files that other processes can map: what `modules/core/shm.lua` builds on.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::{self, DirBuilder, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::ptr::null_mut;

use mlua::{LightUserData, Lua, Table};

/// Adds the functions to `shortwire.host`. `folder` is that of this process, if it has one.
pub fn functions(lua: &Lua, module: &Table, folder: Option<&Path>) -> mlua::Result<()> {
    // Without that folder objects cannot be made, which is told then.
    let _ = folder.map(|folder| fs::create_dir(folder.join("shm")));
    module.set("run_folder", folder.map(|folder| folder.display().to_string()))?;
    let map = |_: &Lua, (path, size, create, readonly): (String, usize, bool, bool)| match map(
        Path::new(&path),
        size,
        create,
        readonly,
    ) {
        Ok(place) => Ok((Some(place), None)),
        Err(error) => Ok((None, Some(error.to_string()))),
    };
    module.set("map_file", lua.create_function(map)?)?;
    let make_folder = |_: &Lua, path: String| {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
        Ok(made.err().map(|error| error.to_string()))
    };
    module.set("make_folder", lua.create_function(make_folder)?)?;
    let remove = |_: &Lua, path: String| {
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        Ok(if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) }.is_ok())
    };
    module.set("remove", lua.create_function(remove)?)?;
    let link = |_: &Lua, (target, path): (String, String)| {
        Ok(std::os::unix::fs::symlink(target, path).err().map(|error| error.to_string()))
    };
    module.set("symbolic_link", lua.create_function(link)?)?;
    let children = |_: &Lua, path: String| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        Ok(entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect::<Vec<_>>())
    };
    module.set("children", lua.create_function(children)?)?;
    module.set("exists", lua.create_function(|_, path: String| Ok(Path::new(&path).exists()))?)
}

fn map(path: &Path, size: usize, create: bool, readonly: bool) -> std::io::Result<LightUserData> {
    let file = OpenOptions::new()
        .read(true)
        .write(create || !readonly)
        .create(create)
        .truncate(false)
        .open(path)?;
    let length = file.metadata()?.len();
    if create && length != size as u64 {
        file.set_len(size as u64)?;
    } else if length < size as u64 {
        let problem = format!("it has {length} bytes, where {size} are needed");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, problem));
    }
    let access = if readonly { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
    // An object without bytes has a place all the same.
    let size = size.max(1);
    // SAFETY: a new mapping, where the kernel finds room.
    let place =
        unsafe { libc::mmap(null_mut(), size, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if place == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(LightUserData(place))
}

/// For `ffi.C`: maps a file of the script; null where the system refuses.
///
/// # Safety
/// `file` is an open `FILE`.
pub unsafe extern "C" fn attach(file: *mut libc::FILE, length: usize) -> *mut c_void {
    // SAFETY: the caller's.
    let fd = unsafe { libc::fileno(file) };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, where the kernel finds room.
    let place = unsafe { libc::mmap(null_mut(), length, access, libc::MAP_SHARED, fd, 0) };
    if place == libc::MAP_FAILED { null_mut() } else { place }
}

/// # Safety
/// `old` is null or a mapping of `old_length` bytes that nobody uses any more.
pub unsafe extern "C" fn grow(
    file: *mut libc::FILE,
    old: *mut c_void,
    old_length: usize,
    length: usize,
) -> *mut c_void {
    // SAFETY: the caller's.
    if !old.is_null() && !unsafe { unmap(old, old_length) } {
        return null_mut();
    }
    let Ok(size) = libc::off_t::try_from(length) else { return null_mut() };
    // SAFETY: the caller's.
    let fd = unsafe { libc::fileno(file) };
    // SAFETY: a system call.
    if unsafe { libc::ftruncate(fd, size) } != 0 {
        return null_mut();
    }
    // SAFETY: the caller's.
    unsafe { attach(file, length) }
}

/// # Safety
/// `place` is a mapping of `length` bytes that nobody uses any more.
pub unsafe extern "C" fn unmap(place: *mut c_void, length: usize) -> bool {
    // SAFETY: the caller's.
    unsafe { libc::munmap(place, length) == 0 }
}
