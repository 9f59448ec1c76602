//! How wide the terminal is, text that fits it, and words that nobody shall miss.

use std::env;
use std::io::{self, IsTerminal};

use comfy_table::Table;

/// Columns of the terminal, if standard output is one.
pub fn width() -> Option<usize> {
    Table::new().width().map(usize::from)
}

/// Broken at blanks, further lines and the first with `indent` before them.
pub fn wrapped(text: &str, width: Option<usize>, indent: &str) -> String {
    let mut lines = vec![indent.to_string()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one from the start");
        let full = width.is_some_and(|width| {
            line.len() > indent.len() && line.chars().count() + 1 + word.chars().count() > width
        });
        if full {
            lines.push(format!("{indent}{word}"));
        } else {
            if line.len() > indent.len() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

/// In red on a terminal, unless $NO_COLOR is set.
pub fn red(text: &str, output: &impl IsTerminal) -> String {
    let coloured = output.is_terminal() && env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    if coloured { format!("\x1b[1;31m{text}\x1b[0m") } else { text.to_string() }
}

/// Says on standard error what must not be missed.
pub fn warn(text: &str) {
    eprintln!("{}", red(wrapped(text, width(), "").trim_end(), &io::stderr()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_at_blanks() {
        assert_eq!(wrapped("a bb ccc dddd", Some(8), "  "), "  a bb\n  ccc\n  dddd\n");
        assert_eq!(wrapped("a bb ccc dddd", None, "  "), "  a bb ccc dddd\n");
        assert_eq!(wrapped("abcdefghij", Some(4), ""), "abcdefghij\n");
    }

    #[test]
    fn files_get_no_colours() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(red("careful", &file), "careful");
    }
}
