#![no_main]

#[path = "../bodies/bar.rs"]
#[allow(dead_code)]
mod bar;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bar::bar(bytes));
