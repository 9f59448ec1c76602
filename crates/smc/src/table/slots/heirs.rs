//! Slots over fork and exec: what a child, and the next program, has of them.
#![allow(unsafe_code)]

use super::*;

/// Before a fork. Its child must find what is known of slots whole, and no thread may take one
/// while it is made. Whether the lock was taken, which the parent must let go of: not by a signal
/// handler that interrupted its holder.
pub fn before_fork() -> bool {
    LOCK.lock().map(core::mem::forget).is_ok()
}

/// In the parent: what it has, its child has too. `locked` is what `before_fork` said.
///
/// # Safety
/// The calling thread has called that.
pub unsafe fn after_fork_parent(locked: bool) {
    FORKED.store(!PLACES.load(Relaxed).is_null(), Relaxed);
    if locked {
        // SAFETY: held, and let go of by who holds it.
        unsafe { LOCK.force_unlock() };
    }
}

/// In the child: it uses, as `each` names them by their index, connections that it has descriptors
/// of.
///
/// # Safety
/// By its only thread.
pub unsafe fn after_fork_child(each: impl FnOnce(&mut dyn FnMut(u32))) {
    // SAFETY: forwarded.
    unsafe { LOCK.reset() };
    waits::after_fork_child();
    if PLACES.load(Relaxed).is_null() {
        return;
    }
    FORKED.store(true, Relaxed);
    ERA.fetch_add(1, Relaxed);
    for chunk in &CHUNK_AT[..used().div_ceil(CHUNK) as usize] {
        if chunk.file.load(Relaxed) == KEPT_FREE {
            // For the sake of the parent's ledger, in which nothing of ours stands.
            chunk.file.store(NONE, Relaxed);
        }
        chunk.inherited.store(chunk.file.load(Relaxed) != NONE, Relaxed);
    }
    each(&mut |index| {
        // The descriptors that stand there are the parent's.
        place(index).own.meeting.store(0, Relaxed);
        place(index).own.port.store(0, Relaxed);
        place(index).own.port_socket.store(0, Relaxed);
        enter(index);
    });
}

/// The program that this process becomes finds the files of these connections.
pub fn keep_for_exec(connections: impl Iterator<Item = u32>) {
    let files = connections
        .map(|index| chunk(index).file.load(Relaxed))
        .filter(|file| !matches!(*file, NONE | KEPT_FREE));
    for fd in files.chain([FIRST]).filter_map(fd_of) {
        sys::fcntl(fd, libc::F_SETFD, 0);
    }
}

/// exec failed.
pub fn undo_exec() {
    hidden_fds().for_each(|fd| _ = sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize));
}

/// The first file of the program before an exec, mapped as a whole.
pub fn adopt_first(fd: i32, high_water: u32) {
    keep(fd);
    first_is(fd);
    CURRENT.store(NONE, Relaxed);
    for chunk in &CHUNK_AT[..high_water.min(CAPACITY).div_ceil(CHUNK) as usize] {
        chunk.file.store(FIRST, Relaxed);
        FILES[0].chunks.fetch_add(1, Relaxed);
    }
    USED.store(high_water.min(CAPACITY), Relaxed);
    EMPTIED.store(true, Relaxed);
}

/// Another one, whose chunks are mapped where there is room.
pub fn adopt(fd: i32, high_water: u32) {
    let Some(table) = crate::table::get() else { return };
    let Some(file_number) = spare_file() else { return };
    let file = &FILES[usize::from(file_number) - 1];
    keep(fd);
    file.fd.store(fd + 1, Relaxed);
    for nth in 0..high_water.min(CAPACITY) / CHUNK {
        let free = CHUNK_AT.iter().position(|chunk| chunk.file.load(Relaxed) == NONE);
        let Some(number) = free.filter(|&number| put(table, number, nth, Some(fd))) else { return };
        CHUNK_AT[number].file.store(file_number, Relaxed);
        file.chunks.fetch_add(1, Relaxed);
        USED.fetch_max((number as u32 + 1) * CHUNK, Relaxed);
    }
}

fn keep(fd: i32) {
    sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
    hidden::remember(fd);
}
