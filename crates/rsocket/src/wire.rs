//! What two rsockets tell each other, bit for bit as librdmacm's do: the private data of the
//! connection, the scatter/gather entry, the iomap entry and the 32 bits of immediate data.
//!
//! Connection data is big endian. Entries that are written into the peer's memory are in the
//! *peer's* byte order, which [`ConnData::big_endian`] tells.

/// `struct rs_sge`: where data may be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address in the memory of who offers it.
    pub addr: u64,
    /// Key that goes with it (rkey).
    pub key: u32,
    /// Bytes; entries in [`ConnData::target_sgl`].
    pub length: u32,
}

impl Sge {
    /// Bytes.
    pub const LEN: usize = 16;

    /// As the memory of the peer is to hold it; `swap`: its byte order is not ours.
    pub fn encode(&self, swap: bool) -> [u8; Self::LEN] {
        let (addr, key, length) = order(swap, self.addr, self.key, self.length);
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&addr.to_ne_bytes());
        out[8..12].copy_from_slice(&key.to_ne_bytes());
        out[12..].copy_from_slice(&length.to_ne_bytes());
        out
    }

    /// As this machine's own memory holds it.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self { addr: u64_at(bytes, 0), key: u32_at(bytes, 8), length: u32_at(bytes, 12) }
    }

    fn to_net(self) -> [u8; Self::LEN] {
        self.encode(cfg!(target_endian = "little"))
    }

    fn from_net(bytes: &[u8; Self::LEN]) -> Self {
        let native = Self::decode(bytes);
        let (addr, key, length) =
            order(cfg!(target_endian = "little"), native.addr, native.key, native.length);
        Self { addr, key, length }
    }
}

/// `struct rs_iomap`: a buffer of the peer's application, and the offset that names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iomap {
    /// What `riomap` named it: the offset for `riowrite`.
    pub offset: u64,
    /// Where it may be written.
    pub sge: Sge,
}

impl Iomap {
    /// Bytes.
    pub const LEN: usize = 24;

    /// As the memory of the peer is to hold it; `swap`: its byte order is not ours.
    pub fn encode(&self, swap: bool) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let offset = if swap { self.offset.swap_bytes() } else { self.offset };
        out[..8].copy_from_slice(&offset.to_ne_bytes());
        out[8..].copy_from_slice(&self.sge.encode(swap));
        out
    }

    /// As this machine's own memory holds it.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self { offset: u64_at(bytes, 0), sge: Sge::decode(sub(bytes, 8)) }
    }
}

/// `struct rs_conn_data`: the private data of the connection request and of the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnData {
    /// Whether the sender's memory is big endian, in which entries written there must be
    /// (`RS_CONN_FLAG_NET`).
    pub big_endian: bool,
    /// Receives that the peer may use up before it needs a credit update.
    pub credits: u16,
    /// Entries of the sender's target iomap, which follows its target SGL; None from an end without
    /// iomaps.
    pub iomaps: Option<u16>,
    /// The sender's target SGL; `length` counts entries.
    pub target_sgl: Sge,
    /// The first receive buffer, for the receiver's first target SGE.
    pub data_buf: Sge,
}

/// Connection data of another protocol version, or that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnError {
    /// The version that it has instead of [`ConnData::VERSION`].
    Version(u8),
    /// A table without entries, or larger than any end makes.
    Damaged,
}

impl ConnData {
    /// Bytes.
    pub const LEN: usize = 40;
    /// `rs_conn_data.version`.
    pub const VERSION: u8 = 1;
    const FLAG_NET: u8 = 1;
    const FLAG_IOMAP: u8 = 2;
    /// More entries than that no end has; librdmacm has two.
    pub const MAX_SGL: u32 = 64;

    /// Of this end.
    pub const fn native() -> bool {
        cfg!(target_endian = "big")
    }

    /// As private data of a connection request or reply.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = Self::VERSION;
        out[1] = (u8::from(self.big_endian) * Self::FLAG_NET)
            | (u8::from(self.iomaps.is_some()) * Self::FLAG_IOMAP);
        out[2..4].copy_from_slice(&self.credits.to_be_bytes());
        out[7] = self.iomaps.map_or(0, to_scale);
        out[8..24].copy_from_slice(&self.target_sgl.to_net());
        out[24..].copy_from_slice(&self.data_buf.to_net());
        out
    }

    /// The reverse of [`Self::encode`], for data of a peer: only what [`ConnError`] names is
    /// refused.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, ConnError> {
        if bytes[0] != Self::VERSION {
            return Err(ConnError::Version(bytes[0]));
        }
        let data = Self {
            big_endian: bytes[1] & Self::FLAG_NET != 0,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            iomaps: (bytes[1] & Self::FLAG_IOMAP != 0).then(|| from_scale(bytes[7])),
            target_sgl: Sge::from_net(sub(bytes, 8)),
            data_buf: Sge::from_net(sub(bytes, 24)),
        };
        let entries = data.target_sgl.length;
        if entries == 0
            || entries > Self::MAX_SGL
            || data.target_sgl.addr.checked_add(1 << 20).is_none()
        {
            return Err(ConnError::Damaged);
        }
        Ok(data)
    }
}

/// The number of iomaps in 8 bits: exact up to 128, then in steps of 256.
pub fn to_scale(n: u16) -> u8 {
    if n <= 128 { n as u8 } else { 128 | (n >> 8) as u8 }
}

/// The reverse of [`to_scale`].
pub fn from_scale(scaled: u8) -> u16 {
    if scaled <= 128 { u16::from(scaled) } else { u16::from(scaled & 127) << 8 }
}

/// Immediate data: the upper 3 bits say what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// So many bytes were written into the next receive buffer.
    Data(u32),
    /// Receives granted, as the sequence number (modulo 2^16) up to which the peer may send; and
    /// the target SGL may have a new entry.
    Credits(u16),
    /// This entry of the target iomap is new.
    Iomap(u16),
    /// The sender has ended the connection (`RS_CTRL_DISCONNECT`).
    Disconnect,
    /// Nothing but a sign of life (`RS_CTRL_KEEPALIVE`).
    KeepAlive,
    /// The sender sends no more data (`RS_CTRL_SHUTDOWN`).
    Shutdown,
    /// Reserved codes.
    Unknown(u32),
}

impl Message {
    const SHIFT: u32 = 29;
    const MASK: u32 = (1 << Self::SHIFT) - 1;
    /// The most that one transfer carries.
    pub const MAX_DATA: u32 = Self::MASK;

    /// The 32 bits of immediate data.
    pub fn encode(self) -> u32 {
        match self {
            Self::Data(n) => n & Self::MASK,
            Self::Credits(n) => 4 << Self::SHIFT | u32::from(n),
            Self::Iomap(n) => 6 << Self::SHIFT | u32::from(n),
            Self::Disconnect => 7 << Self::SHIFT,
            Self::KeepAlive => 7 << Self::SHIFT | 1,
            Self::Shutdown => 7 << Self::SHIFT | 2,
            Self::Unknown(word) => word,
        }
    }

    /// The reverse of [`Self::encode`]. Any 32 bits are a message.
    pub fn decode(word: u32) -> Self {
        match (word >> Self::SHIFT, word & Self::MASK) {
            (0, n) => Self::Data(n),
            // The grant counts modulo 2^16 and librdmacm sends it with its carry.
            (4, n) => Self::Credits(n as u16),
            (6, n) => Self::Iomap(n as u16),
            (7, 0) => Self::Disconnect,
            (7, 1) => Self::KeepAlive,
            (7, 2) => Self::Shutdown,
            _ => Self::Unknown(word),
        }
    }
}

fn order(swap: bool, addr: u64, key: u32, length: u32) -> (u64, u32, u32) {
    if swap {
        (addr.swap_bytes(), key.swap_bytes(), length.swap_bytes())
    } else {
        (addr, key, length)
    }
}

fn sub<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..at + N].try_into().expect("within a structure of fixed size")
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*sub(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*sub(bytes, at))
}

#[cfg(test)]
mod tests;
