#![no_main]

#[path = "../bodies/checksum.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    bodies::kernels(bytes);
    bodies::packet(bytes);
});
