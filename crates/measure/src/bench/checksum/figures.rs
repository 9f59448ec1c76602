//! All values of a run, and what is computed from them.

use super::event::{Case, Role, Routine, Start};
use crate::bench::samples::{Summary, median};

/// Everything that one run gave.
pub struct Figures {
    pub start: Start,
    pub cases: Vec<Case>,
    pub skipped: Vec<(String, String)>,
}

impl Figures {
    pub fn case(&self, name: &str) -> Option<&Case> {
        self.cases.iter().find(|case| case.case == name)
    }
}

impl Case {
    pub fn routine(&self, name: &str) -> Option<&Routine> {
        self.routines.iter().find(|routine| routine.name == name && !routine.ns.is_empty())
    }

    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Routine> {
        self.routines.iter().filter(move |routine| routine.role == role && !routine.ns.is_empty())
    }

    pub fn ours(&self) -> Option<&Routine> {
        self.with_role(Role::Ours).next()
    }

    pub fn best_rival(&self) -> Option<&Routine> {
        self.with_role(Role::Rival).min_by(|one, other| one.median().total_cmp(&other.median()))
    }

    /// 10^9 bytes per second at so many ns per packet.
    pub fn gbps(&self, ns: f64) -> f64 {
        self.bytes / ns
    }
}

impl Routine {
    pub fn summary(&self) -> Option<Summary> {
        let sorted = sorted(self.ns.iter().copied());
        Some(Summary {
            median: median(&sorted)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            n: sorted.len(),
        })
    }

    pub fn median(&self) -> f64 {
        median(&sorted(self.ns.iter().copied())).unwrap_or(f64::NAN)
    }

    /// The values below which a quarter and three quarters of all lie.
    pub fn quartiles(&self) -> Option<(f64, f64)> {
        quartiles(&sorted(self.ns.iter().copied()))
    }

    /// How many times faster than `other`: the median of the ratios within a round.
    pub fn ratio_to(&self, other: &Routine) -> Option<f64> {
        median(&self.ratios_to(other))
    }

    /// Sorted.
    pub fn ratios_to(&self, other: &Routine) -> Vec<f64> {
        sorted(
            self.ns
                .iter()
                .zip(&other.ns)
                .map(|(ours, theirs)| theirs / ours)
                .filter(|ratio| ratio.is_finite()),
        )
    }
}

pub fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Of sorted values.
pub fn quartiles(values: &[f64]) -> Option<(f64, f64)> {
    let last = values.len().checked_sub(1)?;
    Some((values[last / 4], values[last - last / 4]))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bench::checksum::event::Probed;

    pub fn routine(name: &str, role: Role, ns: &[f64]) -> Routine {
        Routine { name: name.into(), role, wrong: false, ns: ns.into() }
    }

    pub fn case(name: &str, table: &str, column: &str, bytes: f64, routines: Vec<Routine>) -> Case {
        let group = name.split('-').next().unwrap_or_default().into();
        Case {
            case: name.into(),
            group,
            table: table.into(),
            column: column.into(),
            bytes,
            routines,
            dropped: 0,
            disturbed: false,
            additions_per_cycle: 3.0,
            writer_gbps: None,
        }
    }

    pub fn figures(cases: Vec<Case>) -> Figures {
        let machine = Probed {
            counter_ghz: 2.0,
            core_ghz: Some(2.5),
            measuring_cpu: Some(1),
            writing_cpu: Some(0),
            region_bytes: 512 << 20,
            compiled_for: "x86_64".into(),
        };
        let start = Start {
            machine,
            kernel: "avx512vnni".into(),
            absent: Vec::new(),
            cases: cases.len(),
            estimate_seconds: 1.0,
        };
        Figures { start, cases, skipped: Vec::new() }
    }

    #[test]
    fn ratios_pair_rounds() {
        let ours = routine("shortwire", Role::Ours, &[10.0, 20.0, 10.0]);
        let theirs = routine("linux", Role::Rival, &[30.0, 40.0, 35.0]);
        assert_eq!(ours.ratio_to(&theirs), Some(3.0));
        assert_eq!(theirs.median(), 35.0);
        assert_eq!(ours.ratio_to(&routine("wrong", Role::Rival, &[])), None);
    }

    #[test]
    fn the_best_rival_has_values() {
        let case = case(
            "hot-64",
            "t",
            "64",
            64.0,
            vec![
                routine("linux", Role::Rival, &[6.0]),
                routine("vpp", Role::Rival, &[5.0]),
                routine("smoltcp", Role::Rival, &[]),
                routine("read", Role::Read, &[1.0]),
            ],
        );
        assert_eq!(case.best_rival().unwrap().name, "vpp");
        assert!(case.ours().is_none() && case.routine("smoltcp").is_none());
        assert_eq!(case.gbps(4.0), 16.0);
    }

    #[test]
    fn quartiles_of_few_and_many() {
        assert_eq!(quartiles(&[]), None);
        assert_eq!(quartiles(&[5.0]), Some((5.0, 5.0)));
        assert_eq!(quartiles(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some((2.0, 4.0)));
    }
}
