//! Who uses a lane.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::*;

use shm::Letters;

use crate::conn::Conn;
use crate::sys;

/// One lane of a link group, as this side has it.
pub struct Lane {
    /// The connection that uses it, and its slot's generation then.
    pub owner: *const Conn,
    pub life: u32,
    pub letters: Letters,
    /// Came with a letter that was not read yet.
    pub passed: Option<i32>,
    /// Of a connection that has left the lane without knowing whether the peer has attached, or
    /// will attach, its buffer: the buffer's token. 0: none.
    pub doubtful: u64,
}

impl Lane {
    /// In use by nobody.
    pub const FREE: Self = Self {
        owner: core::ptr::null(),
        life: 0,
        letters: Letters::begin(0),
        passed: None,
        doubtful: 0,
    };

    /// Whether this connection uses it.
    pub fn is_of(&self, conn: &Conn) -> bool {
        core::ptr::eq(self.owner, conn) && self.life == conn.identity.gen_.load(Relaxed)
    }

    /// Whether it is not for others.
    pub fn is_taken(&self) -> bool {
        if self.doubtful != 0 {
            return true;
        }
        // SAFETY: null, or a slot of the table, which is never unmapped.
        unsafe { self.owner.as_ref() }.is_some_and(|conn| self.is_of(conn))
    }

    /// Gives it to a connection.
    pub fn take(&mut self, conn: &Conn, letters: Letters) {
        self.drop_passed();
        *self = Lane { owner: conn, life: conn.identity.gen_.load(Relaxed), letters, ..Lane::FREE };
    }

    /// Closes what came and was not asked for.
    pub fn drop_passed(&mut self) {
        if let Some(fd) = self.passed.take() {
            sys::close(fd);
        }
    }
}

/// A lane that was left before its end, by a connection with a buffer that the peer may have
/// attached.
pub struct Doubt {
    pub at: usize,
    pub letters: Letters,
}
