//! What commands print with `--json`: one object that says by which rules it is to be read.
//!
//! `ss`, `top`, `stats` and `gain` have numbers of their own, which doc/seeing.md documents.

use anyhow::Result;
use serde::Serialize;

/// What has a name keeps it, and its meaning, as long as this number stays; new names may come.
pub const VERSION: u32 = 1;

#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    object: &'a T,
}

/// Prints an object, with its `version`.
pub fn print(object: &impl Serialize) -> Result<()> {
    Ok(terminal::outln!("{}", text(object)?)?)
}

fn text(object: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&Versioned { version: VERSION, object })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_stands_beside_the_fields() {
        #[derive(Serialize)]
        struct Row {
            bytes: u64,
        }
        let value = serde_json::json!({ "version": 1, "bytes": u64::MAX });
        for text in
            [text(&Row { bytes: u64::MAX }), text(&serde_json::json!({ "bytes": u64::MAX }))]
        {
            let read: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
            assert_eq!(read, value);
        }
    }
}
