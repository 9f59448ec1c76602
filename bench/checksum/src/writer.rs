//! A second core that writes to memory past its caches while others measure: the traffic that a
//! network card makes.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::pin;
use crate::random::Random;
#[cfg(target_arch = "x86_64")]
use crate::region::LINE;
use crate::region::Region;

const LENGTH: usize = 256 << 20;
const STEP: usize = 64 << 10;

pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    began: Instant,
    at_begin: u64,
}

#[derive(Default)]
struct Shared {
    /// Only counted and looked at, nothing is published by them, hence Relaxed.
    written: AtomicU64,
    stop: AtomicBool,
}

impl Writer {
    /// Returns once it writes.
    pub fn start(cpu: usize) -> Result<Writer> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("writer".into()).spawn(move || write(cpu, &theirs))?;
        while shared.written.load(Relaxed) == 0 {
            ensure!(!thread.is_finished(), "no memory for the second core to write to");
            thread::sleep(Duration::from_millis(1));
        }
        let at_begin = shared.written.load(Relaxed);
        Ok(Writer { shared, thread: Some(thread), began: Instant::now(), at_begin })
    }

    /// 10^9 bytes per second since it started.
    pub fn gbps(&self) -> f64 {
        let written = self.shared.written.load(Relaxed) - self.at_begin;
        written as f64 / self.began.elapsed().as_nanos() as f64
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write(cpu: usize, shared: &Shared) {
    pin(cpu);
    let Ok(mut region) = Region::new(LENGTH, &mut Random::new(7)) else { return };
    let mut steps: Vec<&mut [u8]> = region.bytes_mut().chunks_exact_mut(STEP).collect();
    while !shared.stop.load(Relaxed) {
        for step in &mut steps {
            store_past_caches(step);
            shared.written.fetch_add(STEP as u64, Relaxed);
            if shared.stop.load(Relaxed) {
                return;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn store_past_caches(bytes: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_setzero_si128, _mm_sfence, _mm_stream_si128};
    for line in bytes.as_chunks_mut::<LINE>().0 {
        for part in line.as_chunks_mut::<16>().0 {
            // SAFETY: 16 bytes of ours on a boundary of 16, because regions begin on one of 2 MiB;
            // SSE2 is everywhere.
            unsafe { _mm_stream_si128(part.as_mut_ptr().cast::<__m128i>(), _mm_setzero_si128()) };
        }
    }
    // SAFETY: every x86-64 processor has it.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn store_past_caches(bytes: &mut [u8]) {
    bytes.fill(0);
    std::hint::black_box(bytes);
}
