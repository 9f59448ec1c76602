#![no_main]

#[path = "../bodies/capture.rs"]
mod capture;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| capture::read(bytes));
