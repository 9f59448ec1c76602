//! What `doc/arm64.md` says of orderings is what the sources have: a row for each pair that is marked
//! in them, no row for another one, and models by the names that they have.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a folder and what is below it that are Rust.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

fn crates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    sources(&crate::root().join("crates"), &mut found);
    found
}

/// The names behind `SYNC: ` in a text. One ends with a sentence, a bracket or the line.
fn marks(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| {
        line.split("SYNC: ").skip(1).map(|rest| {
            let rest = rest.split(')').next().unwrap_or_default();
            let rest = rest.split(". ").next().unwrap_or_default().trim();
            rest.strip_suffix('.').unwrap_or(rest)
        })
    })
}

/// What stands between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The rows of the table whose head begins with `pair`: first and last column.
fn rows(document: &str) -> Vec<(&str, &str)> {
    let table = document.lines().skip_while(|line| !line.starts_with("| pair |")).skip(2);
    let cells = table.take_while(|line| line.starts_with('|')).map(|line| {
        let mut cells = line.trim_matches(['|', ' ']).split(" | ");
        let first = cells.next().expect("a column");
        (first, cells.last().unwrap_or_default())
    });
    cells.collect()
}

#[test]
fn each_pair_of_the_sources_has_a_row_and_each_row_a_pair() {
    let document = fs::read_to_string(crate::root().join("doc/arm64.md")).unwrap();
    let mut listed = BTreeSet::new();
    for (pairs, _) in rows(&document) {
        for name in code(pairs) {
            assert!(listed.insert(name), "{name} has two rows");
        }
    }
    let texts: Vec<_> =
        crates().into_iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let marked: BTreeSet<&str> = texts.iter().flat_map(|text| marks(text)).collect();
    let missing: Vec<_> = marked.difference(&listed).collect();
    assert!(missing.is_empty(), "without a row in doc/arm64.md: {missing:?}");
    let gone: Vec<_> = listed.difference(&marked).collect();
    assert!(gone.is_empty(), "in doc/arm64.md, and marked nowhere: {gone:?}");
    assert!(marked.len() > 50, "{} pairs were found", marked.len());
}

#[test]
fn each_model_of_the_table_is_there() {
    let document = fs::read_to_string(crate::root().join("doc/arm64.md")).unwrap();
    let is_model = |file: &&PathBuf| {
        let file = file.to_string_lossy();
        file.ends_with("tests/loom.rs") || file.contains("tests/loom/")
    };
    let models: Vec<_> =
        crates().iter().filter(is_model).map(|file| fs::read_to_string(file).unwrap()).collect();
    let mut seen = 0;
    for (pairs, last) in rows(&document) {
        for name in code(last) {
            seen += 1;
            let head = format!("fn {name}()");
            assert!(models.iter().any(|text| text.contains(&head)), "{pairs}: no model {name}");
        }
        assert!(
            code(last).next().is_some() || last.starts_with("argument: "),
            "{pairs}: neither a model nor an argument"
        );
    }
    assert!(seen > 20, "{seen} models were looked for");
}

#[test]
fn names_end_where_their_sentence_does() {
    let text = "a // SYNC: prod. Behind\n/// see (SYNC: done mark) and SYNC: crossing.cons. It\n SYNC: row\n SYNC: a.";
    assert_eq!(marks(text).collect::<Vec<_>>(), ["prod", "done mark", "crossing.cons", "row", "a"]);
    let table = "| x |\n\n| pair | where | order | model |\n| --- | --- |\n| `a`, `b c` | shm | `no` | `m` |\n";
    assert_eq!(rows(table), [("`a`, `b c`", "`m`")]);
    assert_eq!(code("`a`, `b c`").collect::<Vec<_>>(), ["a", "b c"]);
}
