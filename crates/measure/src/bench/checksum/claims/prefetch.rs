//! What the thread says of prefetch.

use super::{Claim, DISTANCE, Gains, NOTICEABLE, ratio};
use crate::bench::checksum::event::Case;
use crate::bench::checksum::figures::Figures;

/// In bytes.
const DISTANCES: [&str; 7] = ["64", "128", "320", "512", "1024", "1536", "2048"];

/// The best of the smart distances, for one chain.
fn best_distance(case: &Case, of: &str) -> Option<(&'static str, f64)> {
    let gain = |&distance: &&'static str| {
        Some((distance, ratio(case, &format!("{of}, smart {distance}"), of)?))
    };
    DISTANCES.iter().filter_map(gain).max_by(|one, other| one.1.total_cmp(&other.1))
}

pub fn prefetch_always(figures: &Figures) -> Claim {
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
        (true, false) => {
            "holds for one chain, at the distance that is best for the case; not for the best kernel"
        }
        (false, _) => "does not hold: not in every case, not even at the best distance",
    };
    Claim { who: "Ledford", claim: "prefetch always had a noticeable effect", here, verdict }
}

pub fn five_lines(figures: &Figures) -> Claim {
    let gains = Gains::of(figures, &DISTANCE, "one chain, smart 320", "one chain");
    let verdict = match (gains.least(), gains.most()) {
        (least, _) if least >= NOTICEABLE => "holds",
        (_, most) if most >= NOTICEABLE => "holds in some cases only",
        _ => "does not hold: no noticeable gain",
    };
    let here = gains.words("5 lines ahead, smart, against none");
    Claim {
        who: "Ledford",
        claim: "smart prefetch 5*64 bytes ahead: 9 and 11 % more throughput on two of three kinds of machines",
        here,
        verdict,
    }
}

pub fn one_or_two_lines(figures: &Figures) -> Claim {
    let mut here = Vec::new();
    let (mut short, mut best) = (f64::NAN, f64::NAN);
    for case in DISTANCE.iter().filter_map(|name| figures.case(name)) {
        let near = ["64", "128"]
            .map(|distance| ratio(case, &format!("one chain, smart {distance}"), "one chain"));
        if let ([Some(one), Some(two)], Some((at, far))) = (near, best_distance(case, "one chain"))
        {
            (short, best) = (short.max(one.max(two)), best.max(far));
            here.push(format!(
                "{}: 1 line {one:.2} x, 2 lines {two:.2} x, {at} B {far:.2} x",
                case.case
            ));
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

pub fn smart_not_dumb(figures: &Figures) -> Claim {
    let cases = &DISTANCE[1..];
    let mut here = Vec::new();
    let mut by_case = Vec::new();
    for distance in ["320", "1024"] {
        let (smart, dumb) =
            (format!("one chain, smart {distance}"), format!("one chain, dumb {distance}"));
        let gains = Gains::of(figures, cases, &smart, &dumb);
        here.extend(gains.words(&format!("smart against dumb at {distance} B")));
        by_case.extend(gains.0);
    }
    let most = |end: &str| {
        by_case
            .iter()
            .filter(|(case, _)| case.ends_with(end))
            .map(|gain| gain.1)
            .fold(f64::NAN, f64::max)
    };
    let never_worse = by_case.iter().all(|gain| gain.1 >= 1.0 / NOTICEABLE);
    let verdict = match (never_worse, most("1500") >= NOTICEABLE, most("1500") > most("65520")) {
        (true, true, true) => "holds: never worse, and the shorter the packet the more it is worth",
        (true, true, false) => "holds, but not more so for short packets",
        (true, false, _) => "no difference to notice",
        (false, true, _) => "holds for short packets in some case; in another dumb is faster",
        (false, false, _) => "does not hold: dumb is faster in some case",
    };
    Claim {
        who: "Ledford",
        claim: "prefetch should always be smart, never dumb; more so for smaller packets",
        here,
        verdict,
    }
}

pub fn boot_time(figures: &Figures) -> Claim {
    let (mut here, mut most, mut chosen) = (Vec::new(), f64::NAN, Vec::new());
    for case in DISTANCE.iter().filter_map(|name| figures.case(name)) {
        let (Some((distance, gain)), Some(ours)) = (best_distance(case, "shortwire"), case.ours())
        else {
            continue;
        };
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
