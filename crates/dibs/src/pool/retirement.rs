//! Addresses of memory that has ended. They stay readable, as zeros, for threads that are still on
//! their way out of it.

use crate::pool::table::Table;
use shm::{Retired, Segment};

/// Addresses are used again only when so many others have come since: time enough for a thread that
/// is late.
const GRACE: u64 = 32;

/// The last ones, up to a number.
pub struct Retirement {
    cap: usize,
    /// With the time at which each came, in additions.
    places: Table<(u64, Retired)>,
    additions: u64,
}

impl Retirement {
    /// Of honest peers there are few sizes of memory and few such addresses; beyond `cap` the
    /// oldest are unmapped, or a peer that comes with another size each time would use up what the
    /// process can map.
    pub const fn new(cap: usize) -> Self {
        Self { cap, places: Table::new(cap), additions: 0 }
    }

    pub fn add(&mut self, place: Retired) {
        self.additions += 1;
        let oldest = self.additions.saturating_sub(self.cap as u64);
        self.places.take_if(|(at, _)| *at <= oldest, |(_, place)| place.unmap());
        // Without memory for the note the addresses are lost, and nothing else.
        let _ = self.places.insert((self.additions, place));
    }

    /// Lets a fresh segment take addresses of the same length that came long ago.
    pub fn settle(&mut self, segment: &mut Segment) {
        let (now, len) = (self.additions, segment.len());
        let fits = |(at, place): &(u64, Retired)| place.len() == len && now - at > GRACE;
        let Some(oldest) =
            self.places.iter_mut().map(|(_, e)| e).filter(|e| fits(e)).map(|e| e.0).min()
        else {
            return;
        };
        self.places.take_if(|(at, _)| *at == oldest, |(_, place)| segment.settle_on(place));
    }
}
