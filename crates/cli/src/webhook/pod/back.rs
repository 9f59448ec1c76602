//! What was put into a pod, taken out again.

use serde_json::Value;

use super::entries::{Env, entries_mut, remove_named, take_from_list};
use super::leave::foreign;
use super::{
    EVICTABLE, INJECTED, INSTALLER, LIBRARY, LIBRARY_VOLUME, MEET_MOUNT, MEET_VARIABLE,
    MEET_VOLUME, mounts, name,
};

/// Takes the directory out: it is not, or no longer, for this pod.
pub fn take_meet(pod: &mut Value) {
    let spec = &mut pod["spec"];
    remove_named(spec, "volumes", &[MEET_VOLUME]);
    for kind in ["initContainers", "containers"] {
        for container in entries_mut(spec, kind).filter(|c| mounts(c, MEET_VOLUME)) {
            // The one that opens it to others is made anew.
            if name(container) != INSTALLER {
                remove_named(container, "volumeMounts", &[MEET_VOLUME]);
                let mut env = Env::of(container);
                env.remove(MEET_VARIABLE, MEET_MOUNT);
                env.back_into(container);
            }
        }
    }
    if let Some(notes) = pod.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        take_from_list(notes, EVICTABLE, MEET_VOLUME);
    }
}

/// Takes everything out of one container.
pub fn take_from(container: &mut Value, settings: &[String]) {
    if !mounts(container, LIBRARY_VOLUME) {
        return;
    }
    remove_named(container, "volumeMounts", &[LIBRARY_VOLUME, MEET_VOLUME]);
    let mut env = Env::of(container);
    env.without_library(LIBRARY);
    env.remove(MEET_VARIABLE, MEET_MOUNT);
    for (variable, value) in settings.iter().filter_map(|setting| setting.split_once('=')) {
        env.remove(variable, value);
    }
    env.back_into(container);
}

/// Takes out what `inject` has put in: a mesh's webhook came behind ours, or the pod is made of one that had it.
pub fn take_back(pod: &mut Value, settings: &[String]) {
    if foreign(&pod["spec"]).is_some() {
        return;
    }
    take_meet(pod);
    let spec = &mut pod["spec"];
    remove_named(spec, "initContainers", &[INSTALLER]);
    remove_named(spec, "volumes", &[LIBRARY_VOLUME]);
    for kind in ["initContainers", "containers"] {
        entries_mut(spec, kind).for_each(|container| take_from(container, settings));
    }
    if let Some(notes) = pod.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
        && notes.remove(INJECTED).is_some()
        && notes.is_empty()
        && let Some(metadata) = pod["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
}
