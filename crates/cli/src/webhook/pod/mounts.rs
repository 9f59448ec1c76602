//! Where something is mounted in a container, and whether there is room for what comes in beside it.

use std::collections::HashSet;

use serde_json::Value;

use super::{name, text_at};

/// Names of the volumes in which a runtime may make a folder to mount something at.
pub fn empty_volumes(spec: &Value) -> HashSet<String> {
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    volumes.filter(|v| v["emptyDir"].is_object()).map(|v| name(v).into()).collect()
}

/// Puts a mount among others, unless it is there. One that is in its way is the error: a runtime would fail to make
/// the folder for it, or for the other one, at each start of the container.
pub fn add(mounts: &mut Vec<Value>, mount: Value, empty: &HashSet<String>) -> Result<(), String> {
    let wanted = text_at(&mount, &["mountPath"]).unwrap_or_default();
    let path = parts(wanted);
    let mut is_there = false;
    for other in mounts.iter() {
        let Some(at) = text_at(other, &["mountPath"]) else { continue };
        let others = parts(at);
        if others == path && other["name"] == mount["name"] {
            is_there = true;
            continue;
        }
        let has_room = empty.contains(name(other)) && other["readOnly"] != true;
        if others.starts_with(&path) || (path.starts_with(&others) && !has_room) {
            let volume = name(other);
            return Err(format!("volume {volume} is mounted at {at}, in the way of {wanted}"));
        }
    }
    if !is_there {
        mounts.push(mount);
    }
    Ok(())
}

/// Of an absolute path. In images /var/run is a link to /run.
fn parts(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    if parts.starts_with(&["var", "run"]) {
        parts.remove(0);
    }
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_mounted_above_or_below_is_in_the_way() {
        let spec = json!({"volumes": [
            {"name": "scratch", "emptyDir": {}}, {"name": "disk", "persistentVolumeClaim": {"claimName": "x"}},
        ]});
        let empty = empty_volumes(&spec);
        let disk = |at: &str| json!({"name": "disk", "mountPath": at});
        let scratch = |at: &str| json!({"name": "scratch", "mountPath": at});
        let read_only = |at: &str| json!({"name": "scratch", "mountPath": at, "readOnly": true});
        for (other, at, has_room) in [
            (disk("/opt"), "/opt/shortwire", false),
            (disk("//opt/"), "/opt/shortwire", false),
            (disk("/opt/../opt/./shortwire/"), "/opt/shortwire", false),
            (disk("/"), "/opt/shortwire", false),
            (disk("/opt/shortwire/conf"), "/opt/shortwire", false),
            (disk("/opt/shortwired"), "/opt/shortwire", true),
            (disk("/opt/app"), "/opt/shortwire", true),
            (scratch("/opt"), "/opt/shortwire", true),
            (read_only("/opt"), "/opt/shortwire", false),
            (scratch("/opt/shortwire"), "/opt/shortwire", false),
            (scratch("/opt/shortwire/conf"), "/opt/shortwire", false),
            (disk("/var/run"), "/run/shortwire-pods", false),
            (scratch("/var/run/"), "/run/shortwire-pods", true),
            (disk("/var//run/shortwire-pods"), "/run/shortwire-pods", false),
            (disk("/var/run/secrets/kubernetes.io"), "/run/shortwire-pods", true),
            (disk("/var"), "/run/shortwire-pods", true),
            (json!({"name": "disk"}), "/run/shortwire-pods", true),
        ] {
            let mut mounts = vec![other.clone()];
            let ours = json!({"name": "ours", "mountPath": at});
            let added = add(&mut mounts, ours.clone(), &empty);
            assert_eq!(added.is_ok(), has_room, "{other} {at}");
            assert_eq!(mounts.len(), 1 + usize::from(has_room), "{other} {at}");
            if has_room {
                add(&mut mounts, ours, &empty).unwrap();
                assert_eq!(mounts.len(), 2, "it was there");
            }
        }
    }
}
