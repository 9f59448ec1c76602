//! The claims of the mail thread "x86: Run checksumming in parallel accross multiple alu's" (October 2013: Neil Horman's
//! patch, Doug Ledford, Ingo Molnar), each beside what this machine says.
//!
//! "One chain" is the kernel's routine of that time, one chain of add-with-carry; "linux" has two. A difference counts as
//! noticeable from 5 % on.

use std::fmt::Write as _;

use serde::Serialize;

use super::event::{Case, Role};
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
const DISTANCES: [&str; 7] = ["64", "128", "320", "512", "1024", "1536", "2048"];

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
        two_chains(figures),
        not_seeing_it(figures),
        five_algorithms(figures),
        load_side(figures),
        prefetch_always(figures),
        five_lines(figures),
        one_or_two_lines(figures),
        smart_not_dumb(figures),
        slower_on_some(figures),
        cold_not_hot(figures),
        needs_dma(figures),
        boot_time(figures),
        bus_crossings(),
    ]
}

fn two_chains(figures: &Figures) -> Claim {
    let hot = Gains::of(figures, &["hot-256", "hot-1500", "hot-9000", "hot-65520"], "linux", "one chain");
    let cold = Gains::of(figures, &["cold-random-1500", "cold-random-9000"], "linux", "one chain");
    let verdict = match (hot.most(), cold.most()) {
        (_, cold) if cold >= 1.8 => "holds, in the cache and outside",
        (hot, _) if hot >= 1.8 => "holds only in the cache, and only for long data",
        (hot, _) if hot >= NOTICEABLE => "does not hold: a gain in the cache, but no doubling",
        _ => "does not hold",
    };
    let here = [hot.words("two chains against one"), cold.words("two chains against one")].concat();
    Claim { who: "the patch", claim: "two chains of additions, on two ALUs, double the performance", here, verdict }
}

fn not_seeing_it(figures: &Figures) -> Claim {
    let cases = ["cold-seq-1500", "cold-random-256", "cold-random-1500", "cold-random-9000", "cold-random-65520"];
    let gains = Gains::of(figures, &cases, "linux", "one chain");
    let small = Gains::of(figures, &cases[..3], "linux", "one chain");
    let verdict = match (small.most(), gains.most()) {
        (_, all) if all < NOTICEABLE => "holds: nothing noticeable outside the cache",
        (small, _) if small < NOTICEABLE => "holds for packets up to 1500 B; longer ones gain",
        _ => "does not hold: the second chain shows also outside the cache",
    };
    let here = gains.words("two chains against one");
    Claim { who: "Ledford", claim: "the gain of the second chain: \"I'm just not seeing it\"", here, verdict }
}

fn five_algorithms(figures: &Figures) -> Claim {
    let (mut here, mut widest) = (Vec::new(), f64::NAN);
    for case in ["cold-random-1500", "cold-random-9000"].iter().filter_map(|name| figures.case(name)) {
        let named = ["one chain", "linux"].iter().filter_map(|name| case.routine(name));
        let all = named.chain(case.with_role(Role::Kernel)).chain(case.ours());
        let mut all: Vec<_> = all.map(|routine| (routine.median(), routine)).collect();
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        if let [(fast, first), .., (slow, last)] = all[..] {
            widest = widest.max(slow / fast);
            let (case, count) = (&case.case, all.len());
            here.push(format!("{case}: of {count}, {} {fast:.0} ns, {} {slow:.0} ns", first.name, last.name));
        }
    }
    let verdict =
        if widest >= NOTICEABLE { "does not hold: algorithms differ also outside the cache" } else { "holds" };
    Claim { who: "Ledford", claim: "of five different ALU algorithms none had a noticeable effect", here, verdict }
}

fn load_side(figures: &Figures) -> Claim {
    let cases = ["cold-random-1500", "cold-random-9000", "cold-random-65520"];
    let best = Gains::of(figures, &cases, "shortwire", "read");
    let chain = Gains::of(figures, &cases, "one chain", "read");
    let hot = Gains::of(figures, &["hot-1500"], "shortwire", "read");
    let verdict = match (best.least(), chain.least()) {
        (_, chain) if chain >= 0.9 => "holds: outside the cache even one chain is as fast as reading alone",
        (best, _) if best >= 0.9 => {
            "holds for the best kernel, which is as fast as reading alone outside the cache; not for one chain"
        }
        _ => "does not hold: reading alone is noticeably faster",
    };
    let here = [
        best.words("best kernel against reading alone"),
        chain.words("one chain against reading alone"),
        hot.words("best kernel against reading alone"),
    ];
    Claim {
        who: "Ledford",
        claim: "it is load speed that is killing us, more than the ALU",
        here: here.concat(),
        verdict,
    }
}

/// The best of the smart distances, for one chain.
fn best_distance(case: &Case, of: &str) -> Option<(&'static str, f64)> {
    let gain = |&distance: &&'static str| Some((distance, ratio(case, &format!("{of}, smart {distance}"), of)?));
    DISTANCES.iter().filter_map(gain).max_by(|one, other| one.1.total_cmp(&other.1))
}

fn prefetch_always(figures: &Figures) -> Claim {
    let (mut here, mut chain, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for case in DISTANCE.iter().filter_map(|name| figures.case(name)) {
        for (of, gains) in [("one chain", &mut chain), ("shortwire", &mut ours)] {
            if let Some((distance, gain)) = best_distance(case, of) {
                gains.push(gain);
                here.push(format!("{}: {of}, best distance {distance} B, {gain:.2} x", case.case));
            }
        }
    }
    let always = |gains: &[f64]| gains.iter().all(|&gain| gain >= NOTICEABLE);
    let verdict = match (always(&chain), always(&ours)) {
        (true, true) => "holds, though each case wants another distance",
        (true, false) => "holds for one chain, at the distance that is best for the case; not for the best kernel",
        (false, _) => "does not hold: not in every case, not even at the best distance",
    };
    Claim { who: "Ledford", claim: "prefetch always had a noticeable effect", here, verdict }
}

fn five_lines(figures: &Figures) -> Claim {
    let gains = Gains::of(figures, &DISTANCE, "one chain, smart 320", "one chain");
    let verdict = match (gains.least(), gains.most()) {
        (least, _) if least >= NOTICEABLE => "holds",
        (_, most) if most >= NOTICEABLE => "holds in some cases only",
        _ => "does not hold: no noticeable gain",
    };
    let here = gains.words("5 lines ahead, smart, against none");
    Claim { who: "Ledford", claim: "smart prefetch of 5*64 bytes ahead gains 3 to 15 %", here, verdict }
}

fn one_or_two_lines(figures: &Figures) -> Claim {
    let mut here = Vec::new();
    let (mut short, mut best) = (f64::NAN, f64::NAN);
    for case in DISTANCE.iter().filter_map(|name| figures.case(name)) {
        let near = ["64", "128"].map(|distance| ratio(case, &format!("one chain, smart {distance}"), "one chain"));
        if let ([Some(one), Some(two)], Some((at, far))) = (near, best_distance(case, "one chain")) {
            (short, best) = (short.max(one.max(two)), best.max(far));
            here.push(format!("{}: 1 line {one:.2} x, 2 lines {two:.2} x, {at} B {far:.2} x", case.case));
        }
    }
    let verdict = match (short >= NOTICEABLE, best >= NOTICEABLE) {
        (false, true) => "Ledford is right: too short; what gains is farther",
        (true, _) => "Molnar is right: one or two lines gain",
        (false, false) => "neither shows: no distance gains",
    };
    Claim {
        who: "Molnar, Ledford",
        claim: "1-2 cache lines ahead might work reasonably well; \"probably way too short\"",
        here,
        verdict,
    }
}

fn smart_not_dumb(figures: &Figures) -> Claim {
    let cases = &DISTANCE[1..];
    let mut here = Vec::new();
    let mut by_case = Vec::new();
    for distance in ["320", "1024"] {
        let (smart, dumb) = (format!("one chain, smart {distance}"), format!("one chain, dumb {distance}"));
        let gains = Gains::of(figures, cases, &smart, &dumb);
        here.extend(gains.words(&format!("smart against dumb at {distance} B")));
        by_case.extend(gains.0);
    }
    let most =
        |end: &str| by_case.iter().filter(|(case, _)| case.ends_with(end)).map(|gain| gain.1).fold(f64::NAN, f64::max);
    let never_worse = by_case.iter().all(|gain| gain.1 >= 1.0 / NOTICEABLE);
    let verdict = match (never_worse, most("1500") >= NOTICEABLE, most("1500") > most("65520")) {
        (true, true, true) => "holds: never worse, and the shorter the packet the more it is worth",
        (true, true, false) => "holds, but not more so for short packets",
        (true, false, _) => "no difference to notice",
        (false, true, _) => "holds for short packets at long distances; elsewhere dumb is as good or better",
        (false, false, _) => "does not hold: dumb is faster in some case",
    };
    Claim {
        who: "Ledford",
        claim: "prefetch should always be smart, never dumb; more so for smaller packets",
        here,
        verdict,
    }
}

fn slower_on_some(figures: &Figures) -> Claim {
    let two = Gains::of(figures, &["hot-256", "cold-random-256", "cold-random-1500"], "linux", "one chain");
    let ahead = Gains::of(figures, &DISTANCE, "one chain, smart 320", "one chain");
    let slower = |gains: &Gains| gains.least() < 1.0 / NOTICEABLE;
    let verdict = match (slower(&two), slower(&ahead)) {
        (true, true) => "holds here: each alone is slower in some case",
        (true, false) => "holds here in some case, and the second chain does it",
        (false, true) => "holds here in some case, and the prefetch does it",
        (false, false) => "not on this machine",
    };
    let mut here = vec![
        format!("two chains against one, worst case {:.2} x", two.least()),
        format!("5 lines ahead, smart, worst case {:.2} x", ahead.least()),
    ];
    here.retain(|line| !line.contains("NaN"));
    Claim {
        who: "Ledford",
        claim: "on some processors the second chain with prefetch is slower; which of the two does the damage?",
        here,
        verdict,
    }
}

fn cold_not_hot(figures: &Figures) -> Claim {
    let hot = Gains::of(figures, &["hot-1500", "hot-9000"], "shortwire", "linux");
    let cold = Gains::of(figures, &["cold-seq-1500", "cold-random-1500", "cold-random-9000"], "shortwire", "linux");
    let verdict = if hot.least() > cold.most() * 1.2 {
        "holds: figures from the cache promise gains that packets outside it do not get"
    } else {
        "makes no difference here"
    };
    let here = [hot.words("best kernel against linux"), cold.words("best kernel against linux")].concat();
    Claim { who: "Molnar", claim: "measuring the cache-hot case is measuring the wrong thing", here, verdict }
}

fn needs_dma(figures: &Figures) -> Claim {
    let mut here = Vec::new();
    let mut same = true;
    for length in ["1500", "9000"] {
        let cases = ["cold-random-", "cold-random-writer-"].map(|name| figures.case(&format!("{name}{length}")));
        let [Some(alone), Some(beside)] = cases else { continue };
        let Some((without, with)) = ratio(alone, "shortwire", "linux").zip(ratio(beside, "shortwire", "linux")) else {
            continue;
        };
        same &= (without / with).max(with / without) < 1.15;
        let rate = beside.writer_gbps.unwrap_or(f64::NAN);
        here.push(format!(
            "{length} B: best kernel against linux {without:.2} x alone, {with:.2} x beside {rate:.1} GB/s"
        ));
    }
    let verdict = match (here.is_empty(), same) {
        (true, _) => "not measured: there is no second processor to write from",
        (_, true) => "does not change the answer, for a core that writes in a network card's place",
        (_, false) => "holds: the ratio is another with memory traffic beside it",
    };
    Claim { who: "Ledford", claim: "you need DMA traffic at the same time to be truly representative", here, verdict }
}

fn boot_time(figures: &Figures) -> Claim {
    let (mut here, mut most, mut chosen) = (Vec::new(), f64::NAN, Vec::new());
    for case in DISTANCE.iter().filter_map(|name| figures.case(name)) {
        let (Some((distance, gain)), Some(ours)) = (best_distance(case, "shortwire"), case.ours()) else { continue };
        let Some((low, high)) = ours.quartiles() else { continue };
        most = most.max(gain);
        chosen.push(distance);
        let spread = (high - low) / ours.median() * 100.0;
        let case = &case.case;
        here.push(format!(
            "{case}: best distance {distance} B gains {:.1} %, half of all values spread over {spread:.1} %",
            (gain - 1.0) * 100.0
        ));
    }
    chosen.sort_unstable();
    chosen.dedup();
    let verdict = match (most >= NOTICEABLE, chosen.len() > 1) {
        (false, _) => "Molnar is right for the best kernel: there is nothing to find",
        (true, true) => "both: there is a gain to find, but each case wants another distance",
        (true, false) => "Ledford is right: one distance is best everywhere",
    };
    Claim {
        who: "Ledford, Molnar",
        claim: "a test at boot should find the best prefetch distance; such tests hurt reproducibility",
        here,
        verdict,
    }
}

fn bus_crossings() -> Claim {
    Claim {
        who: "Ledford",
        claim: "network data crosses the bus two to four times; netperf over IPoIB shows the whole",
        here: Vec::new(),
        verdict: "not measured: this needs network cards at both ends",
    }
}

pub fn text(claims: &[Claim]) -> String {
    let mut text = String::from("Claims of the thread, and what this machine says (ratios above 1: faster)\n\n");
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
    use super::super::event::Routine;
    use super::super::figures::tests::{case, figures, routine};
    use super::*;

    fn of(name: &str, values: &[(&str, f64)]) -> Case {
        let role = |name: &str| if name == "shortwire" { Role::Ours } else { Role::Setting };
        let routines: Vec<Routine> = values.iter().map(|&(name, ns)| routine(name, role(name), &[ns])).collect();
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
        let hot = |linux| of("hot-9000", &[("one chain", 400.0), ("linux", linux), ("shortwire", 70.0)]);
        let cold = |linux| of("cold-random-1500", &[("one chain", 280.0), ("linux", linux), ("read", 170.0)]);
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
                &[("one chain", 200.0), near, ("one chain, smart 128", 198.0), ("one chain, smart 2048", far)],
            )
        };
        let verdict = |far| judge(&figures(vec![case(far)]))[6].verdict;
        assert!(verdict(150.0).starts_with("Ledford"));
        assert!(verdict(199.0).starts_with("neither"));
    }

    #[test]
    fn the_text_has_claim_figures_and_verdict() {
        let claims = judge(&figures(vec![of("hot-9000", &[("one chain", 400.0), ("linux", 200.0)])]));
        let text = text(&claims);
        for part in ["1. the patch", "hot-9000: two chains against one 2.00 x", "=> holds only in the cache", "13. "] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
