//! Memory of another process as numbers.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{Ordering::Acquire, fence};

/// What `smc` defines for its shared table, and `shm` for rsockets: no other memory is read so.
pub trait Numbers {}
impl Numbers for smc::table::Header {}
impl Numbers for smc::conn::Conn {}
impl Numbers for smc::census::Row {}
impl Numbers for smc::kept::File {}
impl Numbers for shm::rsockets::Head {}
impl Numbers for shm::rsockets::Row {}

/// Reads `count` values from `offset` on. What lies behind the end of the file reads as zero.
pub fn read<T: Numbers>(file: &File, offset: u64, count: usize) -> io::Result<Box<[T]>> {
    let mut values = Box::<[T]>::new_zeroed_slice(count);
    let length = size_of_val(&*values);
    // SAFETY: the bytes of the allocation, all initialised to zero, borrowed only until the read is
    // done.
    let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), length) };
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    // SAFETY: the implementors of `Numbers` consist of integers, atomics and pointers that are not
    // followed: any bytes are a value of them.
    Ok(unsafe { values.assume_init() })
}

/// Reads the value at the beginning twice: nothing in the second copy is older than what is in the
/// first, although each by itself is made in any order.
pub fn read_twice<T: Numbers>(file: &File) -> io::Result<[Box<[T]>; 2]> {
    let earlier = read(file, 0, 1)?;
    // SYNC: reasons. The fence of who reads without the kernel in between.
    fence(Acquire);
    Ok([earlier, read(file, 0, 1)?])
}
