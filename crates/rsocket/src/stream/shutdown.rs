//! The end of a stream: half or whole, with what was sent before it still arriving.
#![allow(unsafe_code)]

use super::{Stream, state};
use crate::provider::{Endpoint, PostError};
use crate::wire::Message;
use core::sync::atomic::Ordering;
use shm::Errno;
use std::time::{Duration, Instant};

/// How long an end waits for a peer that does not take what was sent. Never longer: data that the
/// provider has taken over arrives without us, and a peer that stands still must not keep `rclose`
/// from returning.
const LINGER: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// What [`Stream::shutdown`] ends, as in `shutdown`(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Our receives (SHUT_RD); the peer is not told.
    Read,
    /// Our sends (SHUT_WR): the peer reads to the end of what was sent.
    Write,
    /// Both (SHUT_RDWR), and with them the connection.
    Both,
}

impl<E: Endpoint> Stream<E> {
    /// Ends the sending or receiving half, or both.
    pub fn shutdown(&self, how: How) -> Result<(), Errno> {
        let down = match how {
            How::Read => state::READABLE,
            How::Write => state::WRITABLE,
            How::Both => state::READABLE | state::WRITABLE,
        };
        let before = self.state.fetch_and(!down, Ordering::AcqRel);
        if before & state::CONNECTED != 0 {
            let left = before & !down;
            let message = match how {
                How::Read if left & state::WRITABLE != 0 => None,
                How::Write if left & state::READABLE != 0 => Some(Message::Shutdown),
                _ => Some(Message::Disconnect),
            };
            if let Some(message) = message {
                self.say(message);
            }
            self.linger(Self::all_sent);
            if message == Some(Message::Disconnect) {
                self.end();
            }
        }
        if !self.is(state::CONNECTED) {
            // Wakes the peer, and who sleeps here.
            self.endpoint.disconnect();
        }
        let _ = self.progress.with(|| self.progress.rouse());
        Ok(())
    }

    /// Posts `message` behind all that was sent. Whoever sends at the moment stops, since the
    /// stream is no longer writable; whoever sleeps in a send does not post.
    fn say(&self, message: Message) {
        let post = || match self.send.lock.try_lock() {
            // SAFETY: `slock` is held, and `linger` holds the lock of the completion queue.
            Some(_held) => unsafe { self.post_message(message) },
            // SAFETY: its owner sleeps, and needs the lock of the completion queue to go on.
            None if self.send.waiting.load(Ordering::Relaxed) => unsafe {
                self.post_message(message)
            },
            None => Err(PostError::Full),
        };
        self.linger(|_| post() != Err(PostError::Full));
    }

    /// Processes completions until `done`, which is called under the lock of the completion queue;
    /// within [`LINGER`], and not without a peer.
    fn linger(&self, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while start.elapsed() < LINGER {
            let over = self.progress.with(|| {
                self.process();
                done(self) || !self.is(state::CONNECTED)
            });
            if over != Ok(false) {
                return;
            }
            std::thread::sleep(PAUSE);
            self.endpoint.probe();
        }
    }

    /// Waits until no call is inside any more: for who takes the stream apart, after
    /// [`Self::shutdown`].
    pub fn quiesce(&self) {
        let start = Instant::now();
        // A receive that takes its lock behind the look below finds this, and does not read memory that
        // is about to be given back.
        self.recv.closed.store(true, Ordering::Relaxed);
        loop {
            self.endpoint.disconnect();
            let _ = self.progress.with(|| self.progress.rouse());
            let idle = [&self.send.lock, &self.recv.lock, &self.maps.lock]
                .iter()
                // This call may be a signal handler's, which interrupted one that is inside.
                .all(|lock| lock.is_mine() || lock.try_lock().is_some());
            if idle || start.elapsed() > LINGER {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}
