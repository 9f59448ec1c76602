//! What a program can observe of its connections is the same with and without the library, before and after the switch.

use system_tests::{Ports, Variant, case, compile, same_transcript};

/// The argument is the number of round trips before each observation: with 64 both directions have switched.
fn semantics(program: &str) {
    case(program, |c| {
        let variants = [
            Variant { ports: Ports::Low, args: &["0"], upgraded: false },
            Variant { ports: Ports::Low, args: &["64"], upgraded: true },
            Variant { ports: Ports::High, args: &["64"], upgraded: true },
        ];
        same_transcript(c, &compile(program)?, &variants);
        Ok(())
    });
}

#[test]
fn data() {
    semantics("sem_data");
}

#[test]
fn ends() {
    semantics("sem_end");
}

#[test]
fn signals() {
    semantics("sem_signal");
}

#[test]
fn readiness() {
    semantics("sem_wait");
}

#[test]
fn sets_and_threads() {
    semantics("sem_sets");
}

/// Random walks over the calls: the transcript of each must be that of plain TCP, wherever in it the switch falls.
#[test]
fn random_walks() {
    case("walk", |c| {
        let program = compile("walk")?;
        let seeds = std::env::var("SHORTWIRE_TEST_WALKS").ok().and_then(|n| n.parse().ok()).unwrap_or(24u64);
        for seed in 1..=seeds {
            let seed = seed.to_string();
            let mut variants = Vec::new();
            for warm in ["0", "7", "40"] {
                variants.push([seed.as_str(), "300", warm]);
            }
            let variants: Vec<Variant> =
                variants.iter().map(|args| Variant { ports: Ports::High, args, upgraded: false }).collect();
            same_transcript(c, &program, &variants);
        }
        Ok(())
    });
}
