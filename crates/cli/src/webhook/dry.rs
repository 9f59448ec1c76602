//! What the webhook would change in a pod, for people, without a cluster.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::pod::{Ours, text_at};
use super::review::Change;
use crate::finding::plain;

pub fn run(ours: &Ours, namespace: &str, as_json: bool) -> Result<ExitCode> {
    let mut input = std::io::stdin();
    if input.is_terminal() {
        eprintln!(
            "Reading a pod as JSON; from YAML: kubectl create --dry-run=client -o json -f FILE"
        );
    }
    let mut text = Vec::new();
    input.read_to_end(&mut text).context("cannot read standard input")?;
    let object: Value = serde_json::from_slice(&text).context(
        "standard input is no JSON (from YAML: kubectl create --dry-run=client -o json -f FILE)",
    )?;
    let (pod, own) = pod_of(&object)?;
    let namespace = own.unwrap_or(namespace);
    let change = Change::of(&pod, namespace, ours);
    if as_json {
        let all = json!({
            "containers": change.outcome.containers,
            "warnings": change.outcome.warnings,
            "patch": change.patch,
            "pod": change.pod,
        });
        crate::json::print(&all)?;
    } else {
        terminal::out!("{}", words(&change, namespace)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The pod that an object is, asks about or makes, and its namespace if that is named.
fn pod_of(object: &Value) -> Result<(Value, Option<&str>)> {
    let namespace = text_at(object, &["metadata", "namespace"]);
    match text_at(object, &["kind"]) {
        Some("Pod") => return Ok((object.clone(), namespace)),
        Some("AdmissionReview") => {
            let request = &object["request"];
            return Ok((request["object"].clone(), text_at(request, &["namespace"])));
        }
        _ => {}
    }
    for path in ["/spec/template", "/spec/jobTemplate/spec/template"] {
        if let Some(template) = object.pointer(path).filter(|template| template["spec"].is_object())
        {
            return Ok((template.clone(), namespace));
        }
    }
    bail!(
        "that is no pod, no AdmissionReview, and nothing that makes pods: it has no spec.template"
    )
}

fn words(change: &Change, namespace: &str) -> Result<String> {
    let metadata = &change.pod["metadata"];
    let name = ["name", "generateName"].iter().find_map(|key| text_at(metadata, &[key]));
    let mut text = format!("{namespace}/{}\n", name.unwrap_or("(a pod without a name yet)"));
    text += &match &change.outcome.containers[..] {
        [] => "  stays without the library\n".to_string(),
        some => format!("  load the library: {}\n", some.join(", ")),
    };
    for warning in &change.outcome.warnings {
        text += &format!("  warning: {warning}\n");
    }
    let mut text: String = text.lines().map(|line| plain(line) + "\n").collect();
    if change.patch.is_empty() {
        text += "  nothing changes\n";
    }
    // JSON has no control characters as they are.
    for operation in &change.patch {
        text += &format!("  {}\n", serde_json::to_string(operation)?);
    }
    Ok(text)
}
