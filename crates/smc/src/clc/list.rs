//! A list of at most `N` values, kept in place: decoded messages own no heap memory.

use core::fmt;
use core::ops::Deref;

use super::Full;

/// At most `N` values, in order.
#[derive(Clone, Copy)]
pub struct List<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    /// An empty list.
    pub fn new() -> Self {
        List { items: [T::default(); N], len: 0 }
    }

    /// A list of `items`, if there are no more than `N`.
    pub fn of(items: &[T]) -> Result<Self, Full> {
        let mut list = Self::new();
        for &item in items {
            list.push(item)?;
        }
        Ok(list)
    }

    /// Appends `item`, if there is room.
    pub fn push(&mut self, item: T) -> Result<(), Full> {
        *self.items.get_mut(self.len).ok_or(Full)? = item;
        self.len += 1;
        Ok(())
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.items.get(..self.len).unwrap_or(&self.items)
    }
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

// What lies behind `len` is no part of the value.
impl<T: PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq, const N: usize> Eq for List<T, N> {}

impl<T: fmt::Debug, const N: usize> fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a List<T, N> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_n_and_refuses_one_more() {
        let mut list = List::<u8, 2>::new();
        assert!(list.is_empty());
        assert_eq!(list.push(1), Ok(()));
        assert_eq!(list.push(2), Ok(()));
        assert_eq!(list.push(3), Err(Full));
        assert_eq!(*list, [1, 2]);
        assert_eq!(List::<u8, 2>::of(&[1, 2, 3]), Err(Full));
    }
}
