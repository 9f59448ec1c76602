//! Which pods stay as they are.

use serde_json::Value;

use super::{
    INJECT, LIBRARY_VOLUME, MEET_VOLUME, MOST_CONTAINERS, containers, is_no, name, text_at,
};
use crate::webhook::mesh;

/// Whether all that is changed below is what the API says that it is.
pub fn has_shape(pod: &Value) -> bool {
    let (spec, metadata) = (&pod["spec"], &pod["metadata"]);
    let may_be = |value: &Value, is: fn(&Value) -> bool| value.is_null() || is(value);
    let objects = |value: &Value| {
        may_be(value, |value| value.as_array().is_some_and(|all| all.iter().all(Value::is_object)))
    };
    let kinds = ["containers", "initContainers", "volumes"];
    pod.is_object()
        && spec["containers"].is_array()
        && kinds.iter().all(|kind| objects(&spec[kind]))
        && containers(pod)
            .all(|container| ["env", "volumeMounts"].iter().all(|kind| objects(&container[kind])))
        && may_be(metadata, Value::is_object)
        && may_be(&metadata["annotations"], Value::is_object)
}

/// Some, if the pod stays without the library: with why, unless that is what its owner asked for.
pub fn leave_alone(pod: &Value, namespace: &str) -> Option<Option<String>> {
    let says = |text: &str| Some(Some(format!("the pod stays without Shortwire: {text}")));
    let asked = ["labels", "annotations"]
        .iter()
        .any(|kind| text_at(pod, &["metadata", kind, INJECT]).is_some_and(is_no));
    // What stands for a pod that the kubelet has from a file is changed in vain.
    if asked || !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null() {
        return Some(None);
    }
    // Its name becomes part of a path on the node.
    let is_name = !namespace.is_empty()
        && namespace.len() <= 63
        && namespace.bytes().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if !is_name {
        return says("its namespace has no proper name");
    }
    if matches!(namespace, "kube-system" | "kube-public" | "kube-node-lease") {
        return says(&format!("namespace {namespace} is the cluster's own"));
    }
    if containers(pod).nth(MOST_CONTAINERS).is_some() {
        return says(&format!("it has more than {MOST_CONTAINERS} containers"));
    }
    if let Some((mesh, mark)) = mesh::of(pod) {
        return says(&format!(
            "it is part of {mesh} ({mark}), whose proxy shared memory would pass by"
        ));
    }
    let spec = &pod["spec"];
    if spec["hostNetwork"] == true {
        return says("hostNetwork: it would meet pods of all namespaces");
    }
    let windows = text_at(spec, &["os", "name"])
        .or_else(|| text_at(spec, &["nodeSelector", "kubernetes.io/os"]));
    if windows == Some("windows") {
        return says("Windows has no LD_PRELOAD");
    }
    let class = text_at(spec, &["runtimeClassName"]).unwrap_or_default();
    if ["kata", "gvisor", "runsc"].iter().any(|sandbox| class.contains(sandbox)) {
        return says(&format!("runtimeClassName {class} shares no memory with other pods"));
    }
    foreign(spec).and_then(|volume| says(&format!("volume {} is another one", name(volume))))
}

/// A volume that has a name of ours and is none.
pub fn foreign(spec: &Value) -> Option<&Value> {
    let ours = [(LIBRARY_VOLUME, "emptyDir"), (MEET_VOLUME, "hostPath")];
    spec["volumes"].as_array()?.iter().find(|volume| {
        ours.iter().any(|(known, kind)| name(volume) == *known && volume.get(kind).is_none())
    })
}
