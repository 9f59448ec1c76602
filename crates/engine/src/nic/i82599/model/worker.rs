//! The thread that works for models with `thread`, as a card works beside the processor.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::Wire;

static WIRES: Mutex<Vec<Weak<Wire>>> = Mutex::new(Vec::new());

/// Looks that find nothing before the thread lets others run, and before it sleeps a little.
const PATIENCE: u32 = 1000;

/// Lets the thread work for this wire, too, until its last user drops it.
pub(super) fn add(wire: &Arc<Wire>) {
    let mut wires = WIRES.lock().unwrap_or_else(PoisonError::into_inner);
    let runs = !wires.is_empty();
    wires.push(Arc::downgrade(wire));
    if !runs {
        std::thread::spawn(work);
    }
}

/// The thread's life: until there is no wire.
fn work() {
    let mut idle = 0_u32;
    loop {
        let mut wires = WIRES.lock().unwrap_or_else(PoisonError::into_inner);
        wires.retain(|wire| wire.strong_count() > 0);
        if wires.is_empty() {
            return;
        }
        let now: Vec<Weak<Wire>> = wires.clone();
        drop(wires);
        for _ in 0..PATIENCE {
            let moved = now.iter().filter_map(Weak::upgrade).filter(|wire| wire.poll()).count();
            idle = if moved > 0 { 0 } else { idle.saturating_add(1) };
            if idle > PATIENCE {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }
}
