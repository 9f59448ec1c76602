//! The text of unit files.

/// The settings of one section, in their order.
pub fn section(text: &str, name: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut is_in = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_in = header == name;
            continue;
        }
        let mut whole = line.to_string();
        // A comment does not end a line that goes on.
        while let Some(before) = whole.strip_suffix('\\') {
            let next = lines.by_ref().map(str::trim).find(|line| !line.starts_with(['#', ';']));
            whole = format!("{before} {}", next.unwrap_or_default());
        }
        if let Some((key, value)) = whole.split_once('=').filter(|_| is_in) {
            found.push((key.trim().to_string(), value.trim().to_string()));
        }
    }
    found
}

/// The words of a value, out of their quotes.
pub fn words(value: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', _) => word.get_or_insert_default().extend(letters.next()),
            ('"' | '\'', None) => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            (end, Some(begun)) if end == begun => quote = None,
            (space, None) if space.is_whitespace() => words.extend(word.take()),
            (letter, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// One word of an Environment= that says this.
pub fn quoted(word: &str) -> String {
    // A percent sign would begin a specifier.
    let word = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"{word}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_lines_that_go_on_and_comments() {
        let text = "# x\n[Unit]\nA=1\n[Service]\n ; y\nB = a \\\n# in between\n  b\nC=\nnonsense\n";
        let expected = [("B", "a  b"), ("C", "")].map(|(k, v)| (k.to_string(), v.to_string()));
        assert_eq!(section(text, "Service"), expected);
    }

    #[test]
    fn words_and_quotes() {
        assert_eq!(words(r#"a "b c"'d' \"e  """#), ["a", "b cd", "\"e", ""]);
        assert_eq!(words(&quoted("A=x \"y\" \\")), ["A=x \"y\" \\"]);
    }
}
