//! In which order apps are called.

use std::collections::{BTreeMap, BTreeSet, HashSet};

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
    let mut outputs: BTreeMap<&str, BTreeSet<&LinkSpec>> = BTreeMap::new();
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
    let mut order = Vec::new();
    for link in reached.into_iter().rev() {
        if !order.contains(&link.to.app.as_str()) {
            order.push(link.to.app.as_str());
        }
    }
    order.reverse();
    order
}

struct Search<'a, 'b> {
    outputs: &'b BTreeMap<&'a str, BTreeSet<&'a LinkSpec>>,
    pulls: &'b HashSet<&'b str>,
    seen: HashSet<&'a LinkSpec>,
    done: Vec<&'a LinkSpec>,
}

impl<'a> Search<'a, '_> {
    /// Visits the outputs of an app; the last name first, since the result is reversed.
    fn leave(&mut self, app: &str) {
        for link in self.outputs.get(app).into_iter().flatten().rev() {
            if self.seen.insert(link) {
                if !self.pulls.contains(link.to.app.as_str()) {
                    self.leave(&link.to.app);
                }
                self.done.push(link);
            }
        }
    }
}
