#![no_main]

#[path = "../bodies/sites.rs"]
mod sites;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sites::sites(bytes));
