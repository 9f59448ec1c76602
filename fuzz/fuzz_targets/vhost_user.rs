#![no_main]

#[path = "../bodies/vhost_user.rs"]
mod vhost_user;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    vhost_user::front_end(bytes);
});
