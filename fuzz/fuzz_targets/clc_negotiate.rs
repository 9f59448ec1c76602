#![no_main]

#[path = "../bodies/clc.rs"]
#[allow(dead_code)]
mod clc;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| clc::negotiate(bytes));
