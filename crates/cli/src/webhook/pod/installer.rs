//! The init container that brings the library.

use serde_json::{Value, json};

use super::{
    INSTALLER, LIBRARY, LIBRARY_MOUNT, LIBRARY_VOLUME, MEET_MOUNT, MEET_VOLUME, Ours, containers,
    name,
};

/// Whoever has neither rights nor files.
const NOBODY: u32 = 65534;

/// Brings the library. Whatever happens in it, the pod starts: without the library the loader says so and goes on.
pub fn installer(ours: &Ours, meets: bool, resources: Option<Value>) -> Value {
    // A file that programs may have mapped is replaced, never written over.
    let mut script = format!(
        "cp /usr/lib/shortwire/libshortwire.so {LIBRARY_MOUNT}/new && mv -f {LIBRARY_MOUNT}/new {LIBRARY}; "
    );
    let mut mounts = vec![json!({"name": LIBRARY_VOLUME, "mountPath": LIBRARY_MOUNT})];
    // Only root may open the directory, which the kubelet has made for root, to the pods' users.
    let user = if meets { 0 } else { NOBODY };
    if meets {
        script += &format!("chmod 1777 {MEET_MOUNT}; ");
        mounts.push(json!({"name": MEET_VOLUME, "mountPath": MEET_MOUNT}));
    }
    let mut container = json!({
        "name": INSTALLER,
        "image": ours.image,
        "command": ["/bin/sh", "-c", script + "exit 0"],
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": !meets,
            "runAsUser": user,
            "runAsGroup": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": mounts,
    });
    if let Some(policy) = &ours.pull_policy {
        container["imagePullPolicy"] = policy.as_str().into();
    }
    if let Some(resources) = resources {
        container["resources"] = resources;
    }
    container
}

/// What the init container asks for; nothing if the pod's containers ask for nothing. A quota wants both of every container,
/// and the pod is of class Guaranteed only while they are equal everywhere. Those of a container of the pod are within what
/// the namespace allows, and no more than the pod needs anyway.
pub fn resources(pod: &Value) -> Option<Value> {
    let asking = || {
        containers(pod).filter(|container| name(container) != INSTALLER).filter_map(|container| {
            container["resources"].as_object().filter(|resources| !resources.is_empty())
        })
    };
    asking().next()?;
    let mut all = json!({"requests": {}, "limits": {}});
    for (kind, otherwise) in [("cpu", "50m"), ("memory", "32Mi")] {
        let found = asking().find_map(|resources| {
            let of = |list: &str| {
                let amount = resources.get(list)?.get(kind)?;
                (amount.is_string() || amount.is_number()).then(|| amount.clone())
            };
            // As the API server has it: who has a limit alone requests as much.
            let limit = of("limits")?;
            Some((of("requests").unwrap_or_else(|| limit.clone()), limit))
        });
        let (request, limit) = found.unwrap_or_else(|| (otherwise.into(), otherwise.into()));
        all["requests"][kind] = request;
        all["limits"][kind] = limit;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_those_of_a_container_of_the_pod() {
        let of = |first: Value, second: Value| {
            resources(&json!({"spec": {"containers": [
                {"name": "a", "resources": first}, {"name": "b", "resources": second},
            ], "initContainers": [
                {"name": INSTALLER, "resources": {"limits": {"cpu": "1m", "memory": "1Mi"}}},
            ]}}))
        };
        let all = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
        let four = all(json!({"cpu": 1, "memory": "1Gi"}), json!({"cpu": "2", "memory": "2Gi"}));
        let some = json!({"cpu": "50m", "memory": "32Mi"});
        assert_eq!(of(Value::Null, json!({})), None);
        assert_eq!(of(Value::Null, four.clone()), Some(four.clone()));
        assert_eq!(of(json!({"requests": {"cpu": "5m"}}), four.clone()), Some(four));
        // Without one that has it all: by what there is.
        let requests = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
        assert_eq!(of(requests, Value::Null), Some(all(some.clone(), some.clone())));
        let memory = json!({"limits": {"memory": "512Mi"}});
        let both = json!({"cpu": "50m", "memory": "512Mi"});
        assert_eq!(of(memory, Value::Null), Some(all(both.clone(), both)));
        let wrong = json!({"requests": {"cpu": []}, "limits": {"cpu": {}, "memory": null}});
        assert_eq!(of(wrong, json!("x")), Some(all(some.clone(), some)));
    }
}
