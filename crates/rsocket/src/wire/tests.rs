//! Vectors put together by hand from the published structures, as a little-endian librdmacm sends
//! them.

use super::*;
use proptest::prelude::*;

const REQUEST: [u8; 40] = [
    1, 2, 0x01, 0x80, 0, 0, 0, 0, // version 1, IOMAP, 384 credits, no iomaps
    0x00, 0x00, 0x7f, 0x3c, 0x10, 0x00, 0x2b, 0x40, 0x00, 0x00, 0x18, 0x01, 0, 0, 0,
    2, // target SGL, 2 entries
    0x00, 0x00, 0x7f, 0x3c, 0x10, 0x02, 0x00, 0x10, 0x00, 0x00, 0x18, 0x02, 0, 1, 0,
    0, // 64 KiB of buffer
];

#[test]
fn a_request_of_librdmacm() {
    let data = ConnData::decode(&REQUEST).unwrap();
    assert_eq!(
        data,
        ConnData {
            big_endian: false,
            credits: 384,
            iomaps: Some(0),
            target_sgl: Sge { addr: 0x7f3c_1000_2b40, key: 0x1801, length: 2 },
            data_buf: Sge { addr: 0x7f3c_1002_0010, key: 0x1802, length: 0x10000 },
        }
    );
    assert_eq!(data.encode(), REQUEST);
}

#[test]
fn other_versions_and_impossible_tables_are_refused() {
    let mut bytes = REQUEST;
    bytes[0] = 2;
    assert_eq!(ConnData::decode(&bytes), Err(ConnError::Version(2)));
    for (at, value) in [(23, 0), (22, 1), (20, 0x80)] {
        let mut bytes = REQUEST;
        bytes[at] = value;
        assert_eq!(ConnData::decode(&bytes), Err(ConnError::Damaged), "byte {at}");
    }
    let mut bytes = REQUEST;
    bytes[8..16].fill(0xff);
    assert_eq!(ConnData::decode(&bytes), Err(ConnError::Damaged));
}

#[test]
fn immediates_of_librdmacm() {
    for (word, message) in [
        (0x0000_0040, Message::Data(64)),
        (0x8000_0180, Message::Credits(384)),
        (0xc000_0003, Message::Iomap(3)),
        (0xe000_0000, Message::Disconnect),
        (0xe000_0001, Message::KeepAlive),
        (0xe000_0002, Message::Shutdown),
        (0x2000_0001, Message::Unknown(0x2000_0001)),
        (0xe000_0003, Message::Unknown(0xe000_0003)),
    ] {
        assert_eq!((Message::decode(word), message.encode()), (message, word));
    }
    // With the carry that a sum of two 16 bit numbers has.
    assert_eq!(Message::decode(0x8001_0010), Message::Credits(0x10));
}

#[test]
fn entries_in_either_byte_order() {
    let sge = Sge { addr: 0x0102_0304_0506_0708, key: 0x090a_0b0c, length: 0x0d0e_0f10 };
    let big: [u8; 16] = core::array::from_fn(|i| i as u8 + 1);
    assert_eq!(sge.encode(cfg!(target_endian = "little")), big);
    assert_eq!(Sge::decode(&sge.encode(false)), sge);
    let iomap = Iomap { offset: 0x1112_1314_1516_1718, sge };
    assert_eq!(iomap.encode(cfg!(target_endian = "little"))[..8], [17, 18, 19, 20, 21, 22, 23, 24]);
    assert_eq!(Iomap::decode(&iomap.encode(false)), iomap);
}

#[test]
fn iomap_counts_as_in_librdmacm() {
    for (n, back) in
        [(0, 0), (1, 1), (128, 128), (129, 128), (256, 256), (1000, 768), (0x7fff, 0x7f00)]
    {
        assert_eq!(from_scale(to_scale(n)), back, "{n}");
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in prop::array::uniform(any::<u8>())) {
        if let Ok(data) = ConnData::decode(&bytes) {
            prop_assert_eq!(ConnData::decode(&data.encode()), Ok(data));
        }
    }

    #[test]
    fn any_immediate_survives(word: u32) {
        let message = Message::decode(word);
        prop_assert_eq!(Message::decode(message.encode()), message);
    }
}
