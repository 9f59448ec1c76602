//! What changes a pod into another, as a JSON patch (RFC 6902) with as few operations as the two differ in.
//!
//! Elements of lists are told apart by their names, as Kubernetes does it: what is put in front of others, or
//! behind them, does not write them anew.

use serde::Serialize;
use serde_json::Value;

#[derive(Serialize, Clone, PartialEq, Debug)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    Add { path: String, value: Value },
    Remove { path: String },
    Replace { path: String, value: Value },
}

pub fn between(before: &Value, after: &Value) -> Vec<Operation> {
    let mut operations = Vec::new();
    value("", before, after, &mut operations);
    operations
}

fn value(path: &str, before: &Value, after: &Value, out: &mut Vec<Operation>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(before), Value::Object(after)) => {
            for (key, old) in before {
                let path = below(path, key);
                match after.get(key) {
                    Some(new) => value(&path, old, new, out),
                    None => out.push(Operation::Remove { path }),
                }
            }
            for (key, new) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
                out.push(Operation::Add { path: below(path, key), value: new.clone() });
            }
        }
        (Value::Array(before), Value::Array(after)) => list(path, before, after, out),
        _ => out.push(Operation::Replace { path: path.into(), value: after.clone() }),
    }
}

/// Those of the same name in front and at the end stay where they are; what lies between goes, or comes.
fn list(path: &str, before: &[Value], after: &[Value], out: &mut Vec<Operation>) {
    let same = |(a, b): &(&Value, &Value)| match (a.get("name"), b.get("name")) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    };
    let front = before.iter().zip(after).take_while(same).count();
    let (old, new) = (&before[front..], &after[front..]);
    let back = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
    // The last of them first: whatever is removed moves those behind it.
    for (i, (old, new)) in old.iter().rev().zip(new.iter().rev()).take(back).enumerate() {
        value(&format!("{path}/{}", before.len() - 1 - i), old, new, out);
    }
    for at in (front..before.len() - back).rev() {
        out.push(Operation::Remove { path: format!("{path}/{at}") });
    }
    for (at, new) in after.iter().enumerate().take(after.len() - back).skip(front) {
        let path = if back == 0 { format!("{path}/-") } else { format!("{path}/{at}") };
        out.push(Operation::Add { path, value: new.clone() });
    }
    for (at, (old, new)) in before.iter().zip(after).enumerate().take(front) {
        value(&format!("{path}/{at}"), old, new, out);
    }
}

fn below(path: &str, key: &str) -> String {
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// By an implementation that is not ours.
    fn applied(before: &Value, operations: &[Operation]) -> Value {
        let patch: json_patch::Patch =
            serde_json::from_value(serde_json::to_value(operations).unwrap()).unwrap();
        let mut document = before.clone();
        json_patch::patch(&mut document, &patch).unwrap();
        document
    }

    #[test]
    fn a_patch_leads_from_one_to_the_other() {
        let n = |name: &str, value: u32| json!({"name": name, "value": value});
        let cases = [
            (json!({"a": 1}), json!({"a": 1}), 0),
            (json!({"a": 1}), json!({"b/c~d": {"x": []}}), 2),
            (json!([n("a", 1), n("b", 2)]), json!([n("a", 1), n("b", 3)]), 1),
            (json!([n("a", 1)]), json!([n("0", 1), n("a", 2)]), 2),
            (json!([n("a", 1)]), json!([n("a", 2), n("b", 2), n("c", 2)]), 3),
            (json!([n("a", 1), n("b", 1), n("c", 1)]), json!([n("a", 1), n("c", 2)]), 2),
            (json!([n("a", 1), n("b", 1)]), json!([]), 2),
            (json!([1, 2, 3]), json!([1, 4, 5, 3]), 3),
            (json!([n("a", 1), n("a", 2)]), json!([n("a", 1), n("a", 3), n("b", 1)]), 2),
            (json!({"x": null}), json!({"x": [1]}), 1),
            (json!({"": [{}]}), json!({"": [{"": 1}]}), 2),
        ];
        for (before, after, count) in cases {
            let operations = between(&before, &after);
            assert_eq!(applied(&before, &operations), after, "{operations:?}");
            assert_eq!(operations.len(), count, "{operations:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_lists(
            before in proptest::collection::vec((0u8..4, 0u8..3), 0..6),
            after in proptest::collection::vec((0u8..4, 0u8..3), 0..6),
        ) {
            let list = |of: &[(u8, u8)]| -> Value {
                of.iter().map(|(name, value)| json!({"name": name.to_string(), "value": value})).collect()
            };
            let (before, after) = (list(&before), list(&after));
            assert_eq!(applied(&before, &between(&before, &after)), after);
        }
    }
}
