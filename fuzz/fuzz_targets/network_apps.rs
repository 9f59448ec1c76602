#![no_main]

#[path = "../bodies/network_apps.rs"]
mod network_apps;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    network_apps::frames(bytes);
});
