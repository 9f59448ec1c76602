//! Random walks: what two programs observe of the connections between them, whatever they call next.

use system_tests::{Ports, Variant, case, compile, same_transcript};

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
