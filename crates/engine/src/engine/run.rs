//! Breathing until something ends it.

use std::time::{Duration, Instant};

use crate::clock::cycles;
use crate::engine::Engine;
use crate::pool;

/// What ends a run, beside a request through [`Engine::stopper`].
#[derive(Default)]
pub struct Until<'a> {
    /// After so long.
    pub duration: Option<Duration>,
    /// When this says so; asked at each tick and after each breath that moved nothing, and whenever
    /// [`Threads`](crate::Threads) has something for its engine to do.
    pub done: Option<Condition<'a>>,
    /// When no app that pulls has anything more and no packet waits on a link.
    pub finished: bool,
}

/// A question to an engine between two breaths.
pub type Condition<'a> = Box<dyn FnMut(&Engine) -> bool + 'a>;

/// What ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// [`Until::duration`] was over.
    Duration,
    /// [`Until::done`] said so.
    Done,
    /// As [`Until::finished`] asks: no source has more, and no packet waits.
    Finished,
    /// [`Engine::stopper`] was used.
    Stopped,
}

/// Longest sleep, so that a request to stop is heard at any pace.
const NAP: Duration = Duration::from_millis(50);

impl Engine {
    /// Breathes at the pace of the options.
    pub fn run(&mut self, mut until: Until) -> Ended {
        let end = until.duration.map(|duration| self.now() + duration.as_nanos() as u64);
        let mut before = self.activity();
        let mut tick = self.next_tick;
        let ended = loop {
            if let Some(ended) = self.rest(&mut until) {
                break ended;
            }
            self.breathe();
            let now = self.clock.at(cycles());
            if self.stop.requested() {
                break Ended::Stopped;
            }
            if end.is_some_and(|end| now >= end) {
                break Ended::Duration;
            }
            let after = self.activity();
            let idle = std::mem::replace(&mut before, after) == after;
            let ticked = std::mem::replace(&mut tick, self.next_tick) != self.next_tick;
            let called = self.call.take();
            if called || idle || ticked {
                if until.finished && self.finished() {
                    break Ended::Finished;
                }
                if until.done.as_mut().is_some_and(|done| done(self)) {
                    if called {
                        self.begin_rest(now, !idle);
                    }
                    break Ended::Done;
                }
            }
            self.begin_rest(now, !idle);
        };
        self.publish();
        ended
    }

    /// Changes whenever a packet was made, freed, or crossed to or from another thread.
    fn activity(&self) -> (u64, i64, u64) {
        let pool = pool::stats();
        (pool.frees, pool.live, self.crossed)
    }

    /// By the clock: the time at which a breath is due stays the same, whoever asks for something meanwhile.
    fn begin_rest(&mut self, now: u64, moved: bool) {
        let rest = self.pacer.after(self.options.pace, now, moved);
        self.rests_until = (!rest.is_zero()).then(|| Instant::now() + rest);
    }

    /// Until the next breath is due, if it is not: what is left of a rest when a run ends in it, is rested at the
    /// beginning of the next one.
    fn rest(&mut self, until: &mut Until) -> Option<Ended> {
        while let Some(end) = self.rests_until
            && !self.stop.requested()
        {
            // Asked without a breath: who asks often would set the rhythm.
            if self.call.take() && until.done.as_mut().is_some_and(|done| done(self)) {
                return Some(Ended::Done);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left.min(NAP));
        }
        self.rests_until = None;
        None
    }
}
