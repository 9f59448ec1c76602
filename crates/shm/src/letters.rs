//! A conversation in turns: letters in a place that both sides map, each announced by one word.
//!
//! A side writes in its own box only, and again only when its last letter was answered, so that one
//! box holds one letter. `session | length | letters so far | flags` in the word says which
//! conversation it is: boxes serve one after the other.

use crate::sync::{AtomicU64, Ordering};

/// In the word: nothing follows.
const CLOSED: u64 = 1;
/// In the word: something comes with this letter by another way.
const MARKED: u64 = 2;
const COUNT: u32 = 8;
const LENGTH: u32 = 16;
const SESSION: u32 = 32;

/// What the other side's box has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// No further letter yet.
    Nothing,
    /// A letter of so many bytes, and whether something comes with it. How many is what the other
    /// side says.
    Letter {
        /// Bytes in the other side's box, by its own word: unchecked.
        len: usize,
        /// Something comes with this letter by another way.
        marked: bool,
    },
    /// Nor will there be one.
    Closed,
}

/// One side of a conversation.
#[derive(Clone, Copy, Default, Debug)]
pub struct Letters {
    session: u32,
    heard: u8,
    /// As stored last.
    said: u64,
}

impl Letters {
    /// The side that begins, in a session that was never in these boxes.
    pub const fn begin(session: u32) -> Self {
        Self { session, heard: 0, said: (session as u64) << SESSION }
    }

    /// The side that finds the first letter of a session in a box, with its length.
    pub fn find(inbox: &AtomicU64) -> Option<(Self, usize)> {
        // SYNC: letters.
        let word = inbox.load(Ordering::Acquire);
        let first = word as u8 == 0 && (word >> COUNT) as u8 == 1;
        let session = (word >> SESSION) as u32;
        first.then(|| (Self { heard: 1, ..Self::begin(session) }, (word >> LENGTH) as u16 as usize))
    }

    /// The number that this conversation has in the words of both boxes.
    pub fn session(&self) -> u32 {
        self.session
    }

    /// Announces a letter whose bytes are in the own box.
    pub fn say(&mut self, outbox: &AtomicU64, len: usize, marked: bool) {
        let count = (self.said >> COUNT) as u8;
        self.said = u64::from(self.session) << SESSION
            | (len as u64 & 0xffff) << LENGTH
            | u64::from(count.wrapping_add(1)) << COUNT
            | if marked { MARKED } else { 0 };
        // SYNC: letters. The bytes come first.
        outbox.store(self.said, Ordering::Release);
    }

    /// Ends the conversation. What was said before can still be read.
    pub fn close(&mut self, outbox: &AtomicU64) {
        self.said |= CLOSED;
        // SYNC: letters.
        outbox.store(self.said, Ordering::Release);
    }

    /// What there is to read.
    pub fn look(&self, inbox: &AtomicU64) -> Look {
        // SYNC: letters. Whoever sees the word sees the bytes.
        let word = inbox.load(Ordering::Acquire);
        if (word >> SESSION) as u32 != self.session {
            // Until the first letter the box holds an earlier session's last.
            return if self.heard == 0 { Look::Nothing } else { Look::Closed };
        }
        match ((word >> COUNT) as u8).wrapping_sub(self.heard) {
            0 if word & CLOSED == 0 => Look::Nothing,
            1 => Look::Letter { len: (word >> LENGTH) as u16 as usize, marked: word & MARKED != 0 },
            _ => Look::Closed,
        }
    }

    /// Whether the other side, which has said something, has ended this conversation or begun
    /// another: it acts on nothing more that was said here.
    pub fn is_over(&self, inbox: &AtomicU64) -> bool {
        // SYNC: letters. Whoever sees the end sees what the other side did before.
        let word = inbox.load(Ordering::Acquire);
        (word >> SESSION) as u32 != self.session || word & CLOSED != 0
    }

    /// Takes the letter that was looked at: it may be answered.
    pub fn take(&mut self) {
        self.heard = self.heard.wrapping_add(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A_LETTER: Look = Look::Letter { len: 7, marked: false };

    #[test]
    fn turns_are_taken() {
        let (low, high) = (AtomicU64::new(0), AtomicU64::new(0));
        assert!(Letters::find(&low).is_none());
        let mut a = Letters::begin(3);
        assert_eq!(a.look(&high), Look::Nothing);
        a.say(&low, 7, false);
        let (mut b, len) = Letters::find(&low).expect("an invitation");
        assert_eq!((len, b.session(), b.look(&low)), (7, 3, Look::Nothing));
        b.say(&high, 9, true);
        assert_eq!(a.look(&high), Look::Letter { len: 9, marked: true });
        a.take();
        assert_eq!(a.look(&high), Look::Nothing);
        a.say(&low, 7, false);
        a.close(&low);
        assert_eq!(b.look(&low), A_LETTER, "said before the end");
        b.take();
        assert_eq!(b.look(&low), Look::Closed);
        assert!(b.is_over(&low) && !a.is_over(&high), "a has closed, b has not");
        b.close(&high);
        assert!(a.is_over(&high));
        assert!(Letters::find(&low).is_none(), "what was closed invites nobody");
    }

    #[test]
    fn sessions_do_not_mix() {
        let (low, high) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut a = Letters::begin(1);
        a.say(&low, 7, false);
        let (mut b, _) = Letters::find(&low).expect("an invitation");
        a.close(&low);
        let mut a = Letters::begin(2);
        a.say(&low, 7, false);
        b.say(&high, 7, false);
        assert_eq!(a.look(&high), Look::Nothing, "late, in answer to the first");
        assert_eq!(b.look(&low), Look::Closed);
        let (mut b, _) = Letters::find(&low).expect("the second");
        b.say(&high, 7, false);
        assert_eq!(a.look(&high), A_LETTER);
    }

    #[test]
    fn whatever_the_word_is_there_is_an_answer() {
        for said in [
            0,
            u64::MAX,
            5 << SESSION,
            5 << SESSION | 0xff << COUNT,
            5 << SESSION | 0xffff << LENGTH | 2 << COUNT,
        ] {
            let word = AtomicU64::new(said);
            let mut b = Letters { heard: 1, ..Letters::begin(5) };
            if let Look::Letter { len, .. } = b.look(&word) {
                assert!(len <= 0xffff);
                b.take();
            }
            let _ = Letters::find(&word);
        }
    }
}
