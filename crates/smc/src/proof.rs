//! What is known of who may hold the other end of a connection that leaves the network namespace,
//! when that is proof enough, and the messages in which the two ends find it out.
//!
//! `meet::prove` asks and answers. What it has learned lies beside what has passed on the
//! connection (`witness.rs`).

use crate::sys;

/// Bits of chance that must have been against it.
const BITS: u32 = 40;
/// Bits more for each answer that is neither right nor impossible.
const STRAY: u32 = 4;
/// How long a send waits for an answer: twice as long as the last time if that was too short, for
/// an end that is busy with what it has received, and for the window to open. And how long all
/// sends of a connection together: at first, and beyond that such a share of the time since
/// somebody was met.
const PATIENCE: u64 = 4_000_000;
const DOUBLINGS: u32 = 2;
const BUDGET: u64 = 15 * PATIENCE;
const SHARE: u64 = 32;
/// Operations that one candidate is given, if they take longer than `AT_LEAST`: a busy end does
/// thousands of them before the other one has its turn.
const LOOKS: u32 = 512;
const AT_LEAST: u64 = 1_000_000_000;
/// Of these times, what one is given that was asked although its port is another; it may be silent
/// `DOUBLINGS` times.
const PATIENCE_FAR: u64 = PATIENCE / 4;
const AT_LEAST_FAR: u64 = AT_LEAST / 16;
/// Messages of one candidate.
const MESSAGES: u32 = 4 * LOOKS;
/// Processes that are asked whether they hold the other end.
const TRIES: usize = 16;
/// Of these processes, how many may be asked whose name is of another port than ours: NAT may have
/// changed it, or they are strangers.
const TRIES_FAR: u32 = 4;

/// State of the search for a connection's other end.
#[derive(Clone, Copy, Default)]
pub(crate) struct Proof {
    /// This end opened the connection.
    pub opener: bool,
    tried: [u32; TRIES],
    tries: usize,
    tries_far: u32,
    /// Nanoseconds that sends have waited.
    pub waited: u64,
    /// When the first candidate was met.
    since: Option<u64>,
    /// Who is asked at present.
    pub now: Candidate,
}

impl Proof {
    /// Whether sends may wait for answers yet.
    pub fn may_wait(&self) -> bool {
        let share = self.since.map_or(0, |since| (sys::now_ns() - since) / SHARE);
        self.waited < BUDGET + share
    }

    /// The chance in the names of those who were asked.
    pub fn tried(&self) -> &[u32] {
        &self.tried[..self.tries]
    }

    /// Whether as many were asked as may be.
    pub fn is_spent(&self) -> bool {
        self.tries == TRIES
    }

    /// Whether one may be asked whose name is of another port.
    pub fn may_try_far(&self) -> bool {
        self.tries_far < TRIES_FAR
    }

    /// The one of this name is not asked again.
    pub fn set_aside(&mut self, chance: u32) {
        if let Some(place) = self.tried.get_mut(self.tries) {
            *place = chance;
            self.tries += 1;
        }
    }

    /// Somebody is there, and is told `ours`.
    pub fn meets(&mut self, candidate: Candidate, ours: Hello) {
        let since = sys::now_ns();
        self.since.get_or_insert(since);
        self.tries_far += u32::from(candidate.far);
        self.now = Candidate { ours, since, ..candidate };
    }

    /// Whether the search goes on however many operations there have been.
    pub fn has_time(&self) -> bool {
        self.since.is_some_and(|since| sys::now_ns() - since < 2 * AT_LEAST)
    }
}

/// What is known of one who is asked.
#[derive(Clone, Copy, Default)]
pub(crate) struct Candidate {
    /// Of its name.
    pub chance: u32,
    /// When it was met.
    since: u64,
    /// Its name is of another port than ours.
    pub far: bool,
    pub ours: Hello,
    pub theirs: Option<Hello>,
    pub same_bytes: bool,
    /// One of the ends is sure.
    pub convinced: bool,
    pub told: bool,
    pub proposed: bool,
    pub failed: bool,
    bits: u32,
    strays: u32,
    /// Our question: its number, and the answer to it.
    pub asked: u32,
    pub answer: Option<u64>,
    /// The last one was not answered: no more are asked before it is.
    pub silent: bool,
    silences: u32,
    /// Their question, to be answered once more than so much has arrived.
    pub due: Option<(u32, u64)>,
    pub yields: u32,
    messages: u32,
}

impl Candidate {
    /// Nothing is known of it but its name.
    pub fn new(chance: u32, far: bool) -> Candidate {
        Candidate { chance, far, ..Candidate::default() }
    }

    /// Counts a message; false when there were too many.
    pub fn may_say_more(&mut self) -> bool {
        self.messages += 1;
        self.messages <= MESSAGES
    }

    /// Whether it has had its time, after so many looks.
    pub fn is_overdue(&self, looks: u32) -> bool {
        let at_least = if self.far { AT_LEAST_FAR } else { AT_LEAST };
        looks > LOOKS && sys::now_ns() - self.since > at_least
    }

    /// How long a send waits for its answer.
    pub fn patience(&self) -> u64 {
        let first = if self.far { PATIENCE_FAR } else { PATIENCE };
        first << self.silences.min(DOUBLINGS)
    }

    /// It has not answered in time.
    pub fn is_silent(&mut self) {
        self.silent = true;
        self.silences += 1;
        self.failed |= self.far && self.silences > DOUBLINGS;
    }

    /// It says that its kernel has come to `at`, after `staked` bytes, one of so many `choices`,
    /// had been sent from `from` on.
    pub fn judge(&mut self, at: u64, from: u64, staked: u64, choices: usize) {
        let end = from + staked;
        if at == end {
            self.bits += choices.ilog2();
        } else if at > from && at < end {
            // Cut on its way, perhaps.
            self.strays += 1;
        } else {
            self.failed = true;
        }
        self.convinced = !self.failed && self.bits >= BITS + STRAY * self.strays;
    }
}

/// How an end introduces itself.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub opener: bool,
    pub nonce: [u64; 2],
    /// First bytes that are known of what was sent, and of what came.
    pub known: [u64; 2],
}

const MAGIC: &[u8; 8] = b"SHORTWP1";
/// Bytes of a message: magic, kind, number, four words.
pub(crate) const LEN: usize = 48;

/// What one end says to the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    Hello(Hello),
    /// Of the first bytes that both know.
    Hash(u64),
    /// How far has the other end's kernel come, once that is beyond `from`?
    Ask {
        number: u32,
        from: u64,
    },
    /// So far.
    Answer {
        number: u32,
        at: u64,
    },
    /// It is the other end.
    Convinced,
    /// Say this number to who calls at the connection's own port (`meet::port`).
    Show(u64),
    /// Nothing that this version knows.
    Unknown,
}

impl Said {
    /// As it is sent.
    pub fn encode(self) -> [u8; LEN] {
        let (kind, number, words) = match self {
            Said::Unknown => (0, 0, [0; 4]),
            Said::Hello(Hello { opener, nonce: [a, b], known: [sent, came] }) => {
                (1u32, opener.into(), [a, b, sent, came])
            }
            Said::Hash(hash) => (2, 0, [hash, 0, 0, 0]),
            Said::Ask { number, from } => (3, number, [from, 0, 0, 0]),
            Said::Answer { number, at } => (4, number, [at, 0, 0, 0]),
            Said::Convinced => (5, 0, [0; 4]),
            Said::Show(number) => (6, 0, [number, 0, 0, 0]),
        };
        let mut out = [0u8; LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&kind.to_be_bytes());
        out[12..16].copy_from_slice(&u32::to_be_bytes(number));
        out[16..]
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(words)
            .for_each(|(to, word)| *to = u64::to_be_bytes(word));
        out
    }

    /// None of what is no such message.
    pub fn decode(raw: &[u8]) -> Option<Said> {
        let raw: &[u8; LEN] = raw.try_into().ok()?;
        let half = |at: usize| u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let [a, b, c, d] =
            core::array::from_fn(|i| u64::from_be_bytes(raw[16..].as_chunks::<8>().0[i]));
        let number = half(12);
        (raw[..8] == *MAGIC).then(|| match half(8) {
            1 => Said::Hello(Hello { opener: number == 1, nonce: [a, b], known: [c, d] }),
            2 => Said::Hash(a),
            3 => Said::Ask { number, from: a },
            4 => Said::Answer { number, at: a },
            5 => Said::Convinced,
            6 => Said::Show(a),
            _ => Said::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICES: usize = 1024;

    fn asked(choices: usize) -> Candidate {
        let mut now = Candidate::default();
        for i in 0.. {
            if now.convinced {
                assert_eq!(i, BITS.div_ceil(choices.ilog2()));
                break;
            }
            now.judge(100 + 7, 100, 7, choices);
        }
        now
    }

    #[test]
    fn right_answers_convince_the_sooner_the_less_likely_they_were() {
        assert!(!asked(CHOICES).failed && !asked(13).failed && !asked(2).failed);
    }

    #[test]
    fn one_wrong_answer_is_enough() {
        for at in [0, 99, 100, 108, u64::MAX] {
            let mut now = asked(CHOICES);
            now.judge(at, 100, 7, CHOICES);
            assert!(now.failed && !now.convinced, "{at}");
        }
    }

    #[test]
    fn an_answer_in_between_costs_bits() {
        let mut now = Candidate::default();
        now.judge(103, 100, 7, CHOICES);
        for _ in 0..4 {
            now.judge(107, 100, 7, CHOICES);
            assert!(!now.convinced && !now.failed);
        }
        now.judge(107, 100, 7, CHOICES);
        assert!(now.convinced);
    }

    #[test]
    fn who_is_far_may_be_silent_less_often() {
        let mut near = Candidate::default();
        let mut far = Candidate { far: true, ..near };
        for n in 0..=DOUBLINGS {
            assert!(!far.failed, "{n}");
            assert_eq!((near.patience(), far.patience()), (PATIENCE << n, PATIENCE_FAR << n));
            near.is_silent();
            far.is_silent();
        }
        assert!(far.failed && !near.failed);
        assert_eq!(near.patience(), PATIENCE << DOUBLINGS);
    }

    #[test]
    fn nobody_is_asked_twice_and_not_more_than_so_many() {
        let mut proof = Proof::default();
        (0..TRIES as u32 + 2).for_each(|chance| proof.set_aside(chance));
        assert!(proof.is_spent());
        assert!(proof.tried().iter().copied().eq(0..TRIES as u32));
    }

    #[test]
    fn messages_are_read_as_they_are_written_and_garbage_is_not() {
        let hello = Hello { opener: true, nonce: [1, u64::MAX], known: [3, 4] };
        let all = [
            Said::Hello(hello),
            Said::Hello(Hello { opener: false, ..hello }),
            Said::Hash(7),
            Said::Ask { number: 8, from: 9 },
            Said::Answer { number: u32::MAX, at: 10 },
            Said::Convinced,
            Said::Show(11),
            Said::Unknown,
        ];
        for said in all {
            assert_eq!(Said::decode(&said.encode()), Some(said));
        }
        assert_eq!(Said::decode(&[0; LEN]), None);
        assert_eq!(Said::decode(MAGIC), None);
        let mut raw = [7u8; LEN];
        raw[..8].copy_from_slice(MAGIC);
        assert_eq!(Said::decode(&raw), Some(Said::Unknown));
    }
}
