//! Drivers of network cards in user space: what they share, and one folder per card.
//!
//! A driver sees its device through two things: a [`Bar`] for the registers and a [`DmaSpace`] for
//! the memory that the device reads and writes by itself. Hardware and software models implement
//! both, so that a driver cannot tell them apart. The data path is generic over the [`Bar`];
//! nothing in it is a dynamic call.

mod bar;
pub mod dma;
pub mod i82574;
pub mod i82599;
pub mod pci;
pub mod ring;

pub use bar::Bar;
pub use dma::{Buffer, DmaError, DmaSpace, PacketMap};
