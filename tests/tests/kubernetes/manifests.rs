//! The manifests and the chart, as far as that goes without a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use system_tests::{Case, Skip, case, need, secs, shortwire, skip};

use crate::{dry_run, review};

/// Reads manifests: every field has a name that the API knows, where a validator is installed; what must hold for the webhook to
/// fail open and to ask for the right pods.
const CHECK: &str = "
import sys
try: import yaml
except ImportError: sys.exit(77)
with open(sys.argv[1]) as file: objects = list(yaml.safe_load_all(file))
kinds = {o['kind']: o for o in objects}
deployment, service = kinds['Deployment'], kinds['Service']
template = deployment['spec']['template']
container = template['spec']['containers'][0]
assert service['spec']['selector'].items() <= template['metadata']['labels'].items()
assert deployment['spec']['selector']['matchLabels'].items() <= template['metadata']['labels'].items()
assert template['metadata']['labels']['shortwire.dev/inject'] == 'disabled'
volumes = {v['name'] for v in template['spec']['volumes']}
assert {m['name'] for m in container['volumeMounts']} <= volumes
# Clients that hold all the seats are no reason to end it.
assert 'tcpSocket' in container['livenessProbe'] and 'httpGet' in container['readinessProbe']
hooks = kinds['MutatingWebhookConfiguration']['webhooks']
assert len(hooks) == 4 and len({h['name'] for h in hooks}) == 4
for hook in hooks:
    by, kind = hook['name'].split('.')[:2]
    assert (hook['failurePolicy'], hook['sideEffects'], hook['reinvocationPolicy']) == ('Ignore', 'None', 'IfNeeded')
    assert hook['admissionReviewVersions'] == ['v1'] and hook['timeoutSeconds'] <= 5
    assert hook['rules'] == [{'operations': ['CREATE'], 'apiGroups': [''], 'apiVersions': ['v1'], 'resources': ['pods'], 'scope': 'Namespaced'}]
    called = hook['clientConfig']['service']
    assert (called['name'], called['namespace']) == (service['metadata']['name'], service['metadata']['namespace'])
    assert called['path'] == ('/inject' if kind == 'node' else '/inject/within')
    namespaces = {(e['key'], e['operator']): e.get('values') for e in hook['namespaceSelector']['matchExpressions']}
    assert {'kube-system', service['metadata']['namespace']} <= set(namespaces['kubernetes.io/metadata.name', 'NotIn'])
    assert namespaces['pod-security.kubernetes.io/enforce', 'NotIn' if kind == 'node' else 'In'] == ['baseline', 'restricted']
    pods = hook['objectSelector']['matchExpressions']
    asked = {'key': 'shortwire.dev/inject', 'operator': 'In', 'values': ['enabled']}
    assert (asked in pods) == (by == 'pod') and (asked in hook['namespaceSelector']['matchExpressions']) == (by == 'namespace')
print(' '.join(container['command'] + container['args']))
try: import kubernetes_validate
except ImportError: sys.exit()
for o in objects:
    if o['apiVersion'].split('/')[0] != 'cert-manager.io': kubernetes_validate.validate(o, '1.33', strict=True)
print('validated')
";

/// Whether all fields of a pod have names that the API knows.
const CHECK_POD: &str = "
import json, sys, kubernetes_validate
with open(sys.argv[1]) as file: kubernetes_validate.validate(json.load(file), '1.33', strict=True)
";

/// What is printed tells the arguments of the command, and whether names of fields were looked up.
fn check(c: &Case, file: &Path) -> Result<String, Skip> {
    let mut command = Command::new(need("python3")?);
    let mut check = c.start("check", command.args(["-c", CHECK]).arg(file));
    match check.wait(secs(60)).code() {
        Some(77) => skip("python3 has no yaml"),
        Some(0) => Ok(check.stdout()),
        _ => panic!("{}: {}", file.display(), check.stderr()),
    }
}

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/kubernetes").join(name)
}

#[test]
fn manifests() {
    case("webhook-manifests", |c| {
        let said = check(c, &packaged("shortwire.yaml"))?;
        // The command takes the arguments that are given to it: it fails for want of the files only.
        let words = said.lines().next().unwrap_or_default().split(' ').skip(1);
        let mut started = c.start("arguments", Command::new(shortwire()).args(words));
        assert_eq!(started.wait(secs(60)).code(), Some(1));
        assert!(started.stderr().contains("cannot read /tls/tls.crt"), "{}", started.stderr());
        if !said.contains("validated") {
            return skip("python3 has no kubernetes_validate: names of fields are not looked up");
        }
        let mut question = review();
        question["request"]["object"]["metadata"]["name"] = "cart".into();
        for meet in ["/run/shortwire-pods", "none"] {
            let told = dry_run(c, &question, &["--json", "--rendezvous", meet]);
            let told: Value = serde_json::from_str(&told).expect("JSON");
            let file = c.dir().join("pod.json");
            fs::write(&file, told["pod"].to_string()).expect("a pod");
            let mut command = Command::new(need("python3")?);
            c.start("check-pod", command.args(["-c", CHECK_POD]).arg(&file)).success(secs(60));
        }
        Ok(())
    });
}

#[test]
fn chart() {
    case("webhook-chart", |c| {
        let helm = need("helm")?;
        let render = |name: &str, values: &str| {
            let mut command = Command::new(&helm);
            command.args(["template", "shortwire"]).arg(packaged("chart"));
            command.args(["-n", "shortwire-system", "--kube-version", "1.33.0", "--set", values]);
            c.start(name, command.env("HOME", c.dir())).success(secs(60))
        };
        let given =
            "certificate.from=secret,certificate.secretName=shortwire-tls,certificate.ca=CA";
        let text = fs::read_to_string(packaged("shortwire.yaml")).expect("the manifest");
        let objects = &text[text.find("---").expect("objects")..];
        assert_eq!(render("given", given), objects, "shortwire.yaml is not what the chart makes");
        for values in [
            "certificate.from=generated",
            "certificate.from=cert-manager,rendezvous=none,settings={AFTER=4}",
        ] {
            let file = c.dir().join("rendered.yaml");
            fs::write(&file, render("values", values)).expect("a file");
            check(c, &file)?;
        }
        Ok(())
    });
}
