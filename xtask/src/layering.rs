//! Which crate may see which, and what may be loaded into other people's programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The edges that ARCHITECTURE.md draws. A crate may also use what it reaches through them; nothing
/// points upwards.
const EDGES: &[(&str, &[&str])] = &[
    ("shortwire-checksum", &[]),
    // The crate's C border, which needs the standard library's panic handler.
    ("checksum-capi", &["shortwire-checksum", "old-glibc"]),
    // What build scripts of everything that is shipped call.
    ("old-glibc", &[]),
    ("build-id", &[]),
    ("shm", &[]),
    ("sites", &[]),
    ("verbs", &["shm"]),
    ("dibs", &["shm", "shortwire-checksum", "verbs"]),
    ("smc", &["dibs"]),
    ("socket", &["smc"]),
    ("preload", &["socket", "sites", "old-glibc", "build-id"]),
    ("raw", &["socket", "sites", "build-id"]),
    ("rsocket", &["dibs", "old-glibc"]),
    // A front of it: the names of sockets.
    ("rspreload", &["rsocket", "old-glibc"]),
    ("engine", &["shm", "shortwire-checksum"]),
    // What commands print and are told; sizes are read as the library reads them.
    ("terminal", &["smc"]),
    ("connections", &["smc"]),
    ("measure", &["terminal", "connections", "rsocket", "engine"]),
    ("shortwire", &["measure", "sites", "old-glibc", "build-id"]),
    ("xtask", &["shortwire"]),
    // Stands for programs that know nothing of this project; only its link is ours.
    ("bench", &["old-glibc"]),
    // Measures the crate beside its rivals, which it alone links.
    ("bench-checksum", &["shortwire-checksum", "old-glibc"]),
    // Runs the tests; knows nothing of what they test.
    ("check", &[]),
    // Looks at the product from outside.
    ("system-tests", &[]),
];

/// Everything that is linked into libshortwire.so or run to build it. What is added here is added
/// to every program that anybody runs under Shortwire.
const PRELOAD_PACKAGES: &[&str] = &[
    "bitflags",
    "build-id",
    "crossbeam-utils",
    "shortwire-checksum",
    "dibs",
    "libc",
    "linux-raw-sys",
    "old-glibc",
    "preload",
    "rustix",
    "shm",
    "sites",
    "smc",
    "socket",
    "verbs",
];

/// Packages that only programs may use, and the crates that a program is made of.
const PROGRAMS_ONLY: &[&str] = &["anyhow", "clap", "comfy-table", "indicatif"];
const PROGRAMS: &[&str] = &[
    "shortwire",
    "measure",
    "connections",
    "terminal",
    "bench",
    "bench-checksum",
    "xtask",
    "system-tests",
];

pub fn check(root: &Path) -> Result<()> {
    let metadata = cargo(root, &["metadata", "--format-version", "1", "--no-deps"])?;
    let metadata: Value =
        serde_json::from_str(&metadata).context("cargo metadata printed no JSON")?;
    let mut problems = edge_problems(&dependencies(&metadata)?);
    let tree = cargo(
        root,
        &["tree", "-p", "preload", "-e", "no-dev", "--prefix", "none", "--format", "{p}"],
    )?;
    problems.extend(preload_problems(&tree));
    problems.extend(crate::circles::problems(&root.join("crates"))?);
    ensure!(problems.is_empty(), "layering:\n  {}", problems.join("\n  "));
    Ok(())
}

/// What cargo prints.
pub fn cargo(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(crate::cargo())
        .args(arguments)
        .current_dir(root)
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed: {}", arguments[0], String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Package to what it depends on, of any kind.
fn dependencies(metadata: &Value) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let name = |value: &Value| {
        value["name"].as_str().map(str::to_string).context("a package without a name")
    };
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().into_iter().flatten();
            Ok((name(package)?, dependencies.map(name).collect::<Result<_>>()?))
        })
        .collect()
}

fn edge_problems(dependencies: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut problems = Vec::new();
    for (package, uses) in dependencies {
        if !EDGES.iter().any(|(known, _)| known == package) {
            problems.push(format!(
                "{package} is not in ARCHITECTURE.md's list of crates; add it there and to xtask's EDGES, or put its code elsewhere"
            ));
            continue;
        }
        let allowed = reachable(package);
        for used in uses {
            if dependencies.contains_key(used) && !allowed.contains(used.as_str()) {
                problems.push(format!(
                    "{package} -> {used} is not an allowed edge (ARCHITECTURE.md, crates and allowed edges)"
                ));
            }
            if PROGRAMS_ONLY.contains(&used.as_str()) && !PROGRAMS.contains(&package.as_str()) {
                problems.push(format!(
                    "{package} uses {used}, which is for programs; libraries have their own error types and no terminal"
                ));
            }
        }
    }
    problems
}

fn reachable(package: &str) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let mut open = vec![package.to_string()];
    while let Some(next) = open.pop() {
        for &edge in EDGES.iter().filter(|(name, _)| *name == next).flat_map(|(_, edges)| *edges) {
            if found.insert(edge) {
                open.push(edge.to_string());
            }
        }
    }
    found
}

/// `tree`: a package per line, name first.
fn preload_problems(tree: &str) -> Vec<String> {
    let packages: BTreeSet<&str> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let unlisted = packages.into_iter().filter(|package| !PRELOAD_PACKAGES.contains(package));
    unlisted
        .map(|package| {
            format!("preload grew the package {package}; do without it, or argue for it in xtask's PRELOAD_PACKAGES")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> BTreeMap<String, BTreeSet<String>> {
        edges
            .iter()
            .map(|(name, uses)| {
                (name.to_string(), uses.iter().map(|used| used.to_string()).collect())
            })
            .collect()
    }

    #[test]
    fn this_workspace_is_layered() {
        check(crate::root()).unwrap();
    }

    /// Who looks for something in the two crates that have most files finds its file there.
    #[test]
    fn each_file_of_smc_and_socket_is_in_the_table() {
        let map = std::fs::read_to_string(crate::root().join("ARCHITECTURE.md")).unwrap();
        let mut folders = ["smc", "socket"]
            .map(|krate| crate::root().join("crates").join(krate).join("src"))
            .to_vec();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                match path.is_dir() {
                    // Each of them is one line of the table.
                    true if ["clc", "sys", "tests"].contains(&name) => {}
                    true => folders.push(path),
                    false if ["lib.rs", "tests.rs"].contains(&name) => {}
                    false => assert!(
                        map.contains(&format!("`{name}`")) || map.contains(&format!("/{name}`")),
                        "ARCHITECTURE.md does not have {}",
                        path.display()
                    ),
                }
            }
        }
    }

    #[test]
    fn downward_edges_pass_also_through_others() {
        let graph = graph(&[
            ("shm", &["rustix"]),
            ("dibs", &["shm"]),
            ("smc", &["dibs", "shm"]),
            ("preload", &["smc", "shm"]),
            ("shortwire", &["smc", "anyhow"]),
        ]);
        assert_eq!(edge_problems(&graph), Vec::<String>::new());
    }

    #[test]
    fn upward_sideways_and_unknown_are_told() {
        let graph = graph(&[
            ("shm", &["dibs", "clap"]),
            ("dibs", &[]),
            ("bench", &["shm"]),
            ("common", &[]),
        ]);
        let problems = edge_problems(&graph);
        assert_eq!(problems.len(), 4, "{problems:?}");
        for part in ["shm -> dibs", "shm uses clap", "bench -> shm", "common is not in"] {
            assert!(problems.iter().any(|problem| problem.contains(part)), "{part}");
        }
    }

    #[test]
    fn preload_grows_only_on_purpose() {
        assert_eq!(
            preload_problems("preload v0.1.0 (/x)\nrustix v1.1.6\nrustix v1.1.6 (*)\n"),
            Vec::<String>::new()
        );
        assert_eq!(preload_problems("preload v0.1.0 (/x)\nserde v1.0.0\n").len(), 1);
    }
}
