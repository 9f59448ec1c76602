#![no_main]

#[path = "../bodies/peer.rs"]
#[allow(dead_code)]
mod peer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| peer::control_page(bytes));
