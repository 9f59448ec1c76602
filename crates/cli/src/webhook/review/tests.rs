//! Questions as an API server asks them, and the pod after the answer's patch, which is applied by an implementation that is
//! not ours.

use super::*;

const LIBRARY: &str = "/opt/shortwire/libshortwire.so";

fn ours() -> Ours {
    Ours {
        image: "registry.example/shortwire:1".into(),
        pull_policy: None,
        meet: Some("/run/shortwire-pods".into()),
        settings: vec!["SHORTWIRE_AFTER=4".into()],
    }
}

fn question() -> Value {
    serde_json::from_str(include_str!("replicaset.json")).unwrap()
}

/// The question about a pod that was changed before.
fn about(change: impl FnOnce(&mut Value)) -> Value {
    let mut question = question();
    change(&mut question["request"]["object"]);
    question
}

fn response(question: &Value, ours: &Ours) -> Value {
    let answer = answer(question.to_string().as_bytes(), ours).unwrap();
    let response = answer.review["response"].clone();
    assert_eq!(answer.review["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer.review["kind"], "AdmissionReview");
    assert_eq!(
        (&response["allowed"], &response["uid"]),
        (&json!(true), &question["request"]["uid"])
    );
    assert_eq!(response.get("patchType").is_some(), response.get("patch").is_some());
    response
}

/// The pod as it is then, and the warnings.
fn asked(question: &Value, ours: &Ours) -> (Value, Vec<String>) {
    let response = response(question, ours);
    let mut pod = question["request"]["object"].clone();
    if let Some(patch) = response["patch"].as_str() {
        assert_eq!(response["patchType"], "JSONPatch");
        let patch = BASE64_STANDARD.decode(patch).unwrap();
        let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
        json_patch::patch(&mut pod, &patch).unwrap();
    }
    let warnings = response["warnings"].as_array().cloned().unwrap_or_default();
    (pod, warnings.iter().map(|warning| warning.as_str().unwrap().to_string()).collect())
}

fn again(pod: &Value) -> Value {
    about(|object| *object = pod.clone())
}

fn env(pod: &Value, at: &str) -> Vec<(String, String)> {
    let entries = pod.pointer(&format!("/spec/{at}/env")).and_then(Value::as_array);
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or("?").to_string();
    entries.into_iter().flatten().map(|e| (text(e, "name"), text(e, "value"))).collect()
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let entries = pod.pointer(list).and_then(Value::as_array).into_iter().flatten();
    entries.map(|entry| entry["name"].as_str().unwrap().to_string()).collect()
}

#[test]
fn a_pod_gets_library_variables_and_a_directory() {
    let (pod, warnings) = asked(&question(), &ours());
    assert!(warnings.is_empty(), "{warnings:?}");
    let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
    let own = [pair("SHORTWIRE_RENDEZVOUS", "/run/shortwire-pods"), pair("SHORTWIRE_AFTER", "4")];
    let cart = [
        pair("POD_IP", "?"),
        pair("LD_PRELOAD", &format!("{LIBRARY}:/usr/lib/libjemalloc.so.2")),
        pair("REDIS", "localhost:6379"),
    ];
    assert_eq!(env(&pod, "containers/0"), [&cart[..], &own[..]].concat());
    let alone = [pair("LD_PRELOAD", LIBRARY)];
    assert_eq!(env(&pod, "containers/1"), [&alone[..], &own[..]].concat());
    // An init container that ends is left alone, one that goes on is a sidecar.
    assert_eq!(names(&pod, "/spec/initContainers"), ["shortwire-install", "migrate", "shipper"]);
    assert_eq!(env(&pod, "initContainers/1"), []);
    assert_eq!(env(&pod, "initContainers/2"), [&alone[..], &own[..]].concat());
    for mounts in ["initContainers/2", "containers/0", "containers/1"] {
        let mounts = names(&pod, &format!("/spec/{mounts}/volumeMounts"));
        assert!(mounts.ends_with(&["shortwire-library".into(), "shortwire-meet".into()]));
    }
    let meet = pod.pointer("/spec/volumes/3").unwrap();
    assert_eq!(meet["hostPath"]["path"], "/run/shortwire-pods/shop");
    let installer = pod.pointer("/spec/initContainers/0").unwrap();
    // The pod was of class Guaranteed, and is.
    assert_eq!(installer["resources"]["limits"], installer["resources"]["requests"]);
    assert!(installer["resources"]["limits"].is_object());
    let notes = &pod["metadata"]["annotations"];
    assert_eq!(notes["shortwire.dev/injected"], "shipper,cart,redis");
    assert_eq!(notes["prometheus.io/scrape"], "true");
    assert_eq!(
        pod["spec"]["containers"][0]["livenessProbe"],
        question()["request"]["object"]["spec"]["containers"][0]["livenessProbe"]
    );
}

#[test]
fn what_is_there_is_not_patched_again() {
    let (mut pod, _) = asked(&question(), &ours());
    assert!(response(&again(&pod), &ours()).get("patch").is_none());
    // The API server's defaults, a limit range, a registry's mirror and another webhook's containers.
    let installer = &mut pod["spec"]["initContainers"][0];
    installer["terminationMessagePath"] = "/dev/termination-log".into();
    installer["image"] = "mirror.example/shortwire:1".into();
    installer["resources"]["requests"]["cpu"] = "60m".into();
    let first = json!({"name": "vault-agent-init", "image": "vault"});
    pod["spec"]["initContainers"].as_array_mut().unwrap().insert(0, first);
    for at in 0..2 {
        let env = pod["spec"]["containers"][at]["env"].as_array_mut().unwrap();
        env.push(json!({"name": "OTEL_SERVICE_NAME", "value": "cart"}));
    }
    assert!(response(&again(&pod), &ours()).get("patch").is_none());
    // Another library in front of ours goes behind it.
    pod["spec"]["containers"][1]["env"][0]["value"] = format!("other.so:{LIBRARY}").into();
    let (pod, _) = asked(&again(&pod), &ours());
    assert_eq!(env(&pod, "containers/1")[0].1, format!("{LIBRARY}:other.so"));
}

#[test]
fn a_mesh_that_comes_behind_takes_all_of_it_out() {
    let original = question()["request"]["object"].clone();
    let (mut pod, _) = asked(&question(), &ours());
    let proxy = json!({"name": "linkerd-proxy", "image": "cr.l5d.io/linkerd/proxy:edge"});
    pod["spec"]["containers"].as_array_mut().unwrap().push(proxy.clone());
    let (pod, warnings) = asked(&again(&pod), &ours());
    let mut meshed = original;
    meshed["spec"]["containers"].as_array_mut().unwrap().push(proxy);
    assert_eq!(pod, meshed);
    assert!(warnings[0].contains("Linkerd (container linkerd-proxy)"), "{warnings:?}");
    // A pod without anything of the kind becomes what it was, too.
    let bare = |pod: &mut Value| {
        *pod = json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}});
    };
    let (mut pod, _) = asked(&about(bare), &ours());
    assert_ne!(pod, about(bare)["request"]["object"]);
    pod["spec"]["hostNetwork"] = true.into();
    let (mut pod, _) = asked(&again(&pod), &ours());
    pod["spec"].as_object_mut().unwrap().remove("hostNetwork");
    assert_eq!(pod, about(bare)["request"]["object"]);
}

#[test]
fn pods_that_stay_as_they_are() {
    type Change = fn(&mut Value);
    let cases: &[(Change, &str)] = &[
        (|pod| pod["metadata"]["labels"]["shortwire.dev/inject"] = "disabled".into(), ""),
        (|pod| pod["metadata"]["annotations"]["shortwire.dev/inject"] = "false".into(), ""),
        (
            |pod| {
                pod["metadata"]["annotations"]["shortwire.dev/exclude-containers"] =
                    "cart, redis,shipper".into()
            },
            "",
        ),
        (|pod| pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "5c1f".into(), ""),
        (|pod| pod["spec"]["hostNetwork"] = true.into(), "hostNetwork"),
        (|pod| pod["metadata"]["annotations"]["sidecar.istio.io/status"] = "{}".into(), "Istio"),
        (|pod| pod["metadata"]["labels"]["sidecar.istio.io/inject"] = "true".into(), "Istio"),
        (|pod| pod["spec"]["initContainers"][0]["name"] = "kuma-init".into(), "Kuma"),
        (
            |pod| {
                pod["metadata"]["annotations"]["policy.cilium.io/proxy-visibility"] =
                    "<Ingress/80/TCP/HTTP>".into()
            },
            "Cilium",
        ),
        (|pod| pod["spec"]["os"]["name"] = "windows".into(), "Windows"),
        (|pod| pod["spec"]["runtimeClassName"] = "kata-qemu".into(), "kata-qemu"),
        (
            |pod| pod["spec"]["volumes"][0]["name"] = "shortwire-library".into(),
            "volume shortwire-library",
        ),
        (|pod| pod["spec"]["containers"] = "x".into(), "shape"),
        (
            |pod| pod["spec"]["containers"] = vec![json!({"name": "x"}); 199].into(),
            "more than 200 containers",
        ),
    ];
    for (change, why) in cases {
        let question = about(change);
        let (pod, warnings) = asked(&question, &ours());
        assert_eq!(pod, question["request"]["object"], "{why}");
        assert_eq!(warnings.is_empty(), why.is_empty(), "{why}: {warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains(why)), "{why}: {warnings:?}");
    }
    for namespace in ["kube-system", "../../etc", "", "Shop", "a/b"] {
        let mut question = question();
        question["request"]["namespace"] = namespace.into();
        let (pod, warnings) = asked(&question, &ours());
        assert_eq!(
            (pod, warnings.len()),
            (question["request"]["object"].clone(), 1),
            "{namespace}"
        );
    }
}

#[test]
fn containers_that_stay_as_they_are() {
    let from =
        json!({"name": "LD_PRELOAD", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}});
    let (pod, warnings) =
        asked(&about(|pod| pod["spec"]["containers"][0]["env"][1] = from.clone()), &ours());
    assert_eq!(env(&pod, "containers/0").len(), 3);
    assert_eq!(env(&pod, "containers/1")[0].1, LIBRARY);
    assert!(
        warnings.len() == 1
            && warnings[0].contains("container cart")
            && warnings[0].contains("valueFrom")
    );
    assert_eq!(pod["metadata"]["annotations"]["shortwire.dev/injected"], "shipper,redis");

    let (pod, warnings) = asked(
        &about(|pod| {
            pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] = "/opt/shortwire/".into()
        }),
        &ours(),
    );
    assert_eq!(env(&pod, "containers/0").len(), 3);
    assert!(warnings[0].contains("volume data is mounted at /opt/shortwire"), "{warnings:?}");

    // Another webhook mounts something in the way when ours has been: all of ours goes out of that container.
    let (mut pod, _) = asked(&question(), &ours());
    let mount = json!({"name": "data", "mountPath": "/opt", "readOnly": true});
    let mounts = pod.pointer_mut("/spec/containers/0/volumeMounts").unwrap();
    mounts.as_array_mut().unwrap().push(mount);
    let (pod, warnings) = asked(&again(&pod), &ours());
    assert!(warnings[0].contains("volume data is mounted at /opt, in the way"), "{warnings:?}");
    assert_eq!(env(&pod, "containers/0").len(), 3);
    assert!(!pod["spec"]["containers"][0].to_string().contains("shortwire"), "{pod}");
    assert_eq!(pod["metadata"]["annotations"]["shortwire.dev/injected"], "shipper,redis");

    let (pod, warnings) = asked(
        &about(|pod| {
            pod["metadata"]["annotations"]["shortwire.dev/exclude-containers"] = "redis".into()
        }),
        &ours(),
    );
    assert!(warnings.is_empty() && env(&pod, "containers/1").is_empty());
    assert_eq!(env(&pod, "containers/0").len(), 5);
}

#[test]
fn what_the_owner_says_goes_before_ours() {
    let (pod, warnings) = asked(
        &about(|pod| {
            pod["metadata"]["annotations"]["shortwire.dev/set"] =
                "SPIN=0, AFTER=x,DMB_SIZE=64K".into();
            pod["spec"]["containers"][1]["env"] = json!([
                {"name": "LD_PRELOAD", "value": "first.so"},
                {"name": "SHORTWIRE_AFTER", "value": "9"},
                {"name": "SHORTWIRE_RENDEZVOUS", "value": "/meet"},
                {"name": "LD_PRELOAD", "value": "last.so"},
            ]);
        }),
        &ours(),
    );
    let of_redis = env(&pod, "containers/1");
    let value = |name: &str| of_redis.iter().rev().find(|entry| entry.0 == name).unwrap().1.clone();
    assert_eq!(value("LD_PRELOAD"), format!("{LIBRARY}:last.so"));
    assert_eq!(of_redis[0].1, "first.so");
    assert_eq!((value("SHORTWIRE_AFTER"), value("SHORTWIRE_SPIN")), ("9".into(), "0".into()));
    assert_eq!(
        (value("SHORTWIRE_RENDEZVOUS"), value("SHORTWIRE_DMB_SIZE")),
        ("/meet".into(), "64K".into())
    );
    assert_eq!(names(&pod, "/spec/containers/1/volumeMounts"), ["shortwire-library"]);
    assert_eq!(env(&pod, "containers/0").last().unwrap().0, "SHORTWIRE_AFTER");
    assert!(warnings.len() == 1 && warnings[0].contains("AFTER=x is left out"), "{warnings:?}");
    assert!(response(&again(&pod), &ours()).get("patch").is_none());
}

/// What Pod Security asks of volumes and containers under `restricted`.
#[test]
fn within_pods_nothing_of_the_node_and_no_root() {
    let mut cases = vec![(question(), Ours { meet: None, ..ours() }, 0)];
    cases.push((
        about(|pod| pod["metadata"]["annotations"]["shortwire.dev/rendezvous"] = "none".into()),
        ours(),
        0,
    ));
    cases.push((about(|pod| pod["spec"]["hostUsers"] = false.into()), ours(), 1));
    for (question, ours, warned) in cases {
        let (pod, warnings) = asked(&question, &ours);
        assert_eq!(warnings.len(), warned, "{warnings:?}");
        assert!(!pod.to_string().contains("hostPath") && !pod.to_string().contains("RENDEZVOUS"));
        let installer = &pod["spec"]["initContainers"][0];
        assert_eq!(
            installer["securityContext"],
            json!({
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": true,
                "runAsNonRoot": true, "runAsUser": 65534, "runAsGroup": 65534, "seccompProfile": {"type": "RuntimeDefault"},
            })
        );
        assert_eq!(env(&pod, "containers/1")[0].1, LIBRARY);
    }
}

/// A pod that is made of one elsewhere, as by `kubectl get -o yaml`, gets its own namespace's directory, or none.
#[test]
fn a_copied_pod_does_not_meet_those_of_another_namespace() {
    let (pod, _) = asked(&question(), &ours());
    let mut elsewhere = again(&pod);
    elsewhere["request"]["namespace"] = "bank".into();
    let (copy, _) = asked(&elsewhere, &ours());
    let text = copy.to_string();
    assert!(
        text.contains("/run/shortwire-pods/bank") && !text.contains("/run/shortwire-pods/shop"),
        "{text}"
    );
    let within = Ours { meet: None, ..ours() };
    let (copy, _) = asked(&elsewhere, &within);
    assert_eq!(copy, asked(&question(), &within).0);
    let mut less = again(&pod);
    less["request"]["object"]["metadata"]["annotations"]["shortwire.dev/exclude-containers"] =
        "cart".into();
    let (copy, _) = asked(&less, &ours());
    assert_eq!(
        copy["spec"]["containers"][0],
        question()["request"]["object"]["spec"]["containers"][0]
    );
    assert_eq!(copy["metadata"]["annotations"]["shortwire.dev/injected"], "shipper,redis");
    let mut not = again(&pod);
    not["request"]["object"]["metadata"]["annotations"]["shortwire.dev/rendezvous"] = "none".into();
    let (copy, _) = asked(&not, &ours());
    assert!(!copy.to_string().contains("shortwire-meet"), "{copy}");
    assert_eq!(copy["spec"]["initContainers"][0]["securityContext"]["runAsNonRoot"], true);
}

#[test]
fn only_new_pods_are_changed() {
    for (key, value) in [
        ("operation", json!("UPDATE")),
        ("operation", Value::Null),
        ("subResource", json!("ephemeralcontainers")),
        ("resource", json!({"group": "apps", "version": "v1", "resource": "deployments"})),
        ("resource", Value::Null),
    ] {
        let mut question = question();
        question["request"][key] = value;
        let response = response(&question, &ours());
        assert_eq!(response.as_object().unwrap().len(), 2, "{response}");
    }
}

#[test]
fn questions_of_too_many_values_are_known_before_they_are_read() {
    assert!(!has_too_many_values(question().to_string().as_bytes()));
    for (sign, most) in
        [("{", MOST_VALUES), ("[", MOST_VALUES), (",", MOST_VALUES), ("{},", MOST_VALUES / 2)]
    {
        assert!(!has_too_many_values(sign.repeat(most).as_bytes()), "{sign}");
        assert!(has_too_many_values(sign.repeat(most + 1).as_bytes()), "{sign}");
    }
    assert!(!has_too_many_values(&[b' '; 1 << 20]));
}

#[test]
fn what_is_no_question_gets_no_answer() {
    let good = question().to_string();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let mut cases =
        vec![String::new(), "null".into(), "{}".into(), good[..good.len() - 1].into(), deep];
    for (path, value) in
        [("/kind", "Pod"), ("/apiVersion", "admission.k8s.io/v1beta1"), ("/request/uid", "")]
    {
        let mut question = question();
        *question.pointer_mut(path).unwrap() = value.into();
        cases.push(question.to_string());
    }
    for case in cases {
        assert!(answer(case.as_bytes(), &ours()).is_err(), "{case:.80}");
    }
    assert!(answer(b"\xff\xfe", &ours()).is_err());
}

/// Whatever stands in place of whatever is in a pod: an answer, a patch that can be applied, and nothing more the second time.
#[test]
fn pods_of_any_shape() {
    fn paths(value: &Value, at: String, found: &mut Vec<String>) {
        match value {
            Value::Object(all) => all.iter().for_each(|(key, value)| {
                let key = key.replace('~', "~0").replace('/', "~1");
                paths(value, format!("{at}/{key}"), found);
            }),
            Value::Array(all) => {
                all.iter()
                    .enumerate()
                    .for_each(|(i, value)| paths(value, format!("{at}/{i}"), found));
            }
            _ => {}
        }
        found.push(at);
    }
    let injected = asked(&question(), &ours()).0;
    for pod in [question()["request"]["object"].clone(), injected] {
        let mut all = Vec::new();
        paths(&pod, String::new(), &mut all);
        for path in all {
            for wrong in [
                json!(null),
                json!(5),
                json!("istio-proxy"),
                json!([]),
                json!([[]]),
                json!({}),
                json!({"name": "x"}),
            ] {
                let mut changed = pod.clone();
                *changed.pointer_mut(&path).unwrap() = wrong;
                let (after, warnings) = asked(&again(&changed), &ours());
                assert!(warnings.iter().all(|warning| warning.len() <= 200));
                assert_eq!(asked(&again(&after), &ours()).0, after, "{path}");
            }
        }
    }
}

#[test]
fn warnings_are_short_and_plain() {
    let name = format!("a\u{1b}[31m\n{}", "ä".repeat(300));
    let (_, warnings) = asked(
        &about(|pod| {
            pod["spec"]["containers"][0]["name"] = name.into();
            pod["spec"]["containers"][0]["env"][1] = json!({"name": "LD_PRELOAD", "valueFrom": {}});
        }),
        &ours(),
    );
    assert!(warnings[0].len() <= 200 && !warnings[0].chars().any(char::is_control), "{warnings:?}");
    for (words, count) in [(2000, 8), (200_000, 1)] {
        let set = "x ".repeat(words);
        let (_, warnings) = asked(
            &about(|pod| pod["metadata"]["annotations"]["shortwire.dev/set"] = set.into()),
            &ours(),
        );
        assert_eq!(warnings.len(), count, "{warnings:?}");
    }
}
