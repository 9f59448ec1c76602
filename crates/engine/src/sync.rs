//! The one place of this crate that chooses between the atomics and cells of core and those of
//! loom.
#![allow(unsafe_code)]

pub use shm::sync::{AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub use loom::sync::Arc;
#[cfg(not(loom))]
pub use std::sync::Arc;

use core::mem::MaybeUninit;

/// A place that one of two threads may use at a time. Loom watches that they do.
#[repr(transparent)]
pub struct Place<T> {
    #[cfg(not(loom))]
    cell: core::cell::UnsafeCell<MaybeUninit<T>>,
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<MaybeUninit<T>>,
}

impl<T> Place<T> {
    pub fn new() -> Self {
        #[cfg(not(loom))]
        let cell = core::cell::UnsafeCell::new(MaybeUninit::uninit());
        #[cfg(loom)]
        let cell = loom::cell::UnsafeCell::new(MaybeUninit::uninit());
        Self { cell }
    }
}

impl<T> Default for Place<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Moves values into places.
///
/// # Safety
/// `from` is valid for reads of `to.len()` values, which the caller forgets, and nobody else uses
/// the places now.
#[inline(always)]
pub unsafe fn write<T>(to: &[Place<T>], from: *const T) {
    #[cfg(not(loom))]
    // SAFETY: the caller's; a place has the layout of its value, and places of a slice follow each
    // other.
    unsafe {
        core::cell::UnsafeCell::raw_get(
            to.as_ptr().cast::<core::cell::UnsafeCell<MaybeUninit<T>>>(),
        )
        .cast::<T>()
        .copy_from_nonoverlapping(from, to.len());
    }
    #[cfg(loom)]
    for (i, place) in to.iter().enumerate() {
        // SAFETY: the caller's; loom reports it if somebody else is here.
        place.cell.with_mut(|cell| unsafe { (*cell).write(from.add(i).read()) });
    }
}

/// Moves values out of places, through a pointer to as many values as there are places.
///
/// # Safety
/// The places hold values, nobody else uses them now, and they are not read again before they are
/// written.
#[inline(always)]
pub unsafe fn read<T>(from: &[Place<T>], take: impl FnOnce(*const T)) {
    #[cfg(not(loom))]
    take(from.as_ptr().cast());
    #[cfg(loom)]
    {
        let values: Vec<MaybeUninit<T>> = from
            .iter()
            // SAFETY: the caller's; loom reports it if somebody else is here.
            .map(|place| place.cell.with(|cell| unsafe { cell.read() }))
            .collect();
        take(values.as_ptr().cast());
    }
}
