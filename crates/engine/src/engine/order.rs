//! In which order apps are called.

use std::collections::{BTreeMap, BTreeSet, HashSet, btree_set};
use std::iter::Rev;

use crate::config::LinkSpec;

/// Names of apps in the order in which a breath pushes them.
///
/// The links are sorted topologically: reverse post-order of a search that starts at the outputs of
/// apps that pull and ends at apps that pull, since their outputs are starts themselves. Ties go by
/// name, cycles are cut where the search meets them. An app comes at the place of its last input,
/// so that one call finds what came on all of them.
pub fn push_order<'a>(
    links: impl Iterator<Item = &'a LinkSpec>,
    pulls: &HashSet<&str>,
) -> Vec<&'a str> {
    let mut outputs: Outputs = BTreeMap::new();
    for link in links {
        outputs.entry(&link.from.app).or_default().insert(link);
    }
    let mut search = Search { outputs: &outputs, pulls, seen: HashSet::new(), done: Vec::new() };
    for app in outputs.keys().rev().filter(|app| pulls.contains(**app)) {
        search.leave(app);
    }
    // What no app that pulls feeds: timers and cycles live there. It comes after everything else.
    let mut reached: Vec<&LinkSpec> = search.done.drain(..).rev().collect();
    for app in outputs.keys().rev() {
        search.leave(app);
    }
    reached.extend(search.done.drain(..).rev());
    let mut placed = HashSet::new();
    let apps = reached.into_iter().rev().map(|link| link.to.app.as_str());
    let mut order: Vec<&str> = apps.filter(|app| placed.insert(*app)).collect();
    order.reverse();
    order
}

type Outputs<'a> = BTreeMap<&'a str, BTreeSet<&'a LinkSpec>>;

struct Search<'a, 'b> {
    outputs: &'b Outputs<'a>,
    pulls: &'b HashSet<&'b str>,
    seen: HashSet<&'a LinkSpec>,
    done: Vec<&'a LinkSpec>,
}

impl<'a, 'b> Search<'a, 'b> {
    /// Visits the outputs of an app; the last name first, since the result is reversed. On a stack
    /// of its own: by calls, a chain of ten thousand apps would overflow that of the thread.
    fn leave(&mut self, app: &str) {
        // The links that are being followed, each with what is left to visit behind it.
        let mut path: Vec<(&'a LinkSpec, Option<Links<'a, 'b>>)> = Vec::new();
        let mut here = self.outputs_of(app);
        loop {
            if let Some(link) = here.as_mut().and_then(Iterator::next) {
                if self.seen.insert(*link) {
                    let to = link.to.app.as_str();
                    let behind = if self.pulls.contains(to) { None } else { self.outputs_of(to) };
                    path.push((link, std::mem::replace(&mut here, behind)));
                }
            } else {
                let Some((link, rest)) = path.pop() else { return };
                self.done.push(link);
                here = rest;
            }
        }
    }

    fn outputs_of(&self, app: &str) -> Option<Links<'a, 'b>> {
        Some(self.outputs.get(app)?.iter().rev())
    }
}

type Links<'a, 'b> = Rev<btree_set::Iter<'b, &'a LinkSpec>>;
