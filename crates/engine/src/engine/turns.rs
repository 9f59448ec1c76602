//! The turns of a breath: in which order apps are called, and which of them by one call.
//!
//! Turns that are taken together are taken in the same order as else, and what an app may notice is
//! the same: an error ends the turn of one app, and those behind it are taken one by one.

use std::rc::Rc;

use crate::clock::cycles;
use crate::engine::Engine;
use crate::together::{Call, Marks, Outcome, Together};

/// Turns of one call, at most. What calls them may have a limit of its own (LuaJIT: 60 variables of
/// an outer function), and more of them save nothing.
const MOST: usize = 48;

/// An app's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// Its place in `nodes`.
    pub place: usize,
    /// It pulls, or else pushes.
    pub pulls: bool,
}

/// What a breath does next.
#[derive(Debug, Clone, Copy)]
enum Step {
    One(Turn),
    /// By the place in `chains`.
    Several(usize),
}

/// Turns that one call takes.
struct Chain {
    /// By which numbers who calls knows the turns.
    key: Vec<i64>,
    turns: Vec<Turn>,
    marks: Rc<Marks>,
    call: Rc<dyn Call>,
}

/// What is to be done in a breath.
#[derive(Default)]
pub(super) struct Turns {
    /// One by one.
    turns: Vec<Turn>,
    /// The same, with what can be taken together.
    steps: Vec<Step>,
    chains: Vec<Chain>,
    /// An app of a chain has ended.
    stale: bool,
}

impl Engine {
    /// Puts new turns in the place of those before.
    pub(super) fn set_turns(&mut self, turns: Vec<Turn>) {
        self.turns.turns = turns;
        self.form_chains();
    }

    /// All turns of a breath. `WATCHED` if others look at packets: then each app is looked at
    /// before and after its turn, which is its own.
    #[inline(always)]
    pub(super) fn take_turns<const WATCHED: bool>(&mut self, now: u64, began: u64) {
        let mut before = began;
        if WATCHED {
            for at in 0..self.turns.turns.len() {
                before = self.take::<true>(self.turns.turns[at], now, before);
            }
        } else {
            for at in 0..self.turns.steps.len() {
                before = match self.turns.steps[at] {
                    Step::One(turn) => self.take::<false>(turn, now, before),
                    Step::Several(chain) => self.take_several(chain, now, before),
                };
            }
            if self.turns.stale {
                self.form_chains();
            }
        }
        self.calling = None;
    }

    /// The count of cycles at the end of the turn is what the next one begins with.
    #[inline(always)]
    fn take<const WATCHED: bool>(&mut self, turn: Turn, now: u64, before: u64) -> u64 {
        let Turn { place, pulls } = turn;
        self.calling = Some(place);
        let node = &mut self.nodes[place];
        node.io.now = now;
        if WATCHED && !pulls {
            self.watch.before(place, node);
        }
        match &mut node.app {
            Some(app) if pulls => app.pull(&node.io),
            Some(app) => app.push(&node.io),
            None if pulls => {}
            None => node.discard_inputs(),
        }
        if WATCHED {
            self.watch.after(place, node, self.clock.at(cycles()));
        }
        node.spent(self.options.cycles, before)
    }

    #[inline]
    fn take_several(&mut self, chain: usize, now: u64, before: u64) -> u64 {
        let Chain { turns, marks, call, .. } = &self.turns.chains[chain];
        self.calling = turns.first().map(|turn| turn.place);
        marks.begin(before);
        match call.call() {
            Outcome::Done if self.options.cycles => {
                for (turn, spent) in turns.iter().zip(marks.spent()) {
                    self.nodes[turn.place].cycles += spent;
                }
                marks.last()
            }
            Outcome::Done => before,
            outcome => self.take_rest(chain, outcome, now, before),
        }
    }

    /// Goes on where a call ended early.
    #[cold]
    fn take_rest(&mut self, chain: usize, outcome: Outcome, now: u64, before: u64) -> u64 {
        self.turns.stale = true;
        let Chain { turns, marks, .. } = &self.turns.chains[chain];
        let (turns, marks, mut before) = (turns.clone(), Rc::clone(marks), before);
        let mut rest = &turns[..];
        if let Outcome::Failed(problem) = outcome {
            // An error behind the last turn is its own.
            let ended = marks.ended().min(turns.len() - 1);
            if self.options.cycles {
                for (turn, spent) in turns[..ended].iter().zip(marks.spent()) {
                    self.nodes[turn.place].cycles += spent;
                    before = before.wrapping_add(spent);
                }
            }
            self.calling = Some(turns[ended].place);
            let node = &mut self.nodes[turns[ended].place];
            if let Some(app) = &mut node.app {
                app.turn_failed(problem);
            }
            before = node.spent(self.options.cycles, before);
            rest = &turns[ended + 1..];
        }
        for &turn in rest {
            before = self.take::<false>(turn, now, before);
        }
        before
    }

    /// Finds what can be taken together. Chains that are whole stay, with what was compiled of them.
    fn form_chains(&mut self) {
        let Self { nodes, turns, options, .. } = self;
        turns.stale = false;
        turns.steps.clear();
        let mut old = std::mem::take(&mut turns.chains);
        let mut at = 0;
        while let Some(&first) = turns.turns.get(at) {
            let together = |turn: &Turn| {
                let app = nodes[turn.place].app.as_ref().filter(|_| options.together)?;
                app.together(turn.pulls)
            };
            let chain = together(&first).and_then(|one| {
                let behind = turns.turns[at + 1..].iter().map_while(&together);
                let behind = behind.take_while(|other| other.fits(&one)).take(MOST - 1);
                let key: Vec<i64> =
                    std::iter::once(one.turn).chain(behind.map(|other| other.turn)).collect();
                let taken = &turns.turns[at..at + key.len()];
                (key.len() > 1).then(|| Chain::new(&one, key, taken, &mut old)).flatten()
            });
            match chain {
                Some(chain) => {
                    at += chain.turns.len();
                    turns.steps.push(Step::Several(turns.chains.len()));
                    turns.chains.push(chain);
                }
                None => {
                    at += 1;
                    turns.steps.push(Step::One(first));
                }
            }
        }
    }
}

impl Chain {
    /// One of the old ones if it is the same.
    fn new(one: &Together, key: Vec<i64>, turns: &[Turn], old: &mut Vec<Self>) -> Option<Self> {
        let same = old.iter().position(|chain| chain.key == key && chain.call.is_whole());
        if let Some(same) = same {
            let chain = old.swap_remove(same);
            return Some(Self { turns: turns.to_vec(), ..chain });
        }
        let marks = Rc::new(Marks::new(turns.len()));
        let call = Rc::clone(&one.caller).call_for(&key, &marks)?;
        Some(Self { key, turns: turns.to_vec(), marks, call })
    }
}
