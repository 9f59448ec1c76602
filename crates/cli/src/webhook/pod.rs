//! What becomes of a pod: the library, its variables and the directory to meet in, for those of its containers that may have
//! them; or all of that taken out again.
//!
//! Everything is made sure of, not added: a pod that has it all stays as it is, also with what other webhooks and the API
//! server's defaults have since put beside it.

mod back;
mod entries;
mod installer;
mod leave;
mod mounts;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use back::{take_back, take_from, take_meet};
use entries::{Env, ensure_named, entries_mut, list};
use installer::{installer, resources};
use leave::{has_shape, leave_alone};

/// Where the containers of a pod find the library, and the directory to meet in.
pub const LIBRARY: &str = "/opt/shortwire/libshortwire.so";
const LIBRARY_MOUNT: &str = "/opt/shortwire";
const MEET_MOUNT: &str = "/run/shortwire-pods";
const LIBRARY_VOLUME: &str = "shortwire-library";
const MEET_VOLUME: &str = "shortwire-meet";
const INSTALLER: &str = "shortwire-install";
const MEET_VARIABLE: &str = "SHORTWIRE_RENDEZVOUS";

/// Label, on a namespace or a pod, or annotation of a pod: `enabled` or `disabled`.
pub const INJECT: &str = "shortwire.dev/inject";
const EXCLUDE: &str = "shortwire.dev/exclude-containers";
const MEET: &str = "shortwire.dev/rendezvous";
const SET: &str = "shortwire.dev/set";
const INJECTED: &str = "shortwire.dev/injected";
/// Bytes of what a pod's owner sets, all of which may come into each container.
const LONGEST_SETTINGS: usize = 4096;
/// In a pod. With more of them an answer becomes larger than a question may be.
const MOST_CONTAINERS: usize = 200;
pub const MOST_WARNINGS: usize = 8;
/// The cluster autoscaler lets go of a node although volumes of these names are on it.
const EVICTABLE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";

/// What is put into pods.
#[derive(Clone, Debug)]
pub struct Ours {
    /// The image that brings the library.
    pub image: String,
    pub pull_policy: Option<String>,
    /// Folder of the node in which each namespace has one to meet in; none: connections leave TCP within a pod only.
    pub meet: Option<String>,
    /// Variables, as NAME=VALUE.
    pub settings: Vec<String>,
}

/// What became of a pod.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Names of the containers that load the library.
    pub containers: Vec<String>,
    /// For whoever made the pod.
    pub warnings: Vec<String>,
}

pub fn text_at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(value, |value, key| value.get(key))?.as_str()
}

pub fn name(container: &Value) -> &str {
    text_at(container, &["name"]).unwrap_or_default()
}

/// Of both kinds.
pub fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"]
        .into_iter()
        .filter_map(|kind| pod["spec"][kind].as_array())
        .flatten()
}

/// Changes the pod into what it is to be. `namespace`: as the API server says it; the pod itself may not know it yet.
pub fn change(pod: &mut Value, namespace: &str, ours: &Ours) -> Outcome {
    let mut outcome = Outcome::default();
    if !has_shape(pod) {
        outcome
            .warnings
            .push("the pod stays without Shortwire: it has not the shape of one".into());
        return outcome;
    }
    let (own, misunderstood) = own_settings(pod);
    let settings: Vec<String> = own.into_iter().chain(ours.settings.iter().cloned()).collect();
    match leave_alone(pod, namespace) {
        Some(why) => outcome.warnings.extend(why),
        None => {
            outcome.warnings = misunderstood;
            let folder =
                meet(pod, ours, &mut outcome).map(|folder| format!("{folder}/{namespace}"));
            inject(pod, ours, folder.as_deref(), &settings, &mut outcome);
        }
    }
    if outcome.containers.is_empty() {
        take_back(pod, &settings);
    }
    outcome
}

/// What its owner sets for it, and what of that is not understood.
fn own_settings(pod: &Value) -> (Vec<String>, Vec<String>) {
    let said = text_at(pod, &["metadata", "annotations", SET]).unwrap_or_default();
    let (mut settings, mut misunderstood) = (Vec::new(), Vec::new());
    if said.len() > LONGEST_SETTINGS {
        let why = format!("{SET} is left out: it has more than {LONGEST_SETTINGS} bytes");
        return (settings, vec![why]);
    }
    for word in said.split([',', ' ']).filter(|word| !word.is_empty()) {
        match crate::enable::parse_setting(word) {
            Ok(setting) => settings.push(setting),
            Err(why) => misunderstood.push(format!("{SET}: {word} is left out: {why}")),
        }
    }
    (settings, misunderstood)
}

fn is_no(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "disabled" | "false" | "no" | "none" | "off")
}

/// The node's folder for those that this pod may meet in other pods.
fn meet<'a>(pod: &Value, ours: &'a Ours, outcome: &mut Outcome) -> Option<&'a str> {
    let folder = ours.meet.as_deref()?;
    if text_at(pod, &["metadata", "annotations", MEET]).is_some_and(is_no) {
        return None;
    }
    if pod["spec"]["hostUsers"] == false {
        outcome.warnings.push(
            "connections to other pods stay TCP: with hostUsers: false nobody knows this pod's users".into(),
        );
        return None;
    }
    Some(folder)
}

fn inject(
    pod: &mut Value,
    ours: &Ours,
    folder: Option<&str>,
    settings: &[String],
    outcome: &mut Outcome,
) {
    let excluded = text_at(pod, &["metadata", "annotations", EXCLUDE]).unwrap_or_default();
    let excluded: HashSet<String> =
        excluded.split([',', ' ']).filter(|word| !word.is_empty()).map(String::from).collect();
    let resources = resources(pod);
    let empty = mounts::empty_volumes(&pod["spec"]);
    // Of init containers those that go on beside the others, if they start behind the one that brings the library.
    let behind = pod["spec"]["initContainers"].as_array().map_or(0, |all| {
        all.iter().position(|container| name(container) == INSTALLER).map_or(0, |at| at + 1)
    });
    if folder.is_none() {
        take_meet(pod);
    }
    let mut meets = false;
    for (kind, first) in [("initContainers", behind), ("containers", 0)] {
        for container in entries_mut(&mut pod["spec"], kind).skip(first) {
            let is_sidecar = container["restartPolicy"] == "Always";
            if excluded.contains(name(container)) {
                take_from(container, settings);
                continue;
            }
            if kind == "initContainers" && !is_sidecar {
                continue;
            }
            match into_container(container, folder.is_some(), settings, &empty) {
                Ok(met) => {
                    meets |= met;
                    outcome.containers.push(name(container).into());
                }
                Err(why) => {
                    // What is in the way may have come behind us, by another webhook.
                    take_from(container, settings);
                    let name = name(container);
                    outcome
                        .warnings
                        .push(format!("container {name} stays without Shortwire: {why}"));
                }
            }
        }
    }
    if outcome.containers.is_empty() {
        return;
    }
    let folder = folder.filter(|_| meets);
    let volumes = list(&mut pod["spec"], "volumes");
    let memory = json!({"medium": "Memory", "sizeLimit": "16Mi"});
    ensure_named(volumes, json!({"name": LIBRARY_VOLUME, "emptyDir": memory}));
    if let Some(path) = folder {
        // A pod that is made of one in another namespace names the other's.
        let path = json!({"path": path, "type": "DirectoryOrCreate"});
        ensure_named(volumes, json!({"name": MEET_VOLUME, "hostPath": path}));
        volumes
            .iter_mut()
            .filter(|v| name(v) == MEET_VOLUME)
            .for_each(|v| v["hostPath"] = path.clone());
    }
    let first = list(&mut pod["spec"], "initContainers");
    match first.iter_mut().find(|container| name(container) == INSTALLER) {
        Some(installer) if mounts(installer, MEET_VOLUME) == folder.is_some() => {}
        Some(other) => *other = installer(ours, folder.is_some(), resources),
        None => first.insert(0, installer(ours, folder.is_some(), resources)),
    }
    let notes = &mut pod["metadata"]["annotations"];
    if !notes.is_object() {
        *notes = Value::Object(Map::new());
    }
    notes[INJECTED] = outcome.containers.join(",").into();
    if folder.is_some() {
        let said = notes[EVICTABLE].as_str().unwrap_or_default();
        if !said.split(',').any(|volume| volume.trim() == MEET_VOLUME) {
            let comma = if said.is_empty() { "" } else { "," };
            notes[EVICTABLE] = format!("{said}{comma}{MEET_VOLUME}").into();
        }
    }
}

/// Whether it meets other pods in our directory.
fn into_container(
    container: &mut Value,
    may_meet: bool,
    settings: &[String],
    empty: &HashSet<String>,
) -> Result<bool, String> {
    let mut env = Env::of(container);
    let preload = env.last("LD_PRELOAD");
    if preload.is_some_and(|entry| entry.get("valueFrom").is_some()) {
        return Err(
            "its LD_PRELOAD comes from elsewhere (valueFrom), so nothing can be put in front"
                .into(),
        );
    }
    let existing = preload.and_then(|entry| text_at(entry, &["value"])).unwrap_or_default();
    let value = crate::run::compose_preload(LIBRARY.as_ref(), Some(existing.as_ref()));
    env.set("LD_PRELOAD", &value.to_string_lossy());
    // Where the container's owner names a directory of his own, it is his to mount.
    let meets =
        may_meet && env.last(MEET_VARIABLE).is_none_or(|entry| entry["value"] == MEET_MOUNT);
    if meets {
        env.set(MEET_VARIABLE, MEET_MOUNT);
    }
    for (variable, value) in settings.iter().filter_map(|setting| setting.split_once('=')) {
        if env.last(variable).is_none() {
            env.set(variable, value);
        }
    }
    let env = env.entries;
    let mut mounts = container["volumeMounts"].as_array().cloned().unwrap_or_default();
    let wanted = [
        Some(json!({"name": LIBRARY_VOLUME, "mountPath": LIBRARY_MOUNT, "readOnly": true})),
        meets.then(|| json!({"name": MEET_VOLUME, "mountPath": MEET_MOUNT})),
    ];
    for mount in wanted.into_iter().flatten() {
        mounts::add(&mut mounts, mount, empty)?;
    }
    container["env"] = env.into();
    container["volumeMounts"] = mounts.into();
    Ok(meets)
}

fn mounts(container: &Value, volume: &str) -> bool {
    let mounts = container["volumeMounts"].as_array();
    mounts.into_iter().flatten().any(|mount| mount["name"] == volume)
}
