//! The one word that is written to tables of other processes (`devices --remove`, `off`, `on`), and
//! what else of theirs is touched to make them look at it.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, PermissionsExt};

use anyhow::Result;
use connections::{Program, Table, snapshot};
use smc::table::{DRAIN, Header, OFF, mode_of};

/// What the word may say: the rest of it stands in memory that the programs themselves can write.
const KNOWN: u32 = OFF | DRAIN | 0b1_1110;

/// Tells the programs of a table what was taken away from them.
pub fn tell(table: &Table, word: u32) -> Result<()> {
    let word = word & KNOWN;
    let file = match table.open_to_write() {
        Err(error) if error.kind() == ErrorKind::NotFound => match found_again(table) {
            Some(table) => table.open_to_write()?,
            // They have ended meanwhile.
            None => return Ok(()),
        },
        opened => opened?,
    };
    // First what shows that it was not one of the programs that wrote the word.
    file.set_permissions(Permissions::from_mode(mode_of(word)))?;
    Ok(file.write_all_at(&word.to_ne_bytes(), offset_of!(Header, removed) as u64)?)
}

/// The same table as it is now: its library moves the file to another number when the program wants
/// that one.
fn found_again(table: &Table) -> Option<Table> {
    let same = |now: &Table| {
        now.identity == table.identity && now.programs.iter().any(|p| table.programs.contains(p))
    };
    snapshot(|_| true).tables.into_iter().find(same)
}

pub fn named(program: &Program) -> String {
    format!("{} ({})", program.name, program.pid)
}

/// The programs of a table, in words.
pub fn names(table: &Table) -> String {
    table.programs.iter().map(named).collect::<Vec<_>>().join(", ")
}
