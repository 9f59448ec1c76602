//! What the models take of loom, by the language's own threads and cells, for Miri: it lets loads
//! read old values, finds races, and orders what is sequentially consistent as the language does,
//! where loom only comes near (`shm::sync`). It tries some interleavings, loom all of them.

#![allow(unsafe_code)]

pub use std::thread;

pub mod sync {
    pub use std::sync::{Arc, Condvar, Mutex};
}

pub mod cell {
    /// Miri reports a race of those who use its content.
    #[derive(Default)]
    pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    // SAFETY: what threads do to the content at the same time is what is looked for here.
    unsafe impl<T: Send> Sync for UnsafeCell<T> {}

    impl<T> UnsafeCell<T> {
        pub fn new(content: T) -> Self {
            Self(core::cell::UnsafeCell::new(content))
        }

        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

pub mod model {
    /// How often each model runs; each time its threads take turns in another way.
    const RUNS: usize = 50;

    #[derive(Default)]
    pub struct Builder {
        pub preemption_bound: Option<usize>,
    }

    impl Builder {
        pub fn new() -> Self {
            Self::default()
        }

        pub fn check(&self, body: impl Fn()) {
            (0..RUNS).for_each(|_| body());
        }
    }
}
