//! Text of the command line as man pages have it: paragraphs that are filled, and what looks like
//! an example as it stands.

/// What stands behind the options in `--help`, by where a man page has it.
#[derive(Default, Debug, PartialEq)]
pub struct Sections {
    pub prose: String,
    /// Without their heading and common blanks.
    pub examples: String,
    pub exit_status: String,
}

impl Sections {
    /// Paragraphs are parted by empty lines. One that begins with `Examples:` has examples, and one
    /// that begins with `Exit status` tells that.
    pub fn of(help: &str) -> Sections {
        let mut sections = Sections::default();
        for paragraph in help.split("\n\n") {
            if let Some(rest) = paragraph.strip_prefix("Examples:\n") {
                sections.examples = rest.lines().map(dedented).collect();
            } else if paragraph.starts_with("Exit status") {
                let told = paragraph.trim_start_matches("Exit status: ");
                let (first, rest) = told.split_at(told.chars().next().map_or(0, char::len_utf8));
                sections.exit_status = format!("{}{rest}", first.to_uppercase());
            } else {
                sections.prose += &format!("{paragraph}\n\n");
            }
        }
        sections
    }
}

fn dedented(line: &str) -> String {
    format!("{}\n", line.strip_prefix("  ").unwrap_or(line))
}

/// Text as it is to be read, whatever it begins with and holds. What stands between backticks is
/// bold.
pub fn escape(text: &str) -> String {
    let mut parts: Vec<String> = text.split('`').map(literal).collect();
    // One without a partner is itself.
    if parts.len().is_multiple_of(2) {
        let last = parts.pop().unwrap_or_default();
        let before = parts.last_mut().expect("an even number");
        *before += &format!("\\(ga{last}");
    }
    let marked = parts.iter().enumerate().map(|(at, part)| match at % 2 {
        1 => format!("\\fB{part}\\fR"),
        _ => part.clone(),
    });
    guarded(marked.collect())
}

fn literal(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    text.replace('\'', "\\(aq").replace('`', "\\(ga")
}

/// A line that begins with a dot is no request.
fn guarded(line: String) -> String {
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

/// A term, with roff's own marks, and what it means.
pub fn tagged(tag: &str, meaning: &str) -> String {
    format!(".TP\n{tag}\n{}\n", escape(&meaning.replace('\n', " ")))
}

/// Columns of a terminal of 80 that a page leaves to its text.
const ROOM: usize = 73;

/// Lines that nothing breaks or fills. If one is too long for where text begins, they all begin
/// further left: at 80 columns the terminal breaks none, either.
pub fn verbatim(text: &str) -> String {
    let text = text.trim_end();
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let lines: String = text.lines().map(|line| guarded(literal(line)) + "\n").collect();
    let (outdent, back) = if longest > ROOM { (".in 2n\n", ".in\n") } else { ("", "") };
    format!(".PP\n.nf\n{outdent}{lines}{back}.fi\n")
}

/// Paragraphs, and between them lines that begin with two blanks, which are left as they are.
pub fn prose(text: &str) -> String {
    let mut out = String::new();
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let mut lines = paragraph.lines().peekable();
        while lines.peek().is_some() {
            let is_kept = |line: &&str| line.starts_with("  ");
            let filled: Vec<&str> =
                std::iter::from_fn(|| lines.next_if(|line| !is_kept(line))).collect();
            if !filled.is_empty() {
                out += &format!(".PP\n{}\n", escape(&filled.join(" ")));
            }
            let kept: String =
                std::iter::from_fn(|| lines.next_if(is_kept)).map(dedented).collect();
            if !kept.is_empty() {
                out += &verbatim(&kept);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_parted() {
        let help =
            "Examples:\n  one --two    three\n\nExit status: that of PROG.\n\nA `word`.\n  kept -x";
        let sections = Sections::of(help);
        assert_eq!(sections.examples, "one --two    three\n");
        assert_eq!(sections.exit_status, "That of PROG.");
        assert_eq!(sections.prose, "A `word`.\n  kept -x\n\n");
        assert_eq!(Sections::of("Exit status of x: 1").exit_status, "Exit status of x: 1");
    }

    #[test]
    fn roff_reads_text_as_text() {
        assert_eq!(escape(".TH a-b \\n 'x'"), "\\&.TH a\\-b \\en \\(aqx\\(aq");
        assert_eq!(escape("say `run --x` or `"), "say \\fBrun \\-\\-x\\fR or \\(ga");
        assert_eq!(verbatim("echo `id`\n"), ".PP\n.nf\necho \\(gaid\\(ga\n.fi\n");
        let text = prose("one\ntwo:\n  a   b\n\nthree");
        assert_eq!(text, ".PP\none two:\n.PP\n.nf\na   b\n.fi\n.PP\nthree\n");
    }
}
