//! Harness of the whole-system tests.
//!
//! Each test runs real programs under `shortwire run` inside [`case`], which gives it a directory,
//! programs with watchdogs, and at the end the proof that nothing was left behind. With
//! `SHORTWIRE_PLAIN=1` the same programs run without the library: what fails then is the test's
//! fault, not the library's.
//!
//! Also from the environment: `SHORTWIRE_BIN`, the command under test (else the release build);
//! `SHORTWIRE_KEEP`, leave the directories of the tests; `SHORTWIRE_TEST_MIB`, what each transfer
//! moves; `SHORTWIRE_TEST_SEED`, other random plans; `SHORTWIRE_TEST_PATIENCE`, how many times longer
//! than usual anything may take; `SHORTWIRE_SOAK`, seconds.

mod case;
pub mod container;
mod deadline;
pub mod device;
pub mod guest;
mod leak;
mod net;
pub mod probe;
mod processor;
pub mod recording;
mod report;
mod run;
mod skip;
mod ss;
pub mod suites;
mod tool;
mod transcript;

pub use case::{Case, case};
pub use deadline::{Deadline, patience};
pub use leak::{family, mapped_memory, open_files, pipes, resident_memory, unix_sockets};
pub use net::{Ports, bytes_received, bytes_sent, expect_silence};
pub use processor::{OneProcessor, processors};
pub use run::{Proc, Side};
pub use skip::{Outcome, Skip, count as count_skip, skip};
pub use ss::{Connection, Watch, connections, upgraded};
pub use tool::{
    compile, compile_conformance, compile_conformance_for, compile_for, compile_pure_go,
    expect_same, need, need_library, plain, prog, python, shared, shortwire,
};
pub use transcript::{Variant, same_transcript};

use std::time::Duration;

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The streams of the C programs (`mix` in progs/common.h), for peers that live in a test.
pub mod stream {
    pub fn mix(x: u64) -> u64 {
        let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8) as u64)
            .flat_map(|word| mix(seed.wrapping_add(word)).to_ne_bytes())
            .take(len)
            .collect()
    }

    /// A generator for test plans: the same numbers in every run, unless SHORTWIRE_TEST_SEED asks
    /// for others.
    pub struct Random(u64);

    impl Random {
        pub fn new(seed: u64) -> Random {
            let other = std::env::var("SHORTWIRE_TEST_SEED").ok().and_then(|v| v.parse().ok());
            Random(seed.wrapping_add(mix(other.unwrap_or(0))))
        }

        pub fn below(&mut self, limit: u64) -> u64 {
            self.0 = mix(self.0);
            self.0 % limit
        }
    }
}
