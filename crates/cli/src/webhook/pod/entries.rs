//! Lists of named entries in a pod, and the one of variables.

use serde_json::{Map, Value, json};

use super::name;

/// The list of this name, which is made if there is none.
pub fn list<'a>(of: &'a mut Value, kind: &str) -> &'a mut Vec<Value> {
    if !of[kind].is_array() {
        of[kind] = Value::Array(Vec::new());
    }
    of[kind].as_array_mut().expect("it was made a list")
}

/// Those of the list of this name, if there is one.
pub fn entries_mut<'a>(of: &'a mut Value, kind: &str) -> impl Iterator<Item = &'a mut Value> {
    of.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten()
}

pub fn ensure_named(list: &mut Vec<Value>, entry: Value) {
    if !list.iter().any(|other| name(other) == name(&entry)) {
        list.push(entry);
    }
}

/// A list that becomes empty goes, too.
pub fn remove_named(of: &mut Value, kind: &str, names: &[&str]) {
    let Some(list) = of.get_mut(kind).and_then(Value::as_array_mut) else { return };
    let before = list.len();
    list.retain(|entry| !names.contains(&name(entry)));
    if list.is_empty() && before > 0 {
        of.as_object_mut().map(|object| object.remove(kind));
    }
}

/// Takes a word from a text that lists some.
pub fn take_from_list(notes: &mut Map<String, Value>, key: &str, word: &str) {
    let Some(said) = notes.get(key).and_then(Value::as_str) else { return };
    let rest: Vec<&str> = said.split(',').filter(|other| other.trim() != word).collect();
    if rest.is_empty() {
        notes.remove(key);
    } else if rest.len() < said.split(',').count() {
        notes.insert(key.into(), rest.join(",").into());
    }
}

/// The variables of a container. Of several with one name the last counts.
pub struct Env {
    pub entries: Vec<Value>,
}

impl Env {
    pub fn of(container: &Value) -> Env {
        Env { entries: container["env"].as_array().cloned().unwrap_or_default() }
    }

    pub fn last(&self, variable: &str) -> Option<&Value> {
        self.entries.iter().rev().find(|entry| name(entry) == variable)
    }

    /// In its place, if it is there: other values may refer to it, and those only that stand before.
    pub fn set(&mut self, variable: &str, value: &str) {
        match self.entries.iter_mut().rev().find(|entry| name(entry) == variable) {
            Some(entry) if entry["value"] == value => {}
            Some(entry) => entry["value"] = value.into(),
            None => self.entries.push(json!({"name": variable, "value": value})),
        }
    }

    pub fn remove(&mut self, variable: &str, value: &str) {
        self.entries.retain(|entry| name(entry) != variable || entry["value"] != value);
    }

    pub fn without_library(&mut self, library: &str) {
        for entry in self.entries.iter_mut().filter(|entry| name(entry) == "LD_PRELOAD") {
            let Some(value) = entry["value"].as_str() else { continue };
            let rest: Vec<&str> = value
                .split([':', ' '])
                .filter(|other| !other.is_empty() && *other != library)
                .collect();
            entry["value"] = rest.join(":").into();
        }
        self.remove("LD_PRELOAD", "");
    }

    pub fn back_into(self, container: &mut Value) {
        match (self.entries.is_empty(), container.as_object_mut()) {
            (true, Some(container)) => drop(container.remove("env")),
            _ => container["env"] = self.entries.into(),
        }
    }
}
