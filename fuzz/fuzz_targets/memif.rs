#![no_main]

#[path = "../bodies/memif.rs"]
mod memif;
#[path = "../bodies/table.rs"]
mod table;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memif::peer(bytes);
});
