#![no_main]

#[path = "../bodies/rsocket.rs"]
#[allow(dead_code)]
mod rsocket;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rsocket::stream(bytes));
