//! AF_XDP without libraries: sockets and their rings, the UMEM, the XDP program that feeds them.
//!
//! Nothing here knows packets or links: [`crate::apps::xdp`] joins the two. A packet's way in: the
//! driver (or in copy mode the kernel) writes into a chunk from the fill ring, its address comes
//! out of the receive ring. Out: the address goes into the transmit ring and comes back in the
//! completion ring. All ports share one UMEM, so that an address received on one port can be sent
//! on another.
//!
//! See `Documentation/networking/af_xdp.rst` of the kernel.

mod attach;
mod bpf;
pub mod live_frames;
mod program;
mod ring;
mod socket;
mod umem;

pub use attach::{AttachError, Attachment, Mode};
pub use program::Filter;
pub use socket::{Copying, Frame, OpenError, Options, Socket};
pub use umem::Umem;
