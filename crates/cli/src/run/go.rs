//! Whether the library can follow a Go program, as it decides itself when the program starts.

use std::fs;
use std::path::Path;

use object::{Object, ObjectSegment, ObjectSymbol, SegmentFlags};
use sites::{Found, OF_CONNECTIONS};

/// Why a Go program stays on plain TCP.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Alone {
    /// It has no C library, which the library needs.
    NoLibc,
    /// Its system calls cannot all be told.
    Undecided,
}

/// What is in the way of following a Go program that names a loader; nothing, also if it cannot be
/// read.
pub fn alone(program: &Path) -> Option<Alone> {
    let content = fs::read(program).ok()?;
    let file = object::File::parse(&*content).ok()?;
    let mut symbols = file.dynamic_symbols().filter(ObjectSymbol::is_undefined);
    if !symbols.any(|symbol| symbol.name() == Ok("pthread_create")) {
        return Some(Alone::NoLibc);
    }
    // Where C and Go are linked together the library looks for Go's calls on x86-64 alone.
    if cfg!(not(target_arch = "x86_64")) {
        return Some(Alone::Undecided);
    }
    let is_code = |flags: SegmentFlags| matches!(flags, SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0);
    let mut code = file.segments().filter(|segment| is_code(segment.flags()));
    let (Some(segment), None) = (code.next(), code.next()) else { return Some(Alone::Undecided) };
    let code = segment.data().ok()?;
    let mut has_any = false;
    for (at, found) in sites::find(code, &OF_CONNECTIONS) {
        match found {
            Found::Undecided(_) => return Some(Alone::Undecided),
            Found::Site(_) if sites::is_among_wide(code, at) => return Some(Alone::Undecided),
            Found::Site(window) => has_any |= !window.has_number(),
            Found::Data | Found::Unwanted(_) => {}
        }
    }
    (!has_any).then_some(Alone::Undecided)
}
