//! How many packets may go now.

/// A rate and a number of packets, both of which may be without limit.
#[derive(Debug)]
pub struct Budget {
    per_ns: Option<f64>,
    left: u64,
    /// When the rate began to count, and what was granted since.
    since: Option<u64>,
    granted: f64,
}

/// Time that may be made up for after a stall.
const CATCH_UP: f64 = 2e6;

impl Budget {
    /// `rate` in packets per second.
    pub fn new(rate: Option<f64>, count: Option<u64>) -> Self {
        Self {
            per_ns: rate.map(|rate| rate / 1e9),
            left: count.unwrap_or(u64::MAX),
            since: None,
            granted: 0.0,
        }
    }

    /// Up to `most` packets. They count as sent.
    #[inline]
    pub fn grant(&mut self, now: u64, most: usize) -> usize {
        let mut count = (most as u64).min(self.left);
        if let Some(per_ns) = self.per_ns {
            let since = *self.since.get_or_insert(now);
            let due = now.saturating_sub(since) as f64 * per_ns - self.granted;
            if due > CATCH_UP * per_ns + 256.0 {
                self.granted += due - CATCH_UP * per_ns - 256.0;
            }
            count = count.min(due.max(0.0) as u64);
            self.granted += count as f64;
        }
        self.left -= count;
        count as usize
    }

    /// What was granted but could not be sent.
    #[inline]
    pub fn give_back(&mut self, count: usize) {
        self.left += count as u64;
        self.granted -= count as f64;
    }

    pub fn is_spent(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_limits_all_is_granted() {
        let mut budget = Budget::new(None, None);
        assert_eq!((budget.grant(0, 128), budget.is_spent()), (128, false));
    }

    #[test]
    fn a_count_ends() {
        let mut budget = Budget::new(None, Some(100));
        assert_eq!((budget.grant(0, 64), budget.grant(0, 64), budget.is_spent()), (64, 36, true));
        budget.give_back(1);
        assert!(!budget.is_spent());
    }

    #[test]
    fn a_rate_is_met_exactly_and_stalls_make_no_long_burst() {
        let mut budget = Budget::new(Some(1e6), None);
        assert_eq!(budget.grant(1000, 128), 0);
        let granted: usize = (1..=1000).map(|us| budget.grant(1000 + us * 1000, 128)).sum();
        assert_eq!(granted, 1000);
        let mut burst = 0;
        loop {
            match budget.grant(10_000_000_000, 128) {
                0 => break,
                more => burst += more,
            }
        }
        assert!((2000..2300).contains(&burst), "{burst}");
    }
}
