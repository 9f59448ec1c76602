//! The search for the highest rate that passes.

/// Between a rate that passed, or zero, and one that did not.
pub struct Search {
    passed: f64,
    failed: f64,
    /// Where to stop.
    width: f64,
}

impl Search {
    /// `failed` is a rate that did not pass; `precision` a share of it.
    pub fn new(failed: f64, precision: f64) -> Self {
        Self { passed: 0.0, failed, width: failed * precision }
    }

    /// The rate to try next.
    pub fn next(&self) -> Option<f64> {
        (self.failed - self.passed > self.width).then_some((self.failed + self.passed) / 2.0)
    }

    pub fn tell(&mut self, passed: bool) {
        let middle = (self.failed + self.passed) / 2.0;
        *(if passed { &mut self.passed } else { &mut self.failed }) = middle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_as_near_as_asked() {
        for limit in [0.0, 1.0, 333.3, 999.0] {
            let mut search = Search::new(1000.0, 0.01);
            let mut best = 0.0;
            while let Some(rate) = search.next() {
                if rate <= limit {
                    best = rate;
                }
                search.tell(rate <= limit);
            }
            assert!(best <= limit && limit - best <= 10.0, "{best} for {limit}");
        }
    }
}
