//! The checksum crate as its users call it, and its kernels one by one.

use checksum::Kernel;

use crate::sum::{Role, Routine, from_native};

pub const NAME: &str = "shortwire";

/// `csum_partial`, whatever kernel and profile it uses.
pub fn dispatched() -> Routine {
    Routine::new(NAME, Role::Ours, Some(from_native), |data| {
        u64::from(checksum::csum_partial(data, 0))
    })
}

/// `csum_partial_latency`.
pub fn at_once() -> Routine {
    Routine::new(NAME, Role::Ours, Some(from_native), |data| {
        u64::from(checksum::csum_partial_latency(data, 0))
    })
}

/// Every kernel that this processor can run.
pub fn kernels() -> impl Iterator<Item = Routine> {
    Kernel::all().iter().filter(|kernel| kernel.is_available()).map(|kernel| {
        Routine::new(kernel.name(), Role::Kernel, Some(from_native), |data| {
            u64::from(kernel.csum_partial(data, 0))
        })
    })
}
