//! The documents: each is in the book, and each link leads somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Markdown files of the root and of `doc`, by their paths from the root.
fn documents() -> Vec<PathBuf> {
    let root = crate::root();
    let mut found = Vec::new();
    for folder in
        [root.to_path_buf(), root.join("doc"), root.join("crates/checksum"), root.join("fuzz")]
    {
        let files = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
        found.extend(files.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    found.sort();
    found
}

/// What `](...)` names outside of code.
fn links(text: &str) -> Vec<String> {
    let mut prose = String::new();
    for (number, block) in text.split("\n```").enumerate() {
        prose += if number % 2 == 0 { block } else { "\n" };
    }
    let prose: String = prose.split('`').step_by(2).collect::<Vec<_>>().join("code");
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(String::from).collect()
}

/// As GitHub and mdBook make it of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn each_link_between_documents_holds() {
    let mut broken = Vec::new();
    let mut seen = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            seen += 1;
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() {
                document.clone()
            } else {
                document.parent().unwrap().join(file)
            };
            let holds = target.exists()
                && (heading.is_empty()
                    || anchors(&fs::read_to_string(&target).unwrap_or_default()).contains(heading));
            if !holds {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(seen > 60, "{seen} links were looked at");
}

/// The site is made of what `doc/SUMMARY.md` lists.
#[test]
fn each_document_is_in_the_summary() {
    let root = crate::root();
    let summary = root.join("doc/SUMMARY.md");
    let listed = links(&fs::read_to_string(&summary).unwrap());
    let mut once = BTreeSet::new();
    for link in &listed {
        assert!(once.insert(link), "{link} is listed twice");
    }
    let doc = root.join("doc");
    let listed: BTreeSet<PathBuf> =
        listed.iter().map(|link| doc.join(link).canonicalize().expect(link)).collect();
    for document in documents() {
        let is_of_book = document.parent() == Some(&doc) && document != summary
            || document.parent() == Some(root) && document != root.join("README.md");
        assert!(!is_of_book || listed.contains(&document), "{} is not listed", document.display());
    }
}

/// What `make docs` hands to mdBook has whatever its documents name.
#[test]
fn the_site_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let make = |book: &str| {
        let mut make = Command::new("make");
        make.arg("-C").arg(crate::root()).args(["-s", "docs", &format!("MDBOOK={book}")]);
        make.arg(format!("CARGO_TARGET_DIR={}", folder.path().display()));
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").output()
    };
    let Ok(made) = make("true") else {
        println!("skipped: the_site_is_whole: make not installed");
        return;
    };
    assert!(made.status.success(), "{made:?}");
    let source = folder.path().join("docs/src");
    let summary = fs::read_to_string(source.join("SUMMARY.md")).unwrap();
    let mut seen = 0;
    for chapter in links(&summary) {
        let file = source.join(&chapter);
        let text = fs::read_to_string(&file).expect(&chapter);
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let target = file.parent().unwrap().join(link.split('#').next().unwrap_or_default());
            assert!(
                target.is_file() || link.starts_with('#'),
                "{chapter}: {link} is no file of the site"
            );
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} links were looked at");
    let refused = make("/nonexistent/mdbook").unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("cargo install mdbook"), "{words}");
}

#[test]
fn links_and_headings_are_understood() {
    let text = "See [a](b.md#c-d) and `[x](y)`.\n```\n[p](q)\n```\n[e](f)";
    assert_eq!(links(text), ["b.md#c-d", "f"]);
    assert_eq!(anchor(" What `run` does, and why "), "what-run-does-and-why");
}
