//! The apps of this crate, one file or folder per device or function.

use crate::registry::Registry;

pub mod basic;

pub(crate) fn register(registry: &mut Registry) {
    basic::register(registry);
}
