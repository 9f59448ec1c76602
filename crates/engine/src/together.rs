//! Turns of several apps that one call takes, such as those of one script.
//!
//! Entering a script takes longer than what an app does in there with a few packets. So the engine
//! enters it once for all turns that follow each other, and what it keeps by app stays by app: who
//! takes the turns says at the end of each that it has ended ([`Marks`]).

use std::cell::Cell;
use std::rc::Rc;

use crate::clock::cycles;

/// Takes turns of several apps in one call.
pub trait Caller {
    /// A call that takes these turns, in their order; None if there can be none. The numbers are
    /// those of [`Together::turn`].
    fn call_for(self: Rc<Self>, turns: &[i64], marks: &Rc<Marks>) -> Option<Rc<dyn Call>>;
}

/// Turns that are taken together.
pub trait Call {
    /// Takes them, and [marks](Marks::mark) the end of each.
    fn call(&self) -> Outcome;

    /// None of the apps has ended since the call was made.
    fn is_whole(&self) -> bool;
}

/// How a call ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All turns were taken.
    Done,
    /// The turn whose end was not marked ended in this error; those behind it were not taken.
    Failed(String),
    /// None was taken, since one of the apps has ended.
    Stale,
}

/// How an app can take its turn together with others.
pub struct Together {
    /// Who takes it.
    pub caller: Rc<dyn Caller>,
    /// By which number they know it.
    pub turn: i64,
}

impl Together {
    /// Whether one call can take both turns.
    pub fn fits(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Rc::as_ptr(&self.caller), Rc::as_ptr(&other.caller))
    }
}

/// Which turns of a call have ended, and how long they took.
pub struct Marks {
    ended: Cell<usize>,
    last: Cell<u64>,
    spent: Box<[Cell<u64>]>,
}

impl Marks {
    /// For a call of so many turns.
    pub fn new(turns: usize) -> Self {
        Self { ended: Cell::new(0), last: Cell::new(0), spent: vec![Cell::new(0); turns].into() }
    }

    /// The first turn begins, or began at this count of [`cycles`].
    #[inline]
    pub fn begin(&self, now: u64) {
        self.ended.set(0);
        self.last.set(now);
    }

    /// A turn has ended.
    #[inline]
    pub fn mark(&self) {
        let now = cycles();
        let ended = self.ended.get();
        if let Some(spent) = self.spent.get(ended) {
            spent.set(now.wrapping_sub(self.last.get()));
            self.ended.set(ended + 1);
        }
        self.last.set(now);
    }

    /// Turns that have ended.
    pub fn ended(&self) -> usize {
        self.ended.get()
    }

    /// When the last of them ended, in [`cycles`].
    pub fn last(&self) -> u64 {
        self.last.get()
    }

    /// The cycles that each of those took that have ended.
    #[inline]
    pub fn spent(&self) -> impl Iterator<Item = u64> {
        self.spent[..self.ended.get()].iter().map(Cell::get)
    }
}
