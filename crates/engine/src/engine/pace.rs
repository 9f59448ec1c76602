//! How long to rest between two breaths.

use std::time::Duration;

/// The rhythm of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Rests when nothing moves: a microsecond longer with each idle breath, half as long after a
    /// busy one.
    Adaptive {
        /// No rest is longer.
        longest: Duration,
    },
    /// Never rests.
    Busy,
    /// So many breaths per second.
    Hertz(f64),
}

impl Default for Pace {
    fn default() -> Self {
        Self::Adaptive { longest: Duration::from_micros(100) }
    }
}

/// What a [`Pace`] remembers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pacer {
    /// Microseconds of the next rest.
    rest: u64,
    /// When the next breath is due, in nanoseconds.
    due: u64,
}

impl Pacer {
    /// How long to sleep after a breath that ended at `now` and moved packets or not.
    #[inline]
    pub fn after(&mut self, pace: Pace, now: u64, moved: bool) -> Duration {
        match pace {
            Pace::Busy => Duration::ZERO,
            Pace::Adaptive { longest } => {
                self.rest = if moved { self.rest / 2 } else { self.rest + 1 }
                    .min(longest.as_micros() as u64);
                if moved { Duration::ZERO } else { Duration::from_micros(self.rest) }
            }
            Pace::Hertz(rate) => {
                let period = (1e9 / rate.clamp(1e-3, 1e9)) as u64;
                // A breath that came late moves the rhythm; it is not followed by a burst.
                self.due = (self.due + period).max(now);
                Duration::from_nanos((self.due - now).min(period))
            }
        }
    }

    /// The present rest, in microseconds.
    pub fn rest(&self) -> u64 {
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_grows_when_idle_and_halves_when_busy() {
        let (mut pacer, pace) = (Pacer::default(), Pace::default());
        let rests: Vec<u64> =
            (0..3).map(|_| pacer.after(pace, 0, false).as_micros() as u64).collect();
        assert_eq!(rests, [1, 2, 3]);
        for _ in 0..200 {
            pacer.after(pace, 0, false);
        }
        assert_eq!(pacer.rest(), 100);
        assert_eq!((pacer.after(pace, 0, true), pacer.rest()), (Duration::ZERO, 50));
    }

    #[test]
    fn a_rhythm_is_kept_and_not_made_up_for() {
        let (mut pacer, pace) = (Pacer::default(), Pace::Hertz(1000.0));
        assert_eq!(pacer.after(pace, 5_000_000, true), Duration::ZERO);
        assert_eq!(pacer.after(pace, 5_200_000, true), Duration::from_micros(800));
        assert_eq!(pacer.after(pace, 9_000_000, true), Duration::ZERO);
        assert_eq!(pacer.after(pace, 9_000_000, true), Duration::from_millis(1));
    }
}
