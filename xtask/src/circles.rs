//! Which modules of a crate import each other in a circle: none of them can be understood without
//! all the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Modules that a circle may have.
const MOST: usize = 2;
/// Crates that have not come so far, and what their largest circle has: it may shrink and not grow.
const LARGER: &[(&str, usize)] = &[("checksum", 4), ("engine", 3), ("rsocket", 7)];

/// Top-level module to those that it names.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// What is wrong in the crates below `crates`.
pub fn problems(crates: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for entry in fs::read_dir(crates).context("cannot read the folder of crates")? {
        let folder = entry?.path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let most =
            LARGER.iter().find(|(larger, _)| *larger == name).map_or(MOST, |(_, most)| *most);
        let mut graph = Graph::new();
        read(&folder.join("src"), None, &mut graph)?;
        for circle in circles(&graph).into_iter().filter(|circle| circle.len() > most) {
            let modules = circle.into_iter().collect::<Vec<_>>().join(", ");
            problems.push(format!(
                "{name}: {modules} import each other in a circle; at most {most} modules may"
            ));
        }
    }
    Ok(problems)
}

/// Adds what the files below `folder` name, all of them parts of `module` if there is one.
fn read(folder: &Path, module: Option<&str>, graph: &mut Graph) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let of = module.unwrap_or(&stem);
        if path.is_dir() {
            read(&path, Some(of), graph)?;
        } else if path.extension().is_some_and(|end| end == "rs")
            && !["lib", "main"].contains(&of)
            && stem != "tests"
        {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            graph.entry(of.to_string()).or_default().extend(named(&text));
        }
    }
    Ok(())
}

/// The top-level modules that a file names outside of comments and tests.
fn named(text: &str) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join(" ");
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => found.extend(listed(list)),
            None => found.extend(first_word(rest)),
        }
    }
    found
}

/// The first words of a list in braces, whose opening one is behind us.
fn listed(list: &str) -> Vec<String> {
    let mut depth = 0;
    let mut words = Vec::new();
    let mut item = 0;
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' | ',' if depth == 0 => {
                words.extend(first_word(list[item..at].trim_start()));
                item = at + 1;
                if letter == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    words
}

fn first_word(text: &str) -> Option<String> {
    let word: String =
        text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    (!word.is_empty()).then_some(word)
}

/// Modules that reach each other, the larger circles first.
fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|module| (module, reached(graph, module))).collect();
    let of = |module: &String| -> BTreeSet<String> {
        reach[module]
            .iter()
            .filter(|other| reach.get(other).is_some_and(|back| back.contains(module)))
            .cloned()
            .collect()
    };
    let mut all: Vec<BTreeSet<String>> =
        graph.keys().map(of).filter(|circle| circle.len() > 1).collect();
    all.sort();
    all.dedup();
    all.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    all
}

/// What a module leads to, over others: also itself, if it is in a circle.
fn reached(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.to_string()];
    while let Some(module) = open.pop() {
        for next in graph
            .get(&module)
            .into_iter()
            .flatten()
            .filter(|next| graph.contains_key(*next) && **next != module)
        {
            if found.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_paths_and_lists() {
        let text = "use crate::{a::{self, X}, b, c::Y};\n// crate::comment\nfn f() { crate::d::g() }\n#[cfg(test)]\nmod tests { use crate::e; }";
        assert_eq!(named(text).into_iter().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn circles_are_found_and_lines_are_none() {
        let edges =
            [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d"), ("f", "a")];
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry(from.into()).or_default().insert(to.into());
        }
        let found: Vec<Vec<String>> =
            circles(&graph).into_iter().map(|circle| circle.into_iter().collect()).collect();
        assert_eq!(found, [vec!["a", "b", "c"], vec!["d", "e"]]);
    }

    #[test]
    fn this_repository_has_none_that_is_too_large() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        assert_eq!(problems(&crates).expect("sources"), Vec::<String>::new());
    }
}
