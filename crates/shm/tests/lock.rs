//! The lock among real threads, signals and processes.
#![allow(unsafe_code)]
#![cfg(not(loom))]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use shm::{FastLock, Reentered};
use std::thread::{scope, sleep};

struct Guarded<const SHARED: bool> {
    lock: FastLock<SHARED>,
    count: UnsafeCell<u64>,
}

// SAFETY: `count` is only touched under `lock`, which is what the tests prove.
unsafe impl<const SHARED: bool> Sync for Guarded<SHARED> {}

impl<const SHARED: bool> Guarded<SHARED> {
    const fn new() -> Self {
        Self { lock: FastLock::new(), count: UnsafeCell::new(0) }
    }

    fn increment(&self) -> Result<(), Reentered> {
        let _guard = self.lock.lock()?;
        let count = self.count.get();
        // SAFETY: the lock is held. Volatile and in two steps, so that a second owner would lose
        // one.
        let seen = unsafe { count.read_volatile() };
        core::hint::spin_loop();
        // SAFETY: as above.
        unsafe { count.write_volatile(seen + 1) };
        Ok(())
    }

    fn total(&self) -> u64 {
        let _guard = self.lock.lock().unwrap();
        // SAFETY: the lock is held.
        unsafe { self.count.get().read_volatile() }
    }
}

/// A test that hangs is killed; none asserts how long something takes.
fn watchdog() {
    // SAFETY: no handler is installed, so that the alarm ends the process.
    unsafe { libc::alarm(120) };
}

fn on(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: all of a sigaction may be zero.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // SAFETY: `action` is initialised, and without SA_RESTART.
    let done = unsafe { libc::sigaction(signal, &action, core::ptr::null_mut()) };
    assert_eq!(done, 0);
}

fn shared<T>() -> &'static T {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let p = unsafe { mmap_anonymous(core::ptr::null_mut(), 4096, prot, MapFlags::SHARED) };
    // SAFETY: zeroed memory is a valid T in these tests, and it is never unmapped.
    unsafe { &*p.unwrap().cast() }
}

/// Runs `body` in a child process, which must not allocate, and gives its id.
fn child(body: impl FnOnce() -> i32) -> Pid {
    // SAFETY: the child only makes system calls and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            shm::refresh_thread_id();
            let code = body();
            // SAFETY: ends the process here.
            unsafe { libc::_exit(code) }
        }
        pid => Pid::from_raw(pid).expect("fork"),
    }
}

fn exit_code(pid: Pid) -> Option<i32> {
    waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap().1.exit_status()
}

#[test]
fn threads_exclude_each_other() {
    watchdog();
    static G: Guarded<false> = Guarded::new();
    scope(|s| {
        for _ in 0..8 {
            s.spawn(|| (0..50_000).for_each(|_| G.increment().unwrap()));
        }
    });
    assert_eq!(G.total(), 400_000);
}

static STORM: Guarded<false> = Guarded::new();
static STORM_IN: AtomicU32 = AtomicU32::new(0);
static STORM_OUT: AtomicU32 = AtomicU32::new(0);

extern "C" fn lock_in_handler(_: i32) {
    match STORM.increment() {
        Ok(()) => STORM_IN.fetch_add(1, Relaxed),
        Err(Reentered) => STORM_OUT.fetch_add(1, Relaxed),
    };
}

#[test]
fn a_storm_of_signals_breaks_nothing() {
    watchdog();
    on(libc::SIGUSR1, lock_in_handler);
    let (running, increments) = (AtomicU32::new(4), AtomicU64::new(0));
    let ids: [AtomicU32; 4] = Default::default();
    scope(|s| {
        let threads = ids.each_ref().map(|id| {
            let (running, increments) = (&running, &increments);
            s.spawn(move || {
                id.store(shm::thread_id(), Relaxed);
                let mut own = 0;
                // Until signals come, too: the thread that sends them may get no processor for a while.
                while own < 100_000 || STORM_IN.load(Relaxed) + STORM_OUT.load(Relaxed) == 0 {
                    STORM.increment().unwrap();
                    own += 1;
                }
                increments.fetch_add(own, Relaxed);
                running.fetch_sub(1, Relaxed);
                // Stays until the storm is over, so that its id names no other thread.
                while running.load(Relaxed) != 0 {
                    sleep(Duration::from_millis(1));
                }
            })
        });
        while running.load(Relaxed) != 0 {
            for id in &ids {
                let tid = id.load(Relaxed);
                if tid != 0 {
                    // SAFETY: signals one of our own threads, if it still exists.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR1) };
                }
            }
        }
        // To their very ends, for which the scope does not wait: the last signals may have come when they
        // were done, and their handlers count, too.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let (taken, refused) = (STORM_IN.load(Relaxed), STORM_OUT.load(Relaxed));
    println!("handlers: {taken} took the lock, {refused} were refused");
    assert_eq!(STORM.total(), increments.load(Relaxed) + u64::from(taken));
}

static HELD: FastLock<false> = FastLock::new();
static REFUSED: AtomicBool = AtomicBool::new(false);

extern "C" fn reenter(_: i32) {
    REFUSED.store(HELD.lock().is_err() && HELD.is_mine(), Relaxed);
}

#[test]
fn a_handler_that_interrupted_the_owner_is_refused() {
    watchdog();
    on(libc::SIGUSR2, reenter);
    let guard = HELD.lock().unwrap();
    // SAFETY: runs the handler before it returns.
    unsafe { libc::raise(libc::SIGUSR2) };
    assert!(REFUSED.load(Relaxed));
    drop(guard);
    assert!(!HELD.is_locked());
}

/// What siglongjmp out of a handler does to the section that the handler interrupted.
#[inline(never)]
fn taken_deeper(lock: &FastLock<false>) {
    let deep = core::hint::black_box([0u8; 4096]);
    core::mem::forget(lock.lock().unwrap());
    core::hint::black_box(deep);
}

#[test]
fn a_section_that_was_left_by_a_jump_is_taken_over() {
    let lock = FastLock::new();
    taken_deeper(&lock);
    assert!(lock.is_mine() && !lock.is_interrupted());
    let (guard, recovered) = lock.lock_recovering().unwrap();
    assert!(recovered);
    assert!(lock.try_lock().is_none());
    drop(guard);
    assert!(!lock.is_locked());
    drop(lock.lock().unwrap());
}

/// On its own stack a handler may lie above what it interrupted.
#[test]
fn a_handler_on_its_own_stack_is_refused() {
    static LOCK: FastLock<false> = FastLock::new();
    static TOLD: AtomicU32 = AtomicU32::new(0);
    extern "C" fn reenter(_: i32) {
        TOLD.store(1 + u32::from(LOCK.lock().is_err() && LOCK.is_interrupted()), Relaxed);
    }
    watchdog();
    let section = || {
        let _guard = LOCK.lock().unwrap();
        // SAFETY: runs the handler before it returns.
        unsafe { libc::raise(libc::SIGPWR) };
    };
    // The thread's own stack is below the main thread's, whose frame serves as the handler's stack.
    let mut room = [0u64; 8192];
    let at = room.as_mut_ptr() as usize;
    scope(|s| {
        s.spawn(|| {
            let stack = libc::stack_t { ss_sp: at as *mut _, ss_flags: 0, ss_size: 65536 };
            // SAFETY: `room` lives on while the thread does.
            assert_eq!(unsafe { libc::sigaltstack(&stack, core::ptr::null_mut()) }, 0);
            // SAFETY: all of a sigaction may be zero.
            let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
            action.sa_sigaction = reenter as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK;
            // SAFETY: `action` is initialised.
            assert_eq!(unsafe { libc::sigaction(libc::SIGPWR, &action, core::ptr::null_mut()) }, 0);
            section();
        });
    });
    assert_eq!(TOLD.load(Relaxed), 2);
}

#[test]
fn processes_exclude_each_other() {
    watchdog();
    let g: &Guarded<true> = shared();
    let pids: Vec<_> = (0..3)
        .map(|_| {
            child(|| {
                (0..50_000).for_each(|_| g.increment().unwrap());
                0
            })
        })
        .collect();
    (0..50_000).for_each(|_| g.increment().unwrap());
    for pid in pids {
        assert_eq!(exit_code(pid), Some(0));
    }
    assert_eq!(g.total(), 200_000);
}

#[test]
fn a_killed_owner_is_replaced_even_unreaped() {
    watchdog();
    let lock: &FastLock<true> = shared();
    let pid = child(|| {
        let _guard = lock.lock().unwrap();
        loop {
            sleep(Duration::from_secs(1));
        }
    });
    while !lock.is_locked() {
        std::thread::yield_now();
    }
    kill_process(pid, Signal::KILL).unwrap();
    // The child is not waited for until later: as a zombie it answers to signal 0.
    let (guard, recovered) = lock.lock_recovering().unwrap();
    assert!(recovered);
    drop(guard);
    assert!(!lock.lock_recovering().unwrap().1);
    assert_eq!(exit_code(pid), None);
}

#[test]
fn a_slow_owner_is_not_robbed() {
    watchdog();
    let g: &Guarded<true> = shared();
    let is_seen: &AtomicBool = shared();
    let pid = child(|| {
        let _guard = g.lock.lock().unwrap();
        while !is_seen.load(Relaxed) {
            std::thread::yield_now();
        }
        sleep(Duration::from_millis(400));
        0
    });
    while !g.lock.is_locked() {
        std::thread::yield_now();
    }
    is_seen.store(true, Relaxed);
    assert!(!g.lock.lock_recovering().unwrap().1);
    assert_eq!(exit_code(pid), Some(0));
}

#[test]
fn a_killed_waiter_leaves_nobody_asleep() {
    watchdog();
    let g: &Guarded<true> = shared();
    let guard = g.lock.lock().unwrap();
    let pids: Vec<_> = (0..4).map(|_| child(|| g.increment().map_or(1, |()| 0))).collect();
    sleep(Duration::from_millis(60));
    kill_process(pids[0], Signal::KILL).unwrap();
    drop(guard);
    for (i, pid) in pids.into_iter().enumerate() {
        assert!(exit_code(pid) == Some(0) || i == 0);
    }
}

#[test]
fn a_fork_child_inherits_no_locks() {
    watchdog();
    static PRIVATE: FastLock<false> = FastLock::new();
    let lock: &FastLock<true> = shared();
    let _mine = lock.lock().unwrap();
    let (held, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    scope(|s| {
        s.spawn(|| {
            let _guard = PRIVATE.lock().unwrap();
            held.store(true, Relaxed);
            while !ended.load(Relaxed) {
                sleep(Duration::from_millis(1));
            }
        });
        while !held.load(Relaxed) {
            std::thread::yield_now();
        }
        let pid = child(|| {
            // The thread that owns this copy lives on, but not in this process.
            let recovered = PRIVATE.lock_recovering().is_ok_and(|(_, recovered)| recovered);
            // A guard that fork copied is not the owner of what both processes see.
            // SAFETY: a copy of the guard is what fork made, too.
            drop(unsafe { core::ptr::read(&raw const _mine) });
            i32::from(!(recovered && lock.is_locked() && !lock.is_mine()))
        });
        assert_eq!(exit_code(pid), Some(0));
        assert!(lock.is_mine() && PRIVATE.is_locked());
        ended.store(true, Relaxed);
    });
}
