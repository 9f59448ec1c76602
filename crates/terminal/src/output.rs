//! What a command prints, with an error where `println!` would end the program in a panic: on a full
//! disk, or where nobody reads any more.

use std::fmt::Arguments;
use std::io::{self, Write};

/// A line on standard output: `outln!("{} packets", n)?`.
#[macro_export]
macro_rules! outln {
    ($($what:tt)*) => {
        $crate::output::write(format_args!("{}\n", format_args!($($what)*)))
    };
}

/// The same without the end of the line.
#[macro_export]
macro_rules! out {
    ($($what:tt)*) => {
        $crate::output::write(format_args!($($what)*))
    };
}

/// Writes to standard output, all of it, now.
pub fn write(what: Arguments) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(what).and_then(|()| out.flush()).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot write to standard output: {error}"))
    })
}
