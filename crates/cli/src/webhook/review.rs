//! What the API server asks, an AdmissionReview, and the answer: always that the pod may be, with what
//! changes in it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::patch::{self, Operation};
use super::pod::{self, Ours, Outcome, text_at};
use crate::finding::plain;

/// Bytes; the API server cuts those of more than 256, and all of them at 4096.
const LONGEST_WARNING: usize = 200;
/// Values, about, in a question. Each may become some 700 bytes when it is read.
pub const MOST_VALUES: usize = 30_000;

/// Whether more values are in the text than are read: by the signs that begin or part them, also those within texts.
pub fn has_too_many_values(text: &[u8]) -> bool {
    text.iter().filter(|sign| matches!(sign, b'{' | b'[' | b',')).nth(MOST_VALUES).is_some()
}

/// A pod as it was asked for and what becomes of it.
pub struct Change {
    pub outcome: Outcome,
    pub patch: Vec<Operation>,
    pub pod: Value,
}

impl Change {
    pub fn of(before: &Value, namespace: &str, ours: &Ours) -> Change {
        let mut pod = before.clone();
        let mut outcome = pod::change(&mut pod, namespace, ours);
        outcome.warnings.truncate(pod::MOST_WARNINGS);
        for warning in &mut outcome.warnings {
            *warning = plain(warning);
            let cut = (0..=LONGEST_WARNING).rev().find(|at| warning.is_char_boundary(*at));
            warning.truncate(cut.unwrap_or(0));
        }
        Change { patch: patch::between(before, &pod), outcome, pod }
    }
}

/// An answer, and what may be noted of it, in words.
pub struct Answer {
    pub review: Value,
    pub note: Option<String>,
}

/// The error says why no answer can be made.
pub fn answer(question: &[u8], ours: &Ours) -> Result<Answer, String> {
    let question: Value = serde_json::from_slice(question)
        .map_err(|error| format!("the body is no JSON: {error}"))?;
    let (kind, version) =
        (text_at(&question, &["kind"]), text_at(&question, &["apiVersion"]).unwrap_or_default());
    if kind != Some("AdmissionReview") || version != "admission.k8s.io/v1" {
        return Err("the body is no AdmissionReview of admission.k8s.io/v1".into());
    }
    let request = &question["request"];
    let uid = text_at(request, &["uid"]).filter(|uid| !uid.is_empty());
    let uid = uid.ok_or("the request has no uid")?;
    let mut response = json!({"uid": uid, "allowed": true});
    let mut note = None;
    // Of a pod that is there no container can be changed, and an ephemeral one comes by another resource.
    let is_new_pod = text_at(request, &["operation"]) == Some("CREATE")
        && text_at(request, &["resource", "resource"]) == Some("pods")
        && text_at(request, &["resource", "group"]).unwrap_or_default().is_empty()
        && text_at(request, &["subResource"]).unwrap_or_default().is_empty();
    if is_new_pod {
        let namespace = text_at(request, &["namespace"]).unwrap_or_default();
        let Change { outcome, patch, .. } = Change::of(&request["object"], namespace, ours);
        if !patch.is_empty() {
            let patch = serde_json::to_vec(&patch).map_err(|error| error.to_string())?;
            response["patchType"] = "JSONPatch".into();
            response["patch"] = BASE64_STANDARD.encode(patch).into();
        }
        if !outcome.warnings.is_empty() {
            response["warnings"] = outcome.warnings.clone().into();
        }
        if !outcome.containers.is_empty() {
            response["auditAnnotations"] = json!({"containers": outcome.containers.join(",")});
        }
        note = words(&request["object"], namespace, &outcome);
    }
    let review = json!({"apiVersion": version, "kind": "AdmissionReview", "response": response});
    Ok(Answer { review, note })
}

/// A line for whoever keeps the webhook; none where nothing was asked for and nothing done.
fn words(pod: &Value, namespace: &str, outcome: &Outcome) -> Option<String> {
    let metadata = ["name", "generateName"];
    let name = metadata.iter().find_map(|key| text_at(pod, &["metadata", key])).unwrap_or("?");
    let mut said = outcome.warnings.clone();
    if !outcome.containers.is_empty() {
        said.insert(0, format!("into {}", outcome.containers.join(", ")));
    }
    (!said.is_empty()).then(|| plain(&format!("{namespace}/{name}: {}", said.join("; "))))
}

#[cfg(test)]
mod tests;
