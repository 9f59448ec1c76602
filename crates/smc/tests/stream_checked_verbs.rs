//! The same tests over the verbs device with its checksum: `common::serial` goes by the name of this binary.

#[path = "stream.rs"]
mod stream;
