//! Words of each thread that are read on every call: where a thread's memory is asked for through a
//! function of the dynamic linker, as in every library that may be loaded late, that alone is a
//! fifth of the instructions that a call costs a connection on TCP.
#![allow(unsafe_code)]

/// The thread's id, 0 before it was asked for.
pub static ID: Word<0> = Word;
/// The thread is inside a call a second time, see `smc::conn`.
pub static AGAIN: Word<4> = Word;
/// The epoll set whose lock the thread took last, see `epoll::set` of `socket`: its index and one,
/// 0: none yet.
pub static SET: Word<8> = Word;
/// The epoll set whose turn of epoll_ctl the thread has, likewise, see `epoll::table`.
pub static TURN: Word<12> = Word;

/// Where the words lie in the block that a register leads to, where there is no libc. There are 16 bytes of
/// them, all zero in a new thread.
#[cfg(shortwire_raw)]
pub const BLOCK: usize = 16;

/// A word at `AT` bytes of the thread's own memory.
pub struct Word<const AT: usize>;

#[cfg(all(target_arch = "x86_64", not(shortwire_raw), not(miri)))]
mod imp {
    // Of the initial-exec model: at a fixed distance from the thread's pointer. The dynamic linker
    // keeps room for that much, also for a library that is loaded late.
    core::arch::global_asm!(
        ".pushsection .tbss,\"awT\",@nobits",
        ".hidden shortwire_thread_words",
        ".globl shortwire_thread_words",
        ".type shortwire_thread_words,@object",
        ".size shortwire_thread_words, 16",
        ".balign 8",
        "shortwire_thread_words: .zero 16",
        ".popsection"
    );

    impl<const AT: usize> super::Word<AT> {
        /// Its value in this thread.
        #[inline(always)]
        pub fn get(&self) -> u32 {
            let value: u32;
            // SAFETY: `AT` lies in the 16 bytes above, of which each thread has its own.
            unsafe {
                core::arch::asm!(
                    "mov {at}, qword ptr [rip + shortwire_thread_words@GOTTPOFF]",
                    "mov {value:e}, dword ptr fs:[{at} + {offset}]",
                    at = out(reg) _, value = out(reg) value, offset = const AT,
                    options(nostack, preserves_flags, readonly)
                );
            }
            value
        }

        /// Changes it in this thread.
        #[inline(always)]
        pub fn set(&self, value: u32) {
            // SAFETY: as in `get`.
            unsafe {
                core::arch::asm!(
                    "mov {at}, qword ptr [rip + shortwire_thread_words@GOTTPOFF]",
                    "mov dword ptr fs:[{at} + {offset}], {value:e}",
                    at = out(reg) _, value = in(reg) value, offset = const AT,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

/// Without libc FS is the program's, and nothing of ours lies behind it. GS leads to a block that the
/// front gives each thread, in which the words have a place of their own.
#[cfg(all(target_arch = "x86_64", shortwire_raw))]
mod imp {
    impl<const AT: usize> super::Word<AT> {
        /// Its value in this thread.
        #[inline(always)]
        pub fn get(&self) -> u32 {
            let value: u32;
            // SAFETY: the front has set GS before anything else runs.
            unsafe {
                core::arch::asm!(
                    "mov {value:e}, dword ptr gs:[{offset}]",
                    value = out(reg) value, offset = const super::BLOCK + AT,
                    options(nostack, preserves_flags, readonly)
                );
            }
            value
        }

        /// Changes it in this thread.
        #[inline(always)]
        pub fn set(&self, value: u32) {
            // SAFETY: as in `get`.
            unsafe {
                core::arch::asm!(
                    "mov dword ptr gs:[{offset}], {value:e}",
                    value = in(reg) value, offset = const super::BLOCK + AT,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

/// Without libc the thread's pointer leads to that block: the program's own lies in there.
#[cfg(all(target_arch = "aarch64", shortwire_raw))]
mod imp {
    impl<const AT: usize> super::Word<AT> {
        /// Its value in this thread.
        #[inline(always)]
        pub fn get(&self) -> u32 {
            let value: u32;
            // SAFETY: the front has set the register before anything else runs.
            unsafe {
                core::arch::asm!(
                    "mrs {own}, tpidr_el0",
                    "ldr {value:w}, [{own}, #{offset}]",
                    own = out(reg) _, value = lateout(reg) value, offset = const super::BLOCK + AT,
                    options(nostack, preserves_flags, readonly)
                );
            }
            value
        }

        /// Changes it in this thread.
        #[inline(always)]
        pub fn set(&self, value: u32) {
            // SAFETY: as in `get`.
            unsafe {
                core::arch::asm!(
                    "mrs {own}, tpidr_el0",
                    "str {value:w}, [{own}, #{offset}]",
                    own = out(reg) _, value = in(reg) value, offset = const super::BLOCK + AT,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

#[cfg(all(target_arch = "aarch64", not(shortwire_raw), not(miri)))]
mod imp {
    // Of the initial-exec model, at a fixed distance from the thread's pointer, for which the dynamic
    // linker keeps room also where the library is loaded late: any other model would call libc's
    // __tls_get_addr, which may allocate.
    core::arch::global_asm!(
        ".pushsection .tbss,\"awT\",%nobits",
        ".hidden shortwire_thread_words",
        ".globl shortwire_thread_words",
        ".type shortwire_thread_words,%object",
        ".size shortwire_thread_words, 16",
        ".balign 8",
        "shortwire_thread_words: .zero 16",
        ".popsection"
    );

    impl<const AT: usize> super::Word<AT> {
        /// Its value in this thread.
        #[inline(always)]
        pub fn get(&self) -> u32 {
            let value: u32;
            // SAFETY: `AT` lies in the 16 bytes above, of which each thread has its own.
            unsafe {
                core::arch::asm!(
                    "adrp {at}, :gottprel:shortwire_thread_words",
                    "ldr {at}, [{at}, :gottprel_lo12:shortwire_thread_words]",
                    "mrs {own}, tpidr_el0",
                    "add {at}, {at}, {own}",
                    "ldr {value:w}, [{at}, #{offset}]",
                    at = out(reg) _, own = out(reg) _, value = lateout(reg) value, offset = const AT,
                    options(nostack, preserves_flags, readonly)
                );
            }
            value
        }

        /// Changes it in this thread.
        #[inline(always)]
        pub fn set(&self, value: u32) {
            // SAFETY: as in `get`.
            unsafe {
                core::arch::asm!(
                    "adrp {at}, :gottprel:shortwire_thread_words",
                    "ldr {at}, [{at}, :gottprel_lo12:shortwire_thread_words]",
                    "mrs {own}, tpidr_el0",
                    "add {at}, {at}, {own}",
                    "str {value:w}, [{at}, #{offset}]",
                    at = out(reg) _, own = out(reg) _, value = in(reg) value, offset = const AT,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod imp {
    use core::cell::Cell;

    std::thread_local! {
        // Constant and without a destructor: no allocation, no registration, usable in a handler.
        static WORDS: [Cell<u32>; 4] = const { [const { Cell::new(0) }; 4] };
    }

    impl<const AT: usize> super::Word<AT> {
        /// Its value in this thread.
        #[inline(always)]
        pub fn get(&self) -> u32 {
            WORDS.with(|words| words[AT / 4].get())
        }

        /// Changes it in this thread.
        #[inline(always)]
        pub fn set(&self, value: u32) {
            WORDS.with(|words| words[AT / 4].set(value));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own() {
        ID.set(7);
        AGAIN.set(8);
        let other = std::thread::spawn(|| {
            let before = (ID.get(), AGAIN.get());
            ID.set(9);
            (before, ID.get())
        });
        assert_eq!(other.join().unwrap(), ((0, 0), 9));
        assert_eq!((ID.get(), AGAIN.get()), (7, 8));
    }
}
