//! Other work on the machine: threads that compute and never wait.

use crate::args::Busy;
use crate::failure::Result;

/// Prints one line when all have begun, then runs until ended.
pub fn run(args: &Busy) -> Result<()> {
    for _ in 0..args.threads {
        std::thread::spawn(|| {
            let mut number = 1u64;
            loop {
                number = std::hint::black_box(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            }
        });
    }
    println!("{} threads", args.threads);
    loop {
        std::thread::park();
    }
}
