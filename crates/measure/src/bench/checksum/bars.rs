//! What the project promises, on a processor with AVX-512.

use super::event::Case;
use super::figures::Figures;

/// The slower of 2.5 ns and 6 cycles may pass for a header of 20 bytes.
const HEADER_NS: f64 = 2.5;
const HEADER_CYCLES: f64 = 6.0;

const KERNEL: &str = "avx512vnni";

enum Against {
    Routine(&'static str),
    BestRival,
}

struct Promise {
    case: &'static str,
    /// Of a kernel by name, or of what csum_partial uses.
    kernel: Option<&'static str>,
    against: Against,
    /// How many times faster than that, at least.
    ratio: f64,
    words: &'static str,
}

const fn promise(case: &'static str, against: Against, ratio: f64, words: &'static str) -> Promise {
    Promise { case, kernel: None, against, ratio, words }
}

use Against::{BestRival, Routine};

const PROMISES: &[Promise] = &[
    promise("hot-64", Routine("linux"), 1.8, "64 B in the cache, against Linux-style"),
    promise("hot-1500", Routine("linux"), 3.5, "1500 B in the cache, against Linux-style"),
    promise("hot-9000", Routine("linux"), 4.0, "9000 B in the cache, against Linux-style"),
    Promise {
        kernel: Some("avx2"),
        ..promise(
            "hot-1500",
            Routine("linux"),
            1.8,
            "1500 B in the cache, AVX2 only, against Linux-style",
        )
    },
    promise("hot-4096", Routine("read"), 0.6, "4096 B in the cache, against reading alone"),
    promise("hot-128", BestRival, 1.0, "128 B in the cache, against the best rival"),
    promise("hot-256", BestRival, 1.0, "256 B in the cache, against the best rival"),
    promise("hot-4096-odd", BestRival, 1.0, "4096 B at an odd address, against the best rival"),
    promise("latency-20", BestRival, 1.0, "20 B, the sum needed at once, against the best rival"),
    promise("latency-64", BestRival, 1.0, "64 B, the sum needed at once, against the best rival"),
    promise("latency-128", BestRival, 1.0, "128 B, the sum needed at once, against the best rival"),
    promise("copy-hot-64", BestRival, 1.0, "copy 64 B in the cache, against the best rival"),
    promise("copy-hot-256", BestRival, 1.0, "copy 256 B in the cache, against the best rival"),
    promise("copy-hot-1500", BestRival, 1.0, "copy 1500 B in the cache, against the best rival"),
    promise("copy-mix-20-1500", BestRival, 1.0, "copy 20 to 1500 B, against the best rival"),
    promise("copy-mix-imix", BestRival, 1.0, "copy 40, 576 and 1500 B, against the best rival"),
    promise("mix-20-1500", BestRival, 1.0, "20 to 1500 B equally often, against the best rival"),
    promise("mix-imix", BestRival, 1.0, "40, 576 and 1500 B mixed, against the best rival"),
    promise(
        "cold-random-1500",
        Routine("read"),
        1.0 / 1.05,
        "1500 B in no cache, random, against reading alone",
    ),
    promise(
        "batch-random-1500",
        Routine("no prefetch"),
        1.08,
        "the same in batches, next-packet prefetch against none",
    ),
    promise(
        "copy-cold-source-1500",
        Routine("memcpy"),
        1.0 / 1.1,
        "copy 1500 B from no cache, against memcpy alone",
    ),
    promise(
        "copy-cold-source-9000",
        Routine("memcpy"),
        1.0 / 1.1,
        "copy 9000 B from no cache, against memcpy alone",
    ),
    promise(
        "copy-cold-source-65520",
        Routine("memcpy"),
        1.0 / 1.1,
        "copy 65520 B from no cache, against memcpy alone",
    ),
];

/// A promise and what became of it. For the header these are ns, otherwise ratios.
pub struct Bar {
    pub words: &'static str,
    pub measured: String,
    pub wanted: String,
    pub reached: bool,
}

/// Those whose cases were measured. They are meant for the best kernel on a processor with AVX-512.
pub fn bars(figures: &Figures) -> Vec<Bar> {
    if figures.start.kernel != KERNEL {
        return Vec::new();
    }
    let ratios = PROMISES.iter().filter_map(|promise| kept(promise, figures.case(promise.case)?));
    ratios
        .chain(
            figures.case("inline-20").and_then(|case| header(case, figures.start.machine.core_ghz)),
        )
        .collect()
}

fn kept(promise: &Promise, case: &Case) -> Option<Bar> {
    let ours = match promise.kernel {
        Some(kernel) => case.routine(kernel)?,
        None => case.ours()?,
    };
    let theirs = match promise.against {
        Routine(name) => case.routine(name)?,
        BestRival => case.best_rival()?,
    };
    let ratio = ours.ratio_to(theirs)?;
    // "Faster" is more than 1.
    let reached = if matches!(promise.against, BestRival) {
        ratio > promise.ratio
    } else {
        ratio >= promise.ratio
    };
    Some(Bar {
        words: promise.words,
        measured: format!("{ratio:.2} x {}", theirs.name),
        wanted: format!("{:.2} x", promise.ratio),
        reached,
    })
}

fn header(case: &Case, core_ghz: Option<f64>) -> Option<Bar> {
    let ns = case.ours()?.median();
    let most = HEADER_NS.max(core_ghz.map_or(0.0, |ghz| HEADER_CYCLES / ghz));
    Some(Bar {
        words: "a header of 20 B, inline",
        measured: format!("{ns:.2} ns"),
        wanted: format!("{most:.2} ns"),
        reached: ns <= most,
    })
}

#[cfg(test)]
mod tests {
    use super::super::event::Role;
    use super::super::figures::tests::{case, figures, routine};
    use super::*;

    #[test]
    fn reached_and_missed() {
        let hot = |ours| {
            let routines = vec![
                routine("shortwire", Role::Ours, &[ours]),
                routine("linux", Role::Rival, &[45.0]),
            ];
            figures(vec![case("hot-1500", "t", "1500", 1500.0, routines)])
        };
        assert!(bars(&hot(12.0))[0].reached);
        assert!(!bars(&hot(13.0))[0].reached);
        assert_eq!(bars(&hot(15.0))[0].measured, "3.00 x linux");
    }

    #[test]
    fn another_kernel_is_not_held_to_them() {
        let mut slow = figures(vec![case(
            "inline-20",
            "t",
            "20",
            20.0,
            vec![routine("shortwire", Role::Ours, &[9.0])],
        )]);
        assert_eq!(bars(&slow).len(), 1);
        slow.start.kernel = "avx2".into();
        assert!(bars(&slow).is_empty());
    }

    #[test]
    fn a_tie_with_the_best_rival_is_a_miss() {
        let routines =
            vec![routine("shortwire", Role::Ours, &[9.0]), routine("vpp", Role::Rival, &[9.0])];
        assert!(!bars(&figures(vec![case("mix-imix", "t", "imix", 340.0, routines)]))[0].reached);
    }

    #[test]
    fn a_header_may_take_six_slow_cycles() {
        let inline = |ns| {
            figures(vec![case(
                "inline-20",
                "t",
                "20",
                20.0,
                vec![routine("shortwire", Role::Ours, &[ns])],
            )])
        };
        // At 2.5 GHz 6 cycles are 2.4 ns.
        assert!(bars(&inline(2.45))[0].reached);
        assert!(!bars(&inline(2.55))[0].reached);
        let mut slow = inline(5.9);
        slow.start.machine.core_ghz = Some(1.0);
        assert!(bars(&slow)[0].reached);
    }
}
