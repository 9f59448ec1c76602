//! Interpreters that cannot start.
#![cfg(feature = "lua")]

use engine::lua::{Session, Settings};

/// Whatever step there is no memory for: it says so, and nothing is used that was given back.
#[test]
fn too_little_memory_to_start_is_an_error() {
    let starts = |memory| Session::new(Settings { memory: Some(memory), ..Settings::default() });
    assert!(starts(1 << 10).is_err());
    let tries: Vec<bool> = (0..64).map(|step| starts(step * (64 << 10)).is_ok()).collect();
    assert!(tries.contains(&false) && tries.contains(&true), "{tries:?}");
}
