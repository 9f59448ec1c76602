//! What to change in a script, in plain words.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Field, FieldOf, Guard, Trace, TraceFacts, costs};

/// Something worth changing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is the case.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

/// All findings; none for a script that compiles well.
pub fn findings(facts: &TraceFacts) -> Vec<Finding> {
    let mut found: Vec<Finding> =
        facts.fields.iter().filter_map(|field| field_types(facts, field)).collect();
    if found.is_empty() {
        found.extend(side_types(facts));
    }
    found.extend(costs::costs(facts));
    found
}

/// Instances of one class that hold values of different types under one name, where traces depend
/// on these types.
fn field_types(facts: &TraceFacts, field: &Field) -> Option<Finding> {
    let types: BTreeSet<u64> = field.apps.iter().map(|app| app.ctype).collect();
    let guarded = |ctype: u64| {
        facts.traces.iter().filter(move |trace| trace.guards.iter().any(|g| g.ctype == ctype))
    };
    if types.len() < 2 || !types.iter().any(|&ctype| guarded(ctype).next().is_some()) {
        return None;
    }
    let apps: Vec<&str> = field.apps.iter().map(|app| app.app.as_str()).collect();
    let numbers: Vec<String> = types.iter().map(u64::to_string).collect();
    let by_type = types.iter().map(|&ctype| {
        let ids: Vec<String> = guarded(ctype).take(6).map(|trace| trace.id.to_string()).collect();
        if ids.is_empty() {
            format!("none for {ctype}")
        } else {
            format!("{} for {ctype}", ids.join(", "))
        }
    });
    let what = format!(
        "instances {} of {} run different traces since `{}` has {} ctypes: {} (traces {}){}",
        list(&apps),
        field.class,
        field.name,
        types.len(),
        list(&numbers),
        by_type.collect::<Vec<_>>().join("; "),
        cause(&field.apps),
    );
    let effect = if facts.shared {
        "The instance that comes second leaves the trace of the first by a side exit, for every packet."
    } else {
        "Each instance has its own copy of the code here, which hides the cost; shared code, such as a module that both use, pays it."
    };
    Some(Finding {
        what,
        advice: format!(
            "{effect} Make the ctype once, outside of `new`, and use it for all instances."
        ),
    })
}

/// Where the types come from, if that is known.
fn cause(apps: &[FieldOf]) -> String {
    let places: BTreeSet<(&str, &str)> =
        apps.iter().filter_map(|app| Some((app.call.as_deref()?, app.place.as_deref()?))).collect();
    match places.first() {
        Some((call, place)) if places.len() == 1 => {
            format!("; {call} at {place} creates a new ctype every time it is called")
        }
        Some(_) => {
            let places: Vec<String> =
                places.iter().map(|(call, place)| format!("{call} at {place}")).collect();
            format!("; they are created by {}", list(&places))
        }
        None => "; an anonymous struct declares a new ctype each time its declaration is read"
            .to_string(),
    }
}

/// Two ctypes, the trace that was made for the first, and that for the second.
type Meeting = (u64, u64, u64, u64);

/// A side trace that checks the same value as its parent's exit for another type, both types made
/// by one line.
fn side_types(facts: &TraceFacts) -> Vec<Finding> {
    let mut by_place: BTreeMap<(String, String), BTreeSet<Meeting>> = BTreeMap::new();
    for side in &facts.traces {
        let Some(parent) =
            side.parent.and_then(|id| facts.traces.iter().find(|trace| trace.id == id))
        else {
            continue;
        };
        for (guard, other) in pairs(parent, side) {
            if let (Some(place), Some(call)) = (&guard.place, &guard.call) {
                let key = (place.clone(), call.clone());
                by_place.entry(key).or_default().insert((
                    guard.ctype,
                    other.ctype,
                    parent.id,
                    side.id,
                ));
            }
        }
    }
    by_place.into_iter().map(|((place, call), pairs)| side_finding(&place, &call, &pairs)).collect()
}

fn pairs<'a>(parent: &'a Trace, side: &'a Trace) -> impl Iterator<Item = (&'a Guard, &'a Guard)> {
    let at_exit = parent.guards.iter().filter(|guard| Some(guard.exit) == side.exit);
    at_exit.flat_map(|guard| side.guards.iter().map(move |other| (guard, other))).filter(
        |(guard, other)| {
            guard.ctype != other.ctype
                && guard.field == other.field
                && guard.place.is_some()
                && guard.place == other.place
        },
    )
}

fn side_finding(place: &str, call: &str, pairs: &BTreeSet<Meeting>) -> Finding {
    let types: BTreeSet<String> =
        pairs.iter().flat_map(|pair| [pair.0.to_string(), pair.1.to_string()]).collect();
    let types: Vec<String> = types.into_iter().collect();
    let example = pairs.first().map(|(one, other, parent, side)| {
        format!(
            "trace {parent} was made for ctype {one} and is left to trace {side} for ctype {other}"
        )
    });
    Finding {
        what: format!(
            "{call} at {place} made {} ctypes that meet in the same code: {}; {}",
            types.len(),
            list(&types),
            example.unwrap_or_default()
        ),
        advice: "Make the ctype once and use it for all values.".to_string(),
    }
}

pub(super) fn list(words: &[impl AsRef<str>]) -> String {
    match words {
        [] => String::new(),
        [one] => one.as_ref().to_string(),
        [start @ .., last] => {
            let start: Vec<&str> = start.iter().map(AsRef::as_ref).collect();
            format!("{} and {}", start.join(", "), last.as_ref())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(id: u64, parent: Option<(u64, i64)>, ctype: u64) -> Trace {
        let guard = Guard {
            ctype,
            field: Some("rxdesc".into()),
            exit: 4,
            place: Some("lib.lua:7".into()),
            call: Some("ffi.metatype".into()),
        };
        Trace {
            id,
            parent: parent.map(|(parent, _)| parent),
            exit: parent.map(|(_, exit)| exit),
            guards: vec![guard],
            ..Trace::default()
        }
    }

    fn field(types: &[u64]) -> Field {
        let of = |(i, &ctype): (usize, &u64)| FieldOf {
            app: format!("if{}", i + 1),
            ctype,
            place: Some("lib.lua:7".into()),
            call: Some("ffi.metatype".into()),
            ..FieldOf::default()
        };
        Field {
            class: "Intel82599".into(),
            name: "rxdesc".into(),
            apps: types.iter().enumerate().map(of).collect(),
        }
    }

    #[test]
    fn the_mistake_of_two_instances_is_named() {
        let traces = vec![trace(16, None, 1349), trace(17, Some((16, 4)), 1354)];
        let facts = TraceFacts {
            traces,
            fields: vec![field(&[1349, 1354])],
            shared: true,
            ..TraceFacts::default()
        };
        let found = findings(&facts);
        assert_eq!(found.len(), 1);
        let start = "instances if1 and if2 of Intel82599 run different traces since `rxdesc` has 2 ctypes: 1349 and 1354";
        assert!(found[0].what.starts_with(start), "{}", found[0].what);
        assert!(found[0].what.contains("ffi.metatype at lib.lua:7"));
    }

    #[test]
    fn one_type_is_no_finding_and_neither_are_types_that_no_trace_meets() {
        let facts = TraceFacts {
            traces: vec![trace(1, None, 5)],
            fields: vec![field(&[5, 5])],
            ..TraceFacts::default()
        };
        assert!(findings(&facts).is_empty());
        let facts = TraceFacts { fields: vec![field(&[5, 6])], ..facts };
        assert_eq!(findings(&facts).len(), 1);
        let facts = TraceFacts { fields: vec![field(&[7, 8])], ..facts };
        assert!(findings(&facts).is_empty());
    }

    #[test]
    fn types_that_meet_without_a_field_are_found_by_their_exit() {
        let mut traces = vec![trace(16, None, 1349), trace(17, Some((16, 4)), 1354)];
        let facts = TraceFacts { traces: traces.clone(), ..TraceFacts::default() };
        assert_eq!(findings(&facts).len(), 1);
        traces[1].exit = Some(3);
        assert!(findings(&TraceFacts { traces, ..TraceFacts::default() }).is_empty());
    }
}
