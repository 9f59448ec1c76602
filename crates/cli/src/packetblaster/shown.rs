//! What `shortwire ps` and `top` see of a program that sends.

use ::engine::counters::run_root;
use ::engine::engine::Solo;
use ::engine::link::LinkStats;

/// Nothing where there is no place to publish: the program does its work all the same.
pub struct Shown(Option<Solo>);

impl Shown {
    /// `itself` is the program; it sends to the first of these and receives from the second, each by
    /// name and kind.
    pub fn open(itself: &str, to: Option<(&str, &str)>, from: Option<(&str, &str)>) -> Self {
        let (to, from) = (to.map(named), from.map(named));
        let mut apps = vec![(itself, itself)];
        apps.extend(to.iter().chain(&from).map(|(name, kind)| (name.as_str(), *kind)));
        let links: Vec<String> = [
            to.as_ref().map(|(name, _)| format!("{itself}.output -> {name}.input")),
            from.as_ref().map(|(name, _)| format!("{name}.output -> {itself}.input")),
        ]
        .into_iter()
        .flatten()
        .collect();
        let links: Vec<&str> = links.iter().map(String::as_str).collect();
        let made = run_root().map_err(Into::into).and_then(|root| Solo::open(&root, &apps, &links));
        if let Err(error) = &made {
            eprintln!("`shortwire ps` will not see this: {error}");
        }
        Self(made.ok())
    }

    /// In each turn; `links` is asked now and then.
    #[inline]
    pub fn turn<const N: usize>(&mut self, now: u64, links: impl FnOnce() -> [LinkStats; N]) {
        if let Some(solo) = &mut self.0
            && solo.is_due(now)
        {
            solo.show(now, &links());
        }
    }
}

fn named<'a>((name, kind): (&str, &'a str)) -> (String, &'a str) {
    (Solo::name(name), kind)
}

/// A link through which so much went.
pub fn passed(packets: u64, bytes: u64) -> LinkStats {
    LinkStats { txpackets: packets, txbytes: bytes, txdrop: 0, rxpackets: packets, rxbytes: bytes }
}
