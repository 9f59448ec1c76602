//! Durations in buckets of equal ratio: eight to each doubling, from a nanosecond to centuries.

/// Number of buckets.
pub const BUCKETS: usize = 512;

/// The bucket of a value.
#[inline]
pub fn bucket(value: u64) -> usize {
    if value < 8 {
        return value as usize;
    }
    let power = value.ilog2() as usize;
    (power - 2) * 8 + (value >> (power - 3)) as usize % 8
}

/// The smallest value of a bucket.
pub fn lower_bound(bucket: usize) -> u64 {
    match bucket {
        0..8 => bucket as u64,
        _ => (8 + bucket as u64 % 8) << (bucket / 8 - 1).min(60),
    }
}

/// How often each bucket was hit.
#[derive(Clone)]
pub struct Histogram(Box<[u64; BUCKETS]>);

impl Default for Histogram {
    fn default() -> Self {
        Self(Box::new([0; BUCKETS]))
    }
}

impl Histogram {
    /// From the number of values in each [`bucket`].
    pub fn from_counts(counts: [u64; BUCKETS]) -> Self {
        Self(Box::new(counts))
    }

    /// The number of values in each [`bucket`].
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.0
    }

    /// Adds a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.0[bucket(value)] += 1;
    }

    /// Number of values.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// A value that the share `part` (0 to 1) of all values does not exceed, rounded up to the end
    /// of its bucket; None without values.
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let total = self.total();
        let wanted = ((total as f64 * part).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let place = self.0.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(lower_bound(place + 1).saturating_sub(1).max(lower_bound(place)))
    }

    /// What was added since an earlier state of the same histogram.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        for (now, then) in difference.0.iter_mut().zip(earlier.0.iter()) {
            *now = now.saturating_sub(*then);
        }
        difference
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_are_an_eighth_wide() {
        for (value, expected) in
            [(0, 0), (7, 7), (8, 8), (15, 15), (16, 16), (17, 16), (18, 17), (1000, 63)]
        {
            assert_eq!(bucket(value), expected, "{value}");
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_of_a_known_set() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        (0..8).for_each(|value| histogram.record(value));
        assert_eq!(histogram.quantile(0.5), Some(3));
        assert_eq!(histogram.quantile(1.0), Some(7));
        assert_eq!(histogram.quantile(0.0), Some(0));
    }

    proptest! {
        #[test]
        fn a_value_lies_in_its_bucket(value: u64) {
            let place = bucket(value);
            prop_assert!(lower_bound(place) <= value);
            prop_assert!(place >= bucket(u64::MAX) || value < lower_bound(place + 1));
        }
    }
}
