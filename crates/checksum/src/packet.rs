//! Whole packets.
