//! The claims of the mail thread "x86: Run checksumming in parallel accross multiple alu's"
//! (October 2013: Neil Horman's patch, Doug Ledford, Ingo Molnar), each beside what this machine
//! says.
//!
//! "One chain" is the kernel's routine of that time, one chain of add-with-carry; "linux" has two.
//! A difference counts as noticeable from 5 % on.

mod chains;
mod prefetch;

use std::fmt::Write as _;

use serde::Serialize;

use super::event::Case;
use super::figures::Figures;

/// What has to be measured.
pub const CASES: &[&str] = &[
    "hot-256",
    "hot-1500",
    "hot-9000",
    "hot-65520",
    "cold-seq-1500",
    "cold-random-256",
    "cold-random-1500",
    "cold-random-9000",
    "cold-random-65520",
    "cold-random-writer-1500",
    "cold-random-writer-9000",
    "distance",
];
const DISTANCE: [&str; 5] = [
    "distance-seq-1500",
    "distance-random-1500",
    "distance-random-writer-1500",
    "distance-random-9000",
    "distance-random-65520",
];
const NOTICEABLE: f64 = 1.05;

#[derive(Serialize)]
pub struct Claim {
    pub who: &'static str,
    pub claim: &'static str,
    /// Figures of this machine, one comparison each.
    pub here: Vec<String>,
    pub verdict: &'static str,
}

/// How many times faster `name` is than `base`, in the cases that were measured.
struct Gains(Vec<(String, f64)>);

impl Gains {
    fn of(figures: &Figures, cases: &[&str], name: &str, base: &str) -> Gains {
        let gain = |&case: &&str| Some((case.to_string(), ratio(figures.case(case)?, name, base)?));
        Gains(cases.iter().filter_map(gain).collect())
    }

    fn least(&self) -> f64 {
        self.0.iter().map(|gain| gain.1).fold(f64::NAN, f64::min)
    }

    fn most(&self) -> f64 {
        self.0.iter().map(|gain| gain.1).fold(f64::NAN, f64::max)
    }

    fn words(&self, what: &str) -> Vec<String> {
        self.0.iter().map(|(case, ratio)| format!("{case}: {what} {ratio:.2} x")).collect()
    }
}

fn ratio(case: &Case, name: &str, base: &str) -> Option<f64> {
    case.routine(name)?.ratio_to(case.routine(base)?)
}

pub fn judge(figures: &Figures) -> Vec<Claim> {
    vec![
        chains::two_chains(figures),
        chains::not_seeing_it(figures),
        chains::five_algorithms(figures),
        chains::load_side(figures),
        prefetch::prefetch_always(figures),
        prefetch::five_lines(figures),
        prefetch::one_or_two_lines(figures),
        prefetch::smart_not_dumb(figures),
        chains::slower_on_some(figures),
        chains::cold_not_hot(figures),
        chains::needs_dma(figures),
        prefetch::boot_time(figures),
        chains::bus_crossings(),
    ]
}

pub fn text(claims: &[Claim]) -> String {
    let mut text = String::from(
        "Claims of the thread, and what this machine says (ratios above 1: faster)\n\n",
    );
    for (number, claim) in (1..).zip(claims) {
        let _ = writeln!(text, "{number}. {}: {}", claim.who, claim.claim);
        for figure in &claim.here {
            let _ = writeln!(text, "     {figure}");
        }
        let _ = writeln!(text, "   => {}\n", claim.verdict);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::event::{Role, Routine};
    use super::super::figures::tests::{case, figures, routine};
    use super::*;

    fn of(name: &str, values: &[(&str, f64)]) -> Case {
        let role = |name: &str| if name == "shortwire" { Role::Ours } else { Role::Setting };
        let routines: Vec<Routine> =
            values.iter().map(|&(name, ns)| routine(name, role(name), &[ns])).collect();
        case(name, "t", "1500", 1500.0, routines)
    }

    #[test]
    fn nothing_measured_is_no_verdict_for_either_side() {
        let claims = judge(&figures(Vec::new()));
        assert!(claims.iter().all(|claim| claim.here.is_empty()));
        assert!(!claims[0].verdict.starts_with("holds"));
    }

    #[test]
    fn doubling_is_judged_where_it_is_seen() {
        let hot =
            |linux| of("hot-9000", &[("one chain", 400.0), ("linux", linux), ("shortwire", 70.0)]);
        let cold = |linux| {
            of("cold-random-1500", &[("one chain", 280.0), ("linux", linux), ("read", 170.0)])
        };
        let verdict = |hot, cold| judge(&figures(vec![hot, cold]))[0].verdict;
        assert!(verdict(hot(200.0), cold(275.0)).contains("only in the cache"));
        assert!(verdict(hot(200.0), cold(140.0)).contains("in the cache and outside"));
        assert!(verdict(hot(300.0), cold(275.0)).contains("no doubling"));
        assert!(verdict(hot(400.0), cold(275.0)).starts_with("does not hold"));
    }

    #[test]
    fn distances_are_judged_by_the_best() {
        let near = ("one chain, smart 64", 199.0);
        let case = |far| {
            of(
                "distance-random-1500",
                &[
                    ("one chain", 200.0),
                    near,
                    ("one chain, smart 128", 198.0),
                    ("one chain, smart 2048", far),
                ],
            )
        };
        let verdict = |far| judge(&figures(vec![case(far)]))[6].verdict;
        assert!(verdict(150.0).starts_with("Ledford"));
        assert!(verdict(199.0).starts_with("neither"));
    }

    #[test]
    fn the_text_has_claim_figures_and_verdict() {
        let claims =
            judge(&figures(vec![of("hot-9000", &[("one chain", 400.0), ("linux", 200.0)])]));
        let text = text(&claims);
        for part in [
            "1. the patch",
            "hot-9000: two chains against one 2.00 x",
            "=> holds only in the cache",
            "13. ",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
