//! Functions to be called at a time, between two breaths.

use std::collections::BinaryHeap;
use std::time::Duration;

/// Names a timer, to cancel it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerId(u64);

/// What is due when. Times are nanoseconds of CLOCK_MONOTONIC.
#[derive(Default)]
pub struct Timers {
    heap: BinaryHeap<Timer>,
    created: u64,
}

struct Timer {
    at: u64,
    id: u64,
    every: Option<u64>,
    call: Box<dyn FnMut()>,
}

impl Timers {
    /// Calls `call` once, `after` from `now` on.
    pub fn once(&mut self, now: u64, after: Duration, call: impl FnMut() + 'static) -> TimerId {
        self.add(now + after.as_nanos() as u64, None, Box::new(call))
    }

    /// Calls `call` again and again. A call that comes late does not make the next ones come
    /// sooner.
    pub fn every(&mut self, now: u64, period: Duration, call: impl FnMut() + 'static) -> TimerId {
        let period = (period.as_nanos() as u64).max(1);
        self.add(now + period, Some(period), Box::new(call))
    }

    /// The function is not called any more; nothing happens if the timer is gone.
    pub fn cancel(&mut self, timer: TimerId) {
        self.heap.retain(|other| other.id != timer.0);
    }

    fn add(&mut self, at: u64, every: Option<u64>, call: Box<dyn FnMut()>) -> TimerId {
        self.created += 1;
        self.heap.push(Timer { at, id: self.created, every, call });
        TimerId(self.created)
    }

    /// Calls what is due.
    pub(crate) fn run(&mut self, now: u64) {
        while self.heap.peek().is_some_and(|timer| timer.at <= now) {
            let Some(mut timer) = self.heap.pop() else { break };
            (timer.call)();
            if let Some(period) = timer.every {
                let next = timer.at + period;
                timer.at = if next >= now { next } else { now + period };
                self.heap.push(timer);
            }
        }
    }
}

impl Ord for Timer {
    /// The heap gives the greatest first: the earliest, and of several the one made first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.id).cmp(&(self.at, self.id))
    }
}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timer {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn timers_fire_in_order_and_repeat() {
        let calls = Rc::new(RefCell::new(Vec::new()));
        let call = |name: &'static str| {
            let calls = calls.clone();
            move || calls.borrow_mut().push(name)
        };
        let mut timers = Timers::default();
        let nanos = Duration::from_nanos;
        timers.every(0, nanos(10), call("every"));
        timers.once(0, nanos(15), call("once"));
        let cancelled = timers.once(0, nanos(16), call("cancelled"));
        timers.run(9);
        assert!(calls.borrow().is_empty());
        timers.cancel(cancelled);
        timers.run(20);
        assert_eq!(calls.take(), ["every", "once", "every"]);
        // Ten periods late: one call, not ten.
        timers.run(120);
        assert_eq!(calls.take(), ["every"]);
        timers.run(129);
        assert!(calls.borrow().is_empty());
        timers.run(130);
        assert_eq!(calls.take(), ["every"]);
    }
}
