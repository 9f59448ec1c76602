#![no_main]

#[path = "../bodies/memif.rs"]
mod memif;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memif::peer(bytes);
});
