//! Tables that allocate nothing: hooks run inside signal handlers, where malloc may be half way
//! through.
#![allow(unsafe_code)]

use core::mem::size_of;
use core::ptr;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use shm::Errno;

/// Up to `cap` entries at stable indexes, in pages of their own that cost nothing before they are
/// used.
pub struct Table<T> {
    base: *mut Option<T>,
    /// Entries below it are initialised.
    top: usize,
    cap: usize,
}

impl<T> Table<T> {
    pub const fn new(cap: usize) -> Self {
        Self { base: ptr::null_mut(), top: 0, cap }
    }

    fn entries(&self) -> &[Option<T>] {
        if self.top == 0 {
            return &[];
        }
        // SAFETY: `top` is the number of initialised entries at `base`.
        unsafe { core::slice::from_raw_parts(self.base, self.top) }
    }

    fn entries_mut(&mut self) -> &mut [Option<T>] {
        if self.top == 0 {
            return &mut [];
        }
        // SAFETY: as in `entries`, and exclusive by `&mut self`.
        unsafe { core::slice::from_raw_parts_mut(self.base, self.top) }
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.entries_mut().iter_mut().enumerate().filter_map(|(i, e)| e.as_mut().map(|e| (i, e)))
    }

    /// At the lowest free index; NOSPC when the table is full.
    pub fn insert(&mut self, value: T) -> Result<(usize, &mut T), Errno> {
        let index = self.entries().iter().position(Option::is_none).unwrap_or(self.top);
        if index == self.top {
            self.grow()?;
        }
        let entry = self.entries_mut().get_mut(index).ok_or(Errno::NOSPC)?;
        Ok((index, entry.insert(value)))
    }

    fn grow(&mut self) -> Result<(), Errno> {
        if self.top == self.cap {
            return Err(Errno::NOSPC);
        }
        if self.base.is_null() {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let len = self.cap * size_of::<Option<T>>();
            // SAFETY: a new mapping at an address of the kernel's choice.
            self.base = unsafe { mmap_anonymous(ptr::null_mut(), len, prot, flags)? }.cast();
        }
        // SAFETY: below `cap`, so within the mapping, and not initialised yet.
        unsafe { self.base.wrapping_add(self.top).write(None) };
        self.top += 1;
        Ok(())
    }

    /// Takes out the entries that `leaving` chooses.
    pub fn take_if(&mut self, mut leaving: impl FnMut(&T) -> bool, mut taken: impl FnMut(T)) {
        for entry in self.entries_mut() {
            if let Some(value) = entry.take_if(|e| leaving(e)) {
                taken(value);
            }
        }
        while self.entries().last().is_some_and(Option::is_none) {
            self.top -= 1;
        }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        self.take_if(|_| true, drop);
        if !self.base.is_null() {
            // SAFETY: our own mapping, whose entries are all gone.
            let _ = unsafe { munmap(self.base.cast(), self.cap * size_of::<Option<T>>()) };
        }
    }
}

/// A set of slot numbers below [`Slots::MAX`].
#[derive(Clone, Copy)]
pub struct Slots([u64; Self::MAX as usize / 64]);

impl Slots {
    pub const MAX: u32 = 1024;
    pub const EMPTY: Self = Self([0; Self::MAX as usize / 64]);

    fn word(slot: u32) -> (usize, u64) {
        (slot as usize / 64, 1 << (slot % 64))
    }

    pub fn has(&self, slot: u32) -> bool {
        let (i, bit) = Self::word(slot);
        self.0.get(i).is_some_and(|w| w & bit != 0)
    }

    /// Whether it was absent.
    pub fn add(&mut self, slot: u32) -> bool {
        let (i, bit) = Self::word(slot);
        let absent = !self.has(slot);
        if let Some(w) = self.0.get_mut(i) {
            *w |= bit;
        }
        absent
    }

    /// Whether it was present.
    pub fn remove(&mut self, slot: u32) -> bool {
        let (i, bit) = Self::word(slot);
        let present = self.has(slot);
        if let Some(w) = self.0.get_mut(i) {
            *w &= !bit;
        }
        present
    }

    pub fn count(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }

    /// The lowest absent number below `end`.
    pub fn lowest_absent(&self, end: u32) -> Option<u32> {
        let i = self.0.iter().position(|w| *w != u64::MAX)?;
        let slot = i as u32 * 64 + self.0[i].trailing_ones();
        (slot < end).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_stable_and_holes_are_filled() {
        let mut t = Table::new(3);
        for i in 0..3 {
            assert_eq!(t.insert(i * 10).unwrap().0, i);
        }
        assert_eq!(t.insert(99).unwrap_err(), Errno::NOSPC);
        t.take_if(|v| *v == 10, drop);
        assert_eq!(t.iter_mut().map(|(i, v)| (i, *v)).collect::<Vec<_>>(), [(0, 0), (2, 20)]);
        assert_eq!(t.insert(5).unwrap().0, 1);
        t.take_if(|v| *v != 5, drop);
        assert_eq!((t.top, t.iter_mut().count()), (2, 1));
    }

    #[test]
    fn entries_are_dropped_once() {
        let alive = std::rc::Rc::new(());
        let mut t = Table::new(4);
        for _ in 0..4 {
            t.insert(alive.clone()).unwrap();
        }
        let mut n = 0;
        t.take_if(
            |_| {
                n += 1;
                n == 2
            },
            drop,
        );
        assert_eq!(std::rc::Rc::strong_count(&alive), 4);
        drop(t);
        assert_eq!(std::rc::Rc::strong_count(&alive), 1);
    }

    #[test]
    fn slots_are_taken_lowest_first() {
        let mut s = Slots::EMPTY;
        for i in 0..Slots::MAX {
            assert_eq!(s.lowest_absent(Slots::MAX), Some(i));
            assert!(s.add(i) && !s.add(i));
        }
        assert_eq!(s.lowest_absent(Slots::MAX), None);
        assert!(s.remove(700) && !s.remove(700));
        assert_eq!((s.lowest_absent(700), s.lowest_absent(701)), (None, Some(700)));
        assert_eq!(s.count(), Slots::MAX - 1);
        assert!(!s.has(Slots::MAX) && !s.remove(u32::MAX));
    }
}
