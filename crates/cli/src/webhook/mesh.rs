//! Pods that somebody else stands between: the proxies of a mesh see, secure and count what the programs of a pod say, and
//! what goes through shared memory would pass them by. Such pods are left alone.
//!
//! A mesh's webhook may come before ours, and then its containers are there, or behind it, and then only the wish is. What a
//! namespace asks for is not seen here; the webhook's configuration leaves out namespaces by label.

use serde_json::Value;

use super::pod::{containers, name, text_at};

/// Containers by which a pod is known to be meshed, and by whom.
const CONTAINERS: &[(&str, &str)] = &[
    ("istio-proxy", "Istio"),
    ("istio-init", "Istio"),
    ("istio-validation", "Istio"),
    ("linkerd-proxy", "Linkerd"),
    ("linkerd-init", "Linkerd"),
    ("kuma-sidecar", "Kuma"),
    ("kuma-init", "Kuma"),
    ("kuma-validation", "Kuma"),
    ("consul-dataplane", "Consul"),
    ("consul-connect-inject-init", "Consul"),
    ("nginx-mesh-sidecar", "NGINX Service Mesh"),
    ("proxyinit", "App Mesh"),
    ("osm-init", "Open Service Mesh"),
    ("cilium-envoy", "Cilium"),
];

/// Labels and annotations that say so, with the values by which they say the opposite.
const MARKS: &[(&str, &[&str], &str)] = &[
    ("sidecar.istio.io/status", &[], "Istio"),
    ("sidecar.istio.io/inject", &["false"], "Istio"),
    ("istio.io/rev", &[], "Istio"),
    ("istio.io/dataplane-mode", &["none"], "Istio"),
    ("ambient.istio.io/redirection", &["disabled"], "Istio"),
    ("linkerd.io/inject", &["disabled"], "Linkerd"),
    ("linkerd.io/proxy-version", &[], "Linkerd"),
    ("linkerd.io/control-plane-ns", &[], "Linkerd"),
    ("kuma.io/sidecar-injection", &["disabled", "false"], "Kuma"),
    ("kuma.io/sidecar-injected", &["false"], "Kuma"),
    ("consul.hashicorp.com/connect-inject", &["false"], "Consul"),
    ("consul.hashicorp.com/connect-inject-status", &[], "Consul"),
    ("consul.hashicorp.com/transparent-proxy", &["false"], "Consul"),
    ("injector.nsm.nginx.com/auto-inject", &["false"], "NGINX Service Mesh"),
    ("appmesh.k8s.aws/sidecarInjectorWebhook", &["disabled"], "App Mesh"),
    ("openservicemesh.io/sidecar-injection", &["disabled"], "Open Service Mesh"),
    ("osm-proxy-uuid", &[], "Open Service Mesh"),
    ("policy.cilium.io/proxy-visibility", &[], "Cilium"),
    ("io.cilium.proxy-visibility", &[], "Cilium"),
    ("cilium.io/proxy-visibility", &[], "Cilium"),
];

/// By which mesh, and what says so.
pub fn of(pod: &Value) -> Option<(&'static str, String)> {
    let found = containers(pod).find_map(|container| {
        let (name, mesh) = CONTAINERS.iter().find(|(known, _)| *known == name(container))?;
        Some((*mesh, format!("container {name}")))
    });
    found.or_else(|| {
        MARKS.iter().find_map(|(key, not, mesh)| {
            let value = ["labels", "annotations"]
                .iter()
                .find_map(|kind| text_at(pod, &["metadata", kind, key]))?;
            let says = !not.contains(&value.to_ascii_lowercase().as_str());
            says.then(|| (*mesh, format!("{key}: {value}")))
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn meshes_are_known_by_containers_and_by_what_is_asked_for() {
        let pod = |name: &str, value: &str, container: &str| {
            json!({"metadata": {"annotations": {name: value}},
                "spec": {"containers": [{"name": "web"}], "initContainers": [{"name": container}]}})
        };
        for (name, value, container, mesh) in [
            ("x", "", "istio-proxy", Some("Istio")),
            ("x", "", "linkerd-init", Some("Linkerd")),
            ("linkerd.io/inject", "enabled", "c", Some("Linkerd")),
            ("linkerd.io/inject", "ingress", "c", Some("Linkerd")),
            ("linkerd.io/inject", "disabled", "c", None),
            ("sidecar.istio.io/inject", "True", "c", Some("Istio")),
            ("sidecar.istio.io/inject", "False", "c", None),
            ("consul.hashicorp.com/connect-inject", "true", "c", Some("Consul")),
            ("kuma.io/sidecar-injection", "enabled", "c", Some("Kuma")),
            ("policy.cilium.io/proxy-visibility", "<Ingress/80/TCP/HTTP>", "c", Some("Cilium")),
            ("prometheus.io/scrape", "true", "c", None),
        ] {
            let found = of(&pod(name, value, container));
            assert_eq!(found.map(|(mesh, _)| mesh), mesh, "{name}: {value}, {container}");
        }
        let labelled = json!({"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}},
            "spec": {"containers": []}});
        let said = of(&labelled);
        assert_eq!(said, Some(("Istio", "istio.io/dataplane-mode: ambient".into())));
    }
}
