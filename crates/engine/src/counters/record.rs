//! One object's counters in a mapped file.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use shm::{Counter, Snapshot};

use crate::histogram::BUCKETS;

/// Most counters of an object.
pub const MOST: usize = 32;
/// Longest name of a counter.
pub(super) const NAME: usize = 24;
/// Longest label of an object, the kind of an app.
pub(super) const LABEL: usize = 40;
/// "SWCOUNT" and the version of this layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"SWCOUNT\x01");

/// The file `counters`. Everything but the values is written before the file gets its name.
#[repr(C)]
pub(super) struct Layout {
    pub magic: u64,
    pub count: u64,
    pub label: [u8; LABEL],
    pub names: [[u8; NAME]; MOST],
    pub values: Snapshot<MOST>,
}

/// The file `latency`.
#[repr(C)]
pub(super) struct Latency {
    pub buckets: [Counter; BUCKETS],
}

pub(super) const VALUES: usize = offset_of!(Layout, values);

/// Counters under publication. The file goes with it.
pub struct Record {
    map: Map<Layout>,
}

impl Record {
    /// Makes the file. At most [`MOST`] names.
    pub fn create(path: &Path, label: &str, names: &[&str]) -> io::Result<Self> {
        let count = names.len().min(MOST);
        let map = Map::<Layout>::create(path, |layout| {
            layout.magic = MAGIC;
            layout.count = count as u64;
            put(&mut layout.label, label);
            for (place, name) in layout.names.iter_mut().zip(names) {
                put(place, name);
            }
        })?;
        Ok(Self { map })
    }

    /// Publishes all values together.
    #[inline]
    pub fn write(&self, values: &[u64; MOST]) {
        self.map.get().values.write(values);
    }
}

/// A histogram under publication.
pub(crate) struct LatencyFile {
    map: Map<Latency>,
}

impl LatencyFile {
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { map: Map::create(path, |_: &mut Latency| {})? })
    }

    pub fn write(&self, counts: &[u64; BUCKETS]) {
        for (bucket, count) in self.map.get().buckets.iter().zip(counts) {
            bucket.set(*count);
        }
    }
}

fn put(place: &mut [u8], text: &str) {
    let count = text.len().min(place.len());
    place[..count].copy_from_slice(&text.as_bytes()[..count]);
}

/// A file mapped as one `T` of plain numbers.
struct Map<T> {
    memory: NonNull<T>,
    path: std::path::PathBuf,
}

// SAFETY: the memory is reached through atomics only, once it was filled.
unsafe impl<T> Send for Map<T> {}

impl<T> Map<T> {
    /// `T` is one of the layouts above, for which zeros are a value.
    fn create(path: &Path, fill: impl FnOnce(&mut T)) -> io::Result<Self> {
        let draft = path.with_extension("new");
        let _ = std::fs::remove_file(&draft);
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(&draft)?;
        let memory = Self::map(&file).inspect_err(|_| drop(std::fs::remove_file(&draft)))?;
        let map = Self { memory, path: path.to_path_buf() };
        // SAFETY: nobody else has this file yet; the mapping is as long as `T`, and zeros are a
        // value of it.
        fill(unsafe { &mut *map.memory.as_ptr() });
        std::fs::rename(&draft, path)?;
        Ok(map)
    }

    fn map(file: &File) -> io::Result<NonNull<T>> {
        // The space is reserved now: a full file system is an error here and no SIGBUS later.
        fallocate(file, FallocateFlags::empty(), 0, size_of::<T>() as u64)?;
        // SAFETY: a new mapping of a file of this length; nobody else shortens a file of ours.
        let memory = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<T>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
    }

    #[inline]
    fn get(&self) -> &T {
        // SAFETY: mapped until `drop`.
        unsafe { self.memory.as_ref() }
    }
}

impl<T> Drop for Map<T> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        if let Some(folder) = self.path.parent() {
            // Fails while other files of the object are there.
            let _ = std::fs::remove_dir(folder);
        }
        // SAFETY: the mapping of `map`, to which no reference is left.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), size_of::<T>()) };
    }
}
