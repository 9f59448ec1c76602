#![no_main]

#[path = "../bodies/smc_diag.rs"]
mod smc_diag;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| smc_diag::smc_diag(bytes));
