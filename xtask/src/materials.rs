//! What the programs and libraries that are shipped are made of: a bill of materials (SPDX 2.3) and
//! the licences of everything that is linked in.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// The packages of this workspace that become files of a package.
const SHIPPED: &[&str] =
    &["shortwire", "preload", "rsocket", "rspreload", "checksum-capi", "bench", "bench-checksum"];
/// Needed to build only, as cargo sees it, but compiled into the command.
const COMPILED_IN: &[&str] = &["luajit-src"];

/// Writes `sbom.spdx.json` and `third-party-licences.txt`.
pub fn write(root: &Path, out: &Path) -> Result<()> {
    let target = host()?;
    let metadata = crate::layering::cargo(
        root,
        &["metadata", "--format-version", "1", "--locked", "--filter-platform", &target],
    )?;
    let metadata: Value =
        serde_json::from_str(&metadata).context("cargo metadata printed no JSON")?;
    let materials = Materials::of(&metadata)?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let bill = materials.bill(&checksums(&lock), &said("rustc", &["--version"])?, &made()?);
    fs::write(out.join("sbom.spdx.json"), serde_json::to_string_pretty(&bill)? + "\n")
        .context("cannot write the SBOM")?;
    fs::write(out.join("third-party-licences.txt"), materials.licences()?)
        .context("cannot write the licences")
}

/// Where the programs run: the machine that builds them.
fn host() -> Result<String> {
    let all = said("rustc", &["--version", "--verbose"])?;
    Ok(all
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc does not say its host")?
        .to_string())
}

/// The time that the documents bear: of the commit, where the Makefile says it.
fn made() -> Result<String> {
    let seconds = std::env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| "0".to_string());
    said("date", &["--utc", &format!("--date=@{seconds}"), "+%Y-%m-%dT%H:%M:%SZ"])
}

fn said(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(
        output.status.success(),
        "{program} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}

struct Materials<'a> {
    /// By the identity that cargo gives them.
    packages: BTreeMap<&'a str, &'a Value>,
    links: BTreeSet<(&'a str, &'a str)>,
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl<'a> Materials<'a> {
    fn of(metadata: &'a Value) -> Result<Materials<'a>> {
        let known: BTreeMap<&str, &Value> =
            items(&metadata["packages"]).map(|package| (text(package, "id"), package)).collect();
        let nodes: BTreeMap<&str, &Value> =
            items(&metadata["resolve"]["nodes"]).map(|node| (text(node, "id"), node)).collect();
        let shipped = |id: &&str| {
            let package = known[id];
            package["source"].is_null() && SHIPPED.contains(&text(package, "name"))
        };
        let mut open: Vec<&str> = nodes.keys().copied().filter(shipped).collect();
        ensure!(open.len() == SHIPPED.len(), "of {SHIPPED:?} cargo metadata lists {open:?} only");
        let mut found = Materials { packages: BTreeMap::new(), links: BTreeSet::new() };
        while let Some(id) = open.pop() {
            // What runs a C compiler comes with sources; they are linked, it is not.
            let compiled = COMPILED_IN.contains(&text(known[id], "name"));
            if found.packages.insert(id, known[id]).is_some() || compiled {
                continue;
            }
            for dependency in items(&nodes[id]["deps"]) {
                let other = text(dependency, "pkg");
                let linked = items(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null());
                let named = COMPILED_IN.contains(&text(known[other], "name"));
                // A procedural macro runs in the compiler.
                let runs = items(&known[other]["targets"])
                    .any(|target| items(&target["kind"]).any(|k| k == "proc-macro"));
                if (linked || named) && !runs {
                    found.links.insert((id, other));
                    open.push(other);
                }
            }
        }
        Ok(found)
    }

    fn bill(&self, checksums: &BTreeMap<(&str, &str), &str>, compiler: &str, made: &str) -> Value {
        let reference = |package: &Value| {
            format!("SPDXRef-{}-{}", text(package, "name"), text(package, "version"))
                .replace(['_', '+'], "-")
        };
        let mut packages: Vec<Value> = self
            .packages
            .values()
            .map(|package| {
                let (name, version) = (text(package, "name"), text(package, "version"));
                let mut entry = json!({
                    "SPDXID": reference(package),
                    "name": name,
                    "versionInfo": version,
                    "downloadLocation": "NOASSERTION",
                    "filesAnalyzed": false,
                    "licenseConcluded": "NOASSERTION",
                    "licenseDeclared": text(package, "license").replace('/', " OR "),
                    "copyrightText": "NOASSERTION",
                });
                if let Some(checksum) = checksums.get(&(name, version)) {
                    entry["checksums"] =
                        json!([{"algorithm": "SHA256", "checksumValue": checksum}]);
                    entry["externalRefs"] = json!([{
                        "referenceCategory": "PACKAGE-MANAGER",
                        "referenceType": "purl",
                        "referenceLocator": format!("pkg:cargo/{name}@{version}"),
                    }]);
                }
                entry
            })
            .collect();
        packages.push(json!({
            "SPDXID": "SPDXRef-rust-std",
            "name": "rust-std",
            "versionInfo": compiler.split_whitespace().nth(1).unwrap_or_default(),
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": false,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "MIT OR Apache-2.0",
            "copyrightText": "NOASSERTION",
        }));
        let id = |id: &str| reference(self.packages[id]);
        let relation = |from: &str, kind: &str, to: &str| json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to});
        let shipped: Vec<(&&str, &&Value)> = self
            .packages
            .iter()
            .filter(|(_, package)| SHIPPED.contains(&text(package, "name")))
            .collect();
        let mut relations = Vec::new();
        for (product, _) in &shipped {
            relations.push(relation("SPDXRef-DOCUMENT", "DESCRIBES", &id(product)));
            relations.push(relation(&id(product), "DEPENDS_ON", "SPDXRef-rust-std"));
        }
        relations
            .extend(self.links.iter().map(|(from, to)| relation(&id(from), "DEPENDS_ON", &id(to))));
        let (_, product) = shipped[0];
        json!({
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": "SPDXRef-DOCUMENT",
            "name": format!("shortwire-{}", text(product, "version")),
            "documentNamespace": format!("{}/sbom/{}/{made}", text(product, "repository"), text(product, "version")),
            "creationInfo": {"created": made, "creators": ["Tool: cargo-metadata", "Organization: Shortwire"]},
            "packages": packages,
            "relationships": relations,
        })
    }

    /// Each text once, under the packages that come with it.
    fn licences(&self) -> Result<String> {
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut all =
            "What is linked into Shortwire's programs and libraries, and the licences that came with it.\n".to_string();
        for package in self.packages.values().filter(|package| !package["source"].is_null()) {
            let name = format!("{} {}", text(package, "name"), text(package, "version"));
            let _ = writeln!(all, "  {name}: {}", text(package, "license"));
            let directory =
                Path::new(text(package, "manifest_path")).parent().unwrap_or(Path::new("/"));
            for entry in fs::read_dir(directory)
                .with_context(|| format!("cannot read {}", directory.display()))?
                .flatten()
            {
                let file = entry.file_name().to_string_lossy().to_uppercase();
                if ["LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
                    .iter()
                    .any(|start| file.starts_with(start))
                    && entry.path().is_file()
                {
                    let text = String::from_utf8_lossy(&fs::read(entry.path())?)
                        .trim()
                        .replace("\r\n", "\n");
                    texts.entry(text).or_default().push(name.clone());
                }
            }
        }
        for (text, mut names) in texts {
            names.sort();
            names.dedup();
            let _ = write!(all, "\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join(", "));
        }
        Ok(all)
    }
}

/// Name and version to what Cargo.lock says of a package that comes from a registry.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    lock.split("[[package]]")
        .filter_map(|package| {
            let find = |key: &str| {
                package.lines().find_map(|line| {
                    line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"')
                })
            };
            Some(((find("name")?, find("version")?), find("checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_linked_is_listed_and_nothing_else() {
        let out = std::env::temp_dir().join(format!("shortwire-materials-{}", std::process::id()));
        fs::create_dir_all(&out).unwrap();
        write(crate::root(), &out).unwrap();
        let bill: Value =
            serde_json::from_str(&fs::read_to_string(out.join("sbom.spdx.json")).unwrap()).unwrap();
        let licences = fs::read_to_string(out.join("third-party-licences.txt")).unwrap();
        fs::remove_dir_all(&out).unwrap();
        let names: BTreeSet<&str> =
            items(&bill["packages"]).map(|package| text(package, "name")).collect();
        for name in
            ["shortwire", "preload", "socket", "shm", "rustix", "clap", "luajit-src", "rust-std"]
        {
            assert!(names.contains(name), "{name} is missing");
        }
        // Tests, build scripts and macros.
        for name in ["proptest", "old-glibc", "cc", "serde_derive", "xtask"] {
            assert!(!names.contains(name), "{name} is not in what is shipped");
        }
        let ids: BTreeSet<&str> =
            items(&bill["packages"]).map(|package| text(package, "SPDXID")).collect();
        assert_eq!(ids.len(), items(&bill["packages"]).count(), "identities are unique");
        for relation in items(&bill["relationships"]) {
            let [from, to] = ["spdxElementId", "relatedSpdxElement"].map(|end| text(relation, end));
            assert!(
                (from == "SPDXRef-DOCUMENT" || ids.contains(from)) && ids.contains(to),
                "{relation}"
            );
        }
        assert!(
            licences.contains("  rustix 1") && licences.contains("Permission is hereby granted")
        );
    }

    #[test]
    fn checksums_are_of_registries_only() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"c0ffee\"\n\n[[package]]\nname = \"b\"\nversion = \"0.1.0\"\n";
        assert_eq!(checksums(lock).into_iter().collect::<Vec<_>>(), [(("a", "1.0.0"), "c0ffee")]);
    }
}
