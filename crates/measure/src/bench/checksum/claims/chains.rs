//! What the thread says of chains of additions, and of how to measure.

use super::{Claim, DISTANCE, Gains, NOTICEABLE, ratio};
use crate::bench::checksum::figures::Figures;

/// Algorithms that use no vectors, as those that the thread compares.
const SCALAR: [&str; 5] = ["one chain", "linux", "adc1", "adc4", "adx"];

pub fn two_chains(figures: &Figures) -> Claim {
    let hot =
        Gains::of(figures, &["hot-256", "hot-1500", "hot-9000", "hot-65520"], "linux", "one chain");
    let cold = Gains::of(figures, &["cold-random-1500", "cold-random-9000"], "linux", "one chain");
    let verdict = match (hot.most(), cold.most()) {
        (_, cold) if cold >= 1.8 => "holds, in the cache and outside",
        (hot, _) if hot >= 1.8 => "holds only in the cache, and only for long data",
        (hot, _) if hot >= NOTICEABLE => "does not hold: a gain in the cache, but no doubling",
        _ => "does not hold",
    };
    let here = [hot.words("two chains against one"), cold.words("two chains against one")].concat();
    Claim {
        who: "the patch",
        claim: "two chains of additions, on two ALUs, double the performance",
        here,
        verdict,
    }
}

pub fn not_seeing_it(figures: &Figures) -> Claim {
    let cases = [
        "cold-seq-1500",
        "cold-random-256",
        "cold-random-1500",
        "cold-random-9000",
        "cold-random-65520",
    ];
    let gains = Gains::of(figures, &cases, "linux", "one chain");
    let small = Gains::of(figures, &cases[..3], "linux", "one chain");
    let verdict = match (small.most(), gains.most()) {
        (_, all) if all < NOTICEABLE => "holds: nothing noticeable outside the cache",
        (small, _) if small < NOTICEABLE => "holds for packets up to 1500 B; longer ones gain",
        _ => "does not hold: the second chain shows also outside the cache",
    };
    let here = gains.words("two chains against one");
    Claim {
        who: "Ledford",
        claim: "the gain of the second chain: \"I'm just not seeing it\"",
        here,
        verdict,
    }
}

pub fn five_algorithms(figures: &Figures) -> Claim {
    let (mut here, mut widest) = (Vec::new(), f64::NAN);
    for case in
        ["cold-random-1500", "cold-random-9000"].iter().filter_map(|name| figures.case(name))
    {
        let measured = SCALAR.iter().filter_map(|name| case.routine(name));
        let mut all: Vec<_> = measured.map(|routine| (routine.median(), routine)).collect();
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        if let [(fast, first), .., (slow, last)] = all[..] {
            widest = widest.max(slow / fast);
            let (case, count) = (&case.case, all.len());
            here.push(format!(
                "{case}: of {count}, {} {fast:.0} ns, {} {slow:.0} ns",
                first.name, last.name
            ));
        }
    }
    let verdict = if widest >= NOTICEABLE {
        "does not hold: algorithms differ also outside the cache"
    } else {
        "holds"
    };
    Claim {
        who: "Ledford",
        claim: "of five different ALU algorithms none had a noticeable effect",
        here,
        verdict,
    }
}

pub fn load_side(figures: &Figures) -> Claim {
    let cases = ["cold-random-1500", "cold-random-9000", "cold-random-65520"];
    let best = Gains::of(figures, &cases, "shortwire", "read");
    let chain = Gains::of(figures, &cases, "one chain", "read");
    let hot = Gains::of(figures, &["hot-1500"], "shortwire", "read");
    let verdict = match (best.least(), chain.least()) {
        (_, chain) if chain >= 0.9 => {
            "holds: outside the cache even one chain is as fast as reading alone"
        }
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

pub fn slower_on_some(figures: &Figures) -> Claim {
    let two = Gains::of(
        figures,
        &["hot-256", "cold-random-256", "cold-random-1500"],
        "linux",
        "one chain",
    );
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

pub fn cold_not_hot(figures: &Figures) -> Claim {
    let hot = Gains::of(figures, &["hot-1500", "hot-9000"], "shortwire", "linux");
    let cold = Gains::of(
        figures,
        &["cold-seq-1500", "cold-random-1500", "cold-random-9000"],
        "shortwire",
        "linux",
    );
    let verdict = if hot.least() > cold.most() * 1.2 {
        "holds: figures from the cache promise gains that packets outside it do not get"
    } else {
        "makes no difference here"
    };
    let here =
        [hot.words("best kernel against linux"), cold.words("best kernel against linux")].concat();
    Claim {
        who: "Molnar",
        claim: "measuring the cache-hot case is measuring the wrong thing",
        here,
        verdict,
    }
}

pub fn needs_dma(figures: &Figures) -> Claim {
    let mut here = Vec::new();
    let mut same = true;
    for length in ["1500", "9000"] {
        let cases = ["cold-random-", "cold-random-writer-"]
            .map(|name| figures.case(&format!("{name}{length}")));
        let [Some(alone), Some(beside)] = cases else { continue };
        let Some((without, with)) =
            ratio(alone, "shortwire", "linux").zip(ratio(beside, "shortwire", "linux"))
        else {
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
    Claim {
        who: "Ledford",
        claim: "you need DMA traffic at the same time to be truly representative",
        here,
        verdict,
    }
}

pub fn bus_crossings() -> Claim {
    Claim {
        who: "Ledford",
        claim: "network data crosses the bus two to four times; netperf over IPoIB shows the whole",
        here: Vec::new(),
        verdict: "not measured: this needs network cards at both ends",
    }
}
