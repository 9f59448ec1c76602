//! Random walks: what two programs observe of the connections between them, whatever they call
//! next.

use system_tests::{Ports, Variant, case, compile, same_transcript};

/// How many walks of each kind.
fn seeds() -> impl Iterator<Item = String> {
    let count =
        std::env::var("SHORTWIRE_TEST_WALKS").ok().and_then(|n| n.parse().ok()).unwrap_or(24u64);
    (1..=count).map(|seed| seed.to_string())
}

/// Random walks over the calls: the transcript of each must be that of plain TCP, wherever in it
/// the switch falls.
#[test]
fn random_walks() {
    case("walk", |c| {
        let program = compile("walk")?;
        for seed in seeds() {
            let variants = ["0", "7", "40"].map(|warm| [seed.as_str(), "300", warm]);
            let variants: Vec<Variant> = variants
                .iter()
                .map(|args| Variant { ports: Ports::High, args, upgraded: false })
                .collect();
            same_transcript(c, &program, &variants);
        }
        Ok(())
    });
}

/// The same with threads, children, time limits, resets and kills: of two programs, or one of which
/// has no library.
#[test]
fn random_wanderings() {
    case("wander", |c| {
        let program = compile("wander")?;
        let kinds: [&[[&str; 3]]; 2] = [
            &[
                ["any", "both", "copy"],
                ["0", "both", "copy"],
                ["40", "both", ""],
                ["any", "here", ""],
                ["any", "there", ""],
            ],
            // What a killed peer had read is not known over a device that copies: these are other
            // walks.
            &[["any", "both", "ism"], ["40", "both", "ism"]],
        ];
        for seed in seeds() {
            for kind in kinds {
                let variants: Vec<Vec<&str>> = kind
                    .iter()
                    .map(|args| {
                        [seed.as_str(), "60"]
                            .iter()
                            .chain(args)
                            .copied()
                            .filter(|arg| !arg.is_empty())
                            .collect()
                    })
                    .collect();
                let variants: Vec<Variant> = variants
                    .iter()
                    .map(|args| Variant { ports: Ports::High, args, upgraded: false })
                    .collect();
                same_transcript(c, &program, &variants);
            }
        }
        Ok(())
    });
}
