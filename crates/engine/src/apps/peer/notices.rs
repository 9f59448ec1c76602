//! What is told of peers, each of which may come and break a rule as often as it likes.

/// Nanoseconds between two notices.
const QUIET: u64 = 1_000_000_000;

/// The next notice of an app.
#[derive(Debug, Default)]
pub(in crate::apps) struct Notices {
    next: Option<String>,
    /// For what reason something was last told, and when.
    last: Option<(String, u64)>,
}

impl Notices {
    /// Tells it, if it is not for the reason that was told last, or so soon after it. A reason has
    /// no text of the peer's.
    #[cold]
    pub fn tell(&mut self, now: u64, reason: &str, text: impl FnOnce() -> String) {
        if let Some((last, when)) = &self.last
            && (last == reason || now.saturating_sub(*when) < QUIET)
        {
            return;
        }
        self.next = Some(text());
        self.last = Some((reason.to_string(), now));
    }

    /// A peer has kept to the rules: what it does next is worth telling again, some time later.
    pub fn forget(&mut self) {
        if let Some((reason, _)) = &mut self.last {
            reason.clear();
        }
    }

    pub fn take(&mut self) -> Option<String> {
        self.next.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_comes_again_and_again_is_told_of_once() {
        let mut notices = Notices::default();
        let mut told = |now: u64, reason: &str| {
            notices.tell(now, reason, || format!("{reason} at {now}"));
            notices.take()
        };
        assert_eq!(told(5, "one").as_deref(), Some("one at 5"));
        assert!((6..60).all(|second| told(second * QUIET, "one").is_none()));
        assert!(told(60 * QUIET, "two").is_some());
        // One that takes turns is not told of at each turn.
        let turns = (0..1000).filter(|turn| {
            told(61 * QUIET + turn * QUIET / 100, ["one", "two"][*turn as usize % 2]).is_some()
        });
        assert!(turns.count() <= 11);
        notices.forget();
        notices.tell(100 * QUIET, "one", || "again".into());
        assert_eq!(notices.take().as_deref(), Some("again"));
        // Nor is one that is honest for a moment.
        notices.forget();
        notices.tell(100 * QUIET + 1, "one", || "again".into());
        assert_eq!(notices.take(), None);
    }
}
