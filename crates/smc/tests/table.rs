//! Which slots of the table two processes share after a fork: those of connections that both have,
//! and no others.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};

use smc::conn::Conn;
use smc::table::{self, Header};

fn serial() -> (MutexGuard<'static, ()>, &'static Header) {
    static TURN: Mutex<()> = Mutex::new(());
    (TURN.lock().unwrap_or_else(|e| e.into_inner()), table::get().expect("a table"))
}

fn begin(table: &'static Header) -> (u32, &'static Conn) {
    let index = table.alloc().expect("a slot");
    table.conn(index).reset();
    (index, table.conn(index))
}

fn end(table: &Header, index: u32) {
    table.conn(index).identity.gen_.fetch_add(1, Relaxed);
    table.free(index);
}

/// What a fork does in the parent, without a child.
fn forks() {
    let locked = table::before_fork();
    // SAFETY: as it has just been said.
    unsafe { table::after_fork_parent(locked) };
}

/// Forks with the handlers that the library has, for a child that holds `held`; whether `child`
/// says yes there. `parent` runs before that.
fn fork(held: &[u32], parent: impl FnOnce(), child: impl FnOnce() -> bool) -> bool {
    let (mut turn, mut status) = ([0; 2], -1);
    let locked = table::before_fork();
    // SAFETY: system calls on locals; the child allocates nothing but slots, and leaves by _exit.
    unsafe {
        assert_eq!(libc::pipe(turn.as_mut_ptr()), 0);
        let pid = libc::fork();
        if pid == 0 {
            shm::refresh_thread_id();
            table::after_fork_child(|each| held.iter().for_each(|&index| each(index)));
            libc::read(turn[0], [0u8].as_mut_ptr().cast(), 1);
            libc::_exit(i32::from(!child()));
        }
        table::after_fork_parent(locked);
        parent();
        assert_eq!(libc::write(turn[1], b"x".as_ptr().cast(), 1), 1);
        libc::waitpid(pid, &mut status, 0);
        turn.iter().for_each(|&end| _ = libc::close(end));
    }
    status == 0
}

#[test]
fn a_child_shares_what_it_inherits_and_nothing_that_comes_later() {
    let (_turn, table) = serial();
    let (both, shared) = begin(table);
    let mut later = u32::MAX;
    let parent = || {
        let (index, conn) = begin(table);
        conn.ops.store(11, Relaxed);
        shared.ops.store(22, Relaxed);
        later = index;
    };
    let child = || {
        let seen = shared.ops.load(Relaxed) == 22;
        // All that is mapped here.
        (0..table.used() + 64).for_each(|index| table.conn(index).ops.store(33, Relaxed));
        let (_, own) = begin(table);
        own.ops.store(44, Relaxed);
        seen && table::is_here(both)
    };
    assert!(fork(&[both], parent, child));
    assert_eq!((shared.ops.load(Relaxed), table.conn(later).ops.load(Relaxed)), (33, 11));
    assert!(table::is_here(later));
    [both, later].iter().for_each(|&index| end(table, index));
}

#[test]
fn a_child_uses_what_it_has_descriptors_of() {
    let (_turn, table) = serial();
    let (one, _) = begin(table);
    let (other, _) = begin(table);
    let child = || {
        let used: usize = table.here().map(|(index, _)| index as usize).sum();
        used == one as usize && !table::is_here(other)
    };
    assert!(fork(&[one], || (), child));
    [one, other].iter().for_each(|&index| end(table, index));
}

/// In the parent, of a child that is killed, they would stand for the connections that the child
/// had inherited.
#[test]
fn a_child_never_uses_inherited_places_for_others() {
    let (_turn, table) = serial();
    let (both, _) = begin(table);
    let child = || {
        table.leave(both);
        let first = both / 64 * 64;
        (0..200).all(|_| !(first..first + 64).contains(&begin(table).0))
    };
    assert!(fork(&[both], || (), child));
    end(table, both);
}

#[test]
fn a_server_that_forks_for_each_connection_takes_no_more_and_no_more() {
    let (_turn, table) = serial();
    // Of tests that ran before.
    let used = table.used();
    let (listener, _) = begin(table);
    let mut generation = 0;
    for round in 0..1000 {
        let (index, conn) = begin(table);
        assert!(
            round < 10 || conn.identity.gen_.load(Relaxed) > generation,
            "a late reader would take it for the one before"
        );
        generation = generation.max(conn.identity.gen_.load(Relaxed));
        forks();
        table.leave(index);
    }
    assert!(table.used() <= used.max(64) + 3 * 64, "{} places, {used} before", table.used());
    assert!(table::hidden_fds().count() <= 3, "{} files", table::hidden_fds().count());
    end(table, listener);
}

#[test]
fn many_connections_that_forks_come_between_stay_whole() {
    let (_turn, table) = serial();
    let all: Vec<_> = (0..300).map(|round| (forks(), begin(table), round).1).collect();
    all.iter().enumerate().for_each(|(n, (_, conn))| conn.ops.store(n as u32, Relaxed));
    assert!(table::hidden_fds().count() <= 34, "{} files are open", table::hidden_fds().count());
    assert!(
        all.iter()
            .enumerate()
            .all(|(n, (index, conn))| conn.ops.load(Relaxed) == n as u32 && table::is_here(*index))
    );
    all.iter().for_each(|(index, _)| end(table, *index));
    forks();
    let (index, _) = begin(table);
    assert!(table::hidden_fds().count() <= 3);
    end(table, index);
}

#[test]
fn what_is_given_back_is_taken_again() {
    let (_turn, table) = serial();
    let all: Vec<_> = (0..500).map(|_| begin(table).0).collect();
    let most = table.used();
    for _ in 0..10 {
        all.iter().for_each(|&index| end(table, index));
        let mut again: Vec<_> = (0..500).map(|_| begin(table).0).collect();
        again.sort_unstable();
        again.dedup();
        assert_eq!((again.len(), table.used()), (500, most));
    }
    all.iter().for_each(|&index| end(table, index));
}

/// The word that others write counts only with the mode, which those who gave up the user cannot
/// set.
#[test]
fn it_is_switched_off_by_word_and_mode_together() {
    let (_turn, table) = serial();
    let file = table::hidden_fds().next().expect("the first file");
    let off = |word, mode| {
        table.removed.store(word, Relaxed);
        assert_eq!(smc::sys::set_mode(file, mode), 0);
        let is = (table::is_off(), table::is_draining());
        table.removed.store(0, Relaxed);
        assert_eq!(smc::sys::set_mode(file, table::mode_of(0)), 0);
        is
    };
    let both = table::OFF | table::DRAIN;
    assert_eq!(off(0, table::mode_of(0)), (false, false));
    assert_eq!(off(both, table::mode_of(0)), (false, false));
    assert_eq!(off(0, table::mode_of(table::OFF)), (false, false));
    assert_eq!(off(table::OFF, table::mode_of(table::OFF)), (true, false));
    assert_eq!(off(both, table::mode_of(both)), (true, true));
    assert_eq!(off(table::DRAIN, table::mode_of(table::OFF)), (false, false));
    // Whatever was taken away beside it, and the file stays its owner's to read and write.
    let all = (0..1 << 5)
        .map(|n| table::mode_of(n << 1 & 0x1e | if n & 16 != 0 { table::OFF } else { 0 }));
    let all: std::collections::BTreeSet<u32> =
        all.inspect(|mode| assert_eq!(mode & 0o6711, 0o600)).collect();
    assert_eq!(all.len(), 32);
}
