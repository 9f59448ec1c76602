//! The one place that chooses between the atomics of core and those of loom.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use modelled::{AtomicU32, AtomicU64, Ordering, fence};

/// Tells the CPU, or loom's scheduler, that another thread has to move first.
#[inline]
pub fn spin() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Loom takes sequentially consistent accesses for acquire and release, so that of two threads
/// which each write one word and then read the other's both could miss the other. Here a
/// sequentially consistent load passes a full fence if its thread has made a sequentially
/// consistent write since its last fence. The language promises as much of the two; loads that
/// follow are ordered as well here, so a model does not see it when one of those is weaker than it
/// has to be.
#[cfg(loom)]
mod modelled {
    use core::cell::Cell;
    pub use loom::sync::atomic::Ordering;
    use loom::sync::atomic::{self, Ordering::SeqCst};

    loom::thread_local! {
        static WROTE: Cell<bool> = Cell::new(false);
    }

    /// A full fence.
    pub fn fence(order: Ordering) {
        if order == SeqCst {
            WROTE.with(|wrote| wrote.set(false));
        }
        atomic::fence(order);
    }

    fn before_load(order: Ordering) {
        if order == SeqCst && WROTE.with(Cell::get) {
            fence(SeqCst);
        }
    }

    fn after_write(order: Ordering) {
        if order == SeqCst {
            WROTE.with(|wrote| wrote.set(true));
        }
    }

    macro_rules! words {
        ($($name:ident $value:ty),*) => {$(
            /// An atomic word, as that of core.
            #[derive(Debug, Default)]
            pub struct $name(atomic::$name);

            #[allow(missing_docs)]
            impl $name {
                #[track_caller]
                pub fn new(value: $value) -> Self {
                    Self(atomic::$name::new(value))
                }
                #[track_caller]
                pub fn load(&self, order: Ordering) -> $value {
                    before_load(order);
                    self.0.load(order)
                }
                #[track_caller]
                pub fn store(&self, value: $value, order: Ordering) {
                    self.0.store(value, order);
                    after_write(order);
                }
                #[track_caller]
                pub fn compare_exchange(
                    &self, current: $value, new: $value, success: Ordering, failure: Ordering,
                ) -> Result<$value, $value> {
                    let done = self.0.compare_exchange(current, new, success, failure);
                    if done.is_ok() {
                        after_write(success);
                    }
                    done
                }
                #[track_caller]
                pub fn compare_exchange_weak(
                    &self, current: $value, new: $value, success: Ordering, failure: Ordering,
                ) -> Result<$value, $value> {
                    let done = self.0.compare_exchange_weak(current, new, success, failure);
                    if done.is_ok() {
                        after_write(success);
                    }
                    done
                }
                #[track_caller]
                pub fn fetch_update(
                    &self, set: Ordering, fetch: Ordering, f: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    let done = self.0.fetch_update(set, fetch, f);
                    if done.is_ok() {
                        after_write(set);
                    }
                    done
                }
                words! { @ $value: swap fetch_add fetch_sub fetch_or fetch_and fetch_max }
            }
        )*};
        (@ $value:ty: $($change:ident)*) => {$(
            #[track_caller]
            pub fn $change(&self, value: $value, order: Ordering) -> $value {
                let before = self.0.$change(value, order);
                after_write(order);
                before
            }
        )*};
    }
    words! { AtomicU32 u32, AtomicU64 u64 }
}
