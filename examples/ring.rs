//! Bytes through a ring in shared memory, from one thread to another. Two processes do the same:
//! one passes the segment's descriptor, the other opens it with `Segment::open`.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use shm::{Cursor, Ring, Segment};

const SIZE: u32 = 16;
const TEXT: &[u8] = b"more bytes than the ring has room for";

fn main() {
    let segment = Segment::create(c"example", shm::segment::PAGE).expect("shared memory");
    // SAFETY: the segment has more bytes, and outlives both threads.
    let ring = unsafe { Ring::new(segment.base(), SIZE) };
    // What each side tells the other: how far it has come.
    let (written, read) = (AtomicU64::new(0), AtomicU64::new(0));

    std::thread::scope(|threads| {
        threads.spawn(|| {
            let (mut at, mut reader) = (Cursor::ZERO, Cursor::ZERO);
            for byte in TEXT {
                while at.pos - reader.pos == u64::from(SIZE) {
                    let outstanding = (at.pos - reader.pos) as u32;
                    reader
                        .follow(read.load(Ordering::Acquire), SIZE, outstanding)
                        .expect("an honest reader");
                }
                // SAFETY: one byte, of which the ring has room for.
                unsafe { ring.write(&at, byte, 1) };
                at.advance(1, SIZE);
                written.store(at.wire(), Ordering::Release);
            }
        });

        let (mut at, mut writer, mut text) = (Cursor::ZERO, Cursor::ZERO, Vec::new());
        while text.len() < TEXT.len() {
            let room = SIZE - (writer.pos - at.pos) as u32;
            writer.follow(written.load(Ordering::Acquire), SIZE, room).expect("an honest writer");
            let mut piece = vec![0; (writer.pos - at.pos) as usize];
            // SAFETY: the writer has written so many bytes, and waits until they are read.
            unsafe { ring.read(&at, piece.as_mut_ptr(), piece.len() as u32) };
            at.advance(piece.len() as u32, SIZE);
            read.store(at.wire(), Ordering::Release);
            text.extend(piece);
        }
        println!("{}", String::from_utf8_lossy(&text));
    });
}
