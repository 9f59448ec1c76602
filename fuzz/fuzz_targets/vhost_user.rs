#![no_main]

#[path = "../bodies/vhost_user.rs"]
mod vhost_user;
#[path = "../bodies/table.rs"]
mod table;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    vhost_user::front_end(bytes);
});
