//! Which word was meant by one that is none.

/// The words nearest to this one, if any is so near that a slip of the finger explains it: a letter
/// wrong, missing, too many, or two that changed places, for each three that it has. So is one of
/// which it is the beginning.
pub fn nearest<'a>(wrong: &str, words: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let most = (wrong.chars().count() / 3).max(1);
    let distance = |word: &&'a str| {
        let begins = wrong.len() >= 2 && word.starts_with(wrong);
        if begins { 1 } else { strsim::osa_distance(&wrong.to_lowercase(), word) }
    };
    let near: Vec<(usize, &str)> = words
        .into_iter()
        .map(|word| (distance(&word), word))
        .filter(|(far, word)| *far <= most && *far < word.chars().count())
        .collect();
    let least = near.iter().map(|(far, _)| *far).min();
    near.into_iter().filter(|(far, _)| Some(*far) == least).map(|(_, word)| word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_seen_and_other_words_are_not() {
        let words = ["run", "ss", "top", "stats", "enable", "disable", "packetblaster"];
        assert_eq!(nearest("rnu", words), ["run"]);
        assert_eq!(nearest("rn", words), ["run"]);
        assert_eq!(nearest("Run", words), ["run"]);
        assert_eq!(nearest("satts", words), ["stats"]);
        assert_eq!(nearest("ennabel", words), ["enable"]);
        assert_eq!(nearest("packetbalster", words), ["packetblaster"]);
        assert_eq!(nearest("packet", words), ["packetblaster"]);
        assert_eq!(nearest("x", words), Vec::<&str>::new());
        assert_eq!(nearest("xx", words), Vec::<&str>::new());
        assert_eq!(nearest("frobnicate", words), Vec::<&str>::new());
    }
}
