//! epoll for upgraded connections (rules R1 to R14 of the readiness notes in doc/preload.md).
//!
//! The kernel's set stays in charge of everything that is not upgraded. An upgraded connection's
//! registration is *hooked*: in the kernel it becomes edge-triggered with a tag of ours as data, so
//! that a doorbell byte wakes a sleeper once and need not be taken off the stream; level, edge and
//! oneshot semantics are done here, from the rings.
//!
//! A hooked registration is *hot* (looked at by every wait, covered by the set's wait word, no
//! doorbell while somebody looks) or *cold* (armed by itself; its doorbell makes it hot). 10,000
//! idle connections cost nothing.
//!
//! Locks, in this order: a set's turn (`table.rs`: one epoll_ctl of it at a time, held over the
//! kernel's call, so that the note of a registration is the kernel's), the tables' (`table.rs`:
//! which registrations there are), a set's (`set.rs`: their state and the hot list). Sets and
//! registrations lie in reserved memory and are reused, never freed.

pub(crate) mod bells;
mod change;
mod crossing;
mod look;
mod set;
mod sleepers;
mod table;
mod underway;
mod wait;

pub(crate) use change::{
    after_fork_child, before_close, before_fork, forget, forget_conn, nest, registered_as, share,
};
pub use change::{control, open};
pub(crate) use crossing::{on_more_room, on_reverted, on_switched};
pub(crate) use look::{arm_set, enter, leave, set_ready};
pub(crate) use set::hooked;
pub(crate) use table::lock as table_lock;
pub use wait::wait;
