//! What a test can make go wrong, and what the model found wrong with its driver.

/// Errors to inject. All off by default.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// The cable is out.
    pub no_link: bool,
    /// Registers read as all ones and take nothing: the device has left the bus.
    pub gone: bool,
    /// Resets never end.
    pub stuck_reset: bool,
    /// The EEPROM is never read.
    pub no_eeprom: bool,
    /// Queues cannot be switched on or off any more.
    pub stuck_queues: bool,
    /// So many reports of sent packets are not written back.
    pub lost_reports: u32,
    /// So many received frames are delivered as broken.
    pub broken_frames: u32,
    /// So many received frames are lost on the wire by their checksum.
    pub checksum_errors: u32,
}

/// What a driver did that a card would not take. Hardware would stop the queue, or damage memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A descriptor or a ring at an address that the device cannot reach.
    Address {
        /// Number of the queue.
        queue: u32,
        /// What the driver wrote.
        address: u64,
    },
    /// A tail outside of its ring.
    Tail {
        /// Number of the queue.
        queue: u32,
        /// What the driver wrote.
        tail: u32,
    },
    /// A descriptor of a kind that is unknown, or a frame of impossible length.
    Descriptor {
        /// Number of the queue.
        queue: u32,
        /// The second word of the descriptor.
        word: u64,
    },
    /// A ring whose length or address is not a multiple of 128.
    Ring {
        /// Number of the queue.
        queue: u32,
        /// Its length in bytes.
        length: u32,
    },
}
