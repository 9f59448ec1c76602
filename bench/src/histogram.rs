//! Latencies in buckets: 32 to each power of two, so a quantile is right to about 3 %, at a fixed
//! 15 KB.

const SUB_BITS: u32 = 5;
const SUBS: usize = 1 << SUB_BITS;

pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum_ns: u128,
    max_ns: u64,
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram { buckets: vec![0; index(u64::MAX) + 1], count: 0, sum_ns: 0, max_ns: 0 }
    }

    pub fn record(&mut self, ns: u64) {
        self.buckets[index(ns)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_ns as f64 / self.count as f64 }
    }

    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The value below which `share` (0 to 1) of the records lie: the middle of its bucket.
    pub fn quantile_ns(&self, share: f64) -> f64 {
        let wanted = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return middle(bucket).min(self.max_ns as f64);
            }
        }
        0.0
    }
}

/// Values below 32 have a bucket each; above, the leading bit chooses the power and the next five
/// bits the bucket.
fn index(ns: u64) -> usize {
    let power = ns.checked_ilog2().unwrap_or(0).saturating_sub(SUB_BITS);
    (power as usize) * SUBS + (ns >> power) as usize
}

fn middle(bucket: usize) -> f64 {
    if bucket < 2 * SUBS {
        return bucket as f64;
    }
    let power = bucket / SUBS - 1;
    let lowest = ((bucket % SUBS + SUBS) as f64) * 2f64.powi(power as i32);
    lowest + 2f64.powi(power as i32 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_close() {
        let mut last = 0;
        for ns in (0..2_000).chain((1..40).map(|power| 3 << power)) {
            let bucket = index(ns);
            assert!(bucket >= last || ns < 2_000, "{ns}");
            last = bucket;
            assert!(
                (middle(bucket) - ns as f64).abs() <= ns as f64 * 0.035 + 0.5,
                "{ns} is far from {}",
                middle(bucket)
            );
        }
        assert!(index(u64::MAX) < 2_048);
    }

    #[test]
    fn quantiles_of_a_known_spread() {
        let mut histogram = Histogram::new();
        (1..=10_000).for_each(|ns| histogram.record(ns));
        assert!((histogram.quantile_ns(0.5) - 5_000.0).abs() < 170.0);
        assert!((histogram.quantile_ns(0.99) - 9_900.0).abs() < 330.0);
        assert_eq!(histogram.max_ns(), 10_000);
        assert!((histogram.mean_ns() - 5_000.5).abs() < 0.01);
    }
}
