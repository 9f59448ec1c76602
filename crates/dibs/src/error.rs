//! One enum per operation. All of them lead to a plain TCP connection in the end, but for a
//! different reason in the statistics.

use core::fmt;
use shm::Errno;

/// [`crate::Device::register_dmb`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterError {
    /// The device has no room for another buffer.
    NoSpace,
    /// No memory for a buffer of this size now; a smaller one may still do.
    NoMemory,
    /// Any other reason: EINVAL for what cannot be a length, ENODEV without hardware or a bar, or
    /// what the system said.
    Os(Errno),
}

/// [`crate::Device::attach_dmb`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachError {
    /// No arena is known by this token, and no share came with it; or it is not there any more.
    UnknownToken,
    /// What the peer says about its memory is not true, or not safe.
    BadShare,
    /// Any other reason: EDEADLK for a signal handler that interrupted the device, or what the
    /// system said.
    Os(Errno),
}

/// [`crate::Device::move_data`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveError {
    /// No buffer of this token is within reach, or it is not ours to write.
    UnknownToken,
    /// It would reach beyond the end of the buffer.
    OutOfBounds,
    /// The copy failed: ESRCH where the process that owns the buffer is gone, or what the system
    /// said.
    Os(Errno),
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSpace => f.write_str("the device has no room for another buffer"),
            Self::NoMemory => f.write_str("no memory for a buffer of this size"),
            Self::Os(e) => write!(f, "registering a buffer: {e}"),
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownToken => f.write_str("no arena is known by this token"),
            Self::BadShare => f.write_str("the peer's memory is not what it says"),
            Self::Os(e) => write!(f, "attaching a buffer: {e}"),
        }
    }
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownToken => f.write_str("no such buffer to write to"),
            Self::OutOfBounds => f.write_str("beyond the end of the buffer"),
            Self::Os(e) => write!(f, "moving data: {e}"),
        }
    }
}

impl core::error::Error for RegisterError {}
impl core::error::Error for AttachError {}
impl core::error::Error for MoveError {}

impl From<Errno> for RegisterError {
    fn from(e: Errno) -> Self {
        if e == Errno::NOMEM { Self::NoMemory } else { Self::Os(e) }
    }
}

impl From<shm::OpenError> for AttachError {
    fn from(e: shm::OpenError) -> Self {
        match e {
            shm::OpenError::Os(e) => Self::Os(e),
            _ => Self::BadShare,
        }
    }
}
