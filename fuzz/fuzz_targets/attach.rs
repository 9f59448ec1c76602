#![no_main]

#[path = "../bodies/attach.rs"]
#[allow(dead_code)]
mod attach;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| attach::attach(bytes));
