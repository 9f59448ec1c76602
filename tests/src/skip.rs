//! A test that cannot run here says so on the real standard error, which the test runner does not
//! capture, and is counted.
#![allow(unsafe_code)]

use std::io::Write;
use std::sync::Mutex;

pub type Outcome = Result<(), Skip>;

/// Why a test cannot run here.
#[derive(Debug)]
pub struct Skip(pub String);

static SKIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub fn skip<T>(why: impl Into<String>) -> Result<T, Skip> {
    Err(Skip(why.into()))
}

/// Says and counts what was skipped: a test, or a part of one that goes on without it.
pub fn count(test: &str, Skip(why): &Skip) {
    let mut skipped = SKIPPED.lock().unwrap_or_else(|e| e.into_inner());
    if skipped.is_empty() {
        // SAFETY: `total` is a C function without arguments that lives as long as the program.
        unsafe { libc::atexit(total) };
    }
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
    skipped.push(test.to_string());
}

extern "C" fn total() {
    let skipped = SKIPPED.lock().unwrap_or_else(|e| e.into_inner());
    let _ = writeln!(std::io::stderr(), "{} skipped: {}", skipped.len(), skipped.join(", "));
}
