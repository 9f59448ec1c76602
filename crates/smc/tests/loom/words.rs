//! Pairs of words that are read in the order in which they were not written.

#[cfg(miri)]
use super::loom;
use super::model;
use loom::sync::Arc;
use loom::thread;
use shm::sync::{AtomicU32, Ordering::*};

/// A peer reads, a send finds the ring full again and lets the time count anew, and another thread
/// looks whether it is over: not by a time that began before the peer has read. As
/// `patience::count_from_now` and `patience_left`.
#[test]
fn time_counts_from_what_was_read_last() {
    model(3, || {
        const EARLIER: u32 = 1;
        const NOW: u32 = 2;
        let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(EARLIER)]);
        let peer = {
            let words = words.clone();
            thread::spawn(move || words[0].store(1, Release))
        };
        let send = {
            let words = words.clone();
            thread::spawn(move || {
                let [there, read, since] = &*words;
                let far = there.load(Relaxed);
                if far != read.load(Relaxed) {
                    since.store(NOW, Relaxed);
                    read.store(far, Release);
                }
            })
        };
        let [there, read, since] = &*words;
        let known = read.load(Acquire);
        let began = since.load(Relaxed);
        if there.load(Relaxed) == known && known == 1 {
            assert_eq!(began, NOW, "the connection would end");
        }
        peer.join().unwrap();
        send.join().unwrap();
    });
}

/// Threads that note ended groups, and threads that take the notes: none is left without a mark. As
/// `verdict.rs`.
#[test]
fn no_verdict_is_left_without_news() {
    struct Notes {
        groups: [AtomicU32; 2],
        news: AtomicU32,
    }
    impl Notes {
        fn note(&self, at: usize) {
            self.groups[at].store(1, Relaxed);
            self.news.swap(1, SeqCst);
        }

        fn take(&self) -> bool {
            if self.news.load(Relaxed) == 0 {
                return false;
            }
            self.news.swap(0, SeqCst);
            let found = self.groups.iter().any(|group| group.swap(0, Relaxed) != 0);
            if found {
                self.news.swap(1, SeqCst);
            }
            found
        }
    }
    model(3, || {
        let notes = Arc::new(Notes {
            groups: [AtomicU32::new(0), AtomicU32::new(0)],
            news: AtomicU32::new(0),
        });
        notes.note(0);
        let takers = [(); 2].map(|()| {
            let notes = notes.clone();
            thread::spawn(move || while notes.take() {})
        });
        notes.note(1);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        while notes.take() {}
        assert!(notes.groups.iter().all(|group| group.load(Relaxed) == 0), "left behind");
    });
}
