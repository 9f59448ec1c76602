//! For tests of what is drawn.

/// Every element closed in order, every attribute quoted, nothing unescaped: what an XML parser
/// insists on.
pub fn assert_well_formed(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some((before, tag)) = rest.split_once('<') {
        assert!(!before.contains('>'), "stray > before <{tag:.40}");
        let (inside, behind) = tag.split_once('>').expect("an element ends");
        rest = behind;
        assert_eq!(inside.matches('"').count() % 2, 0, "{inside}");
        let name = |inside: &'_ str| inside.split_whitespace().next().unwrap_or_default().len();
        if inside.starts_with(['?', '!']) || inside.ends_with('/') {
            continue;
        }
        match inside.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed)),
            None => open.push(&inside[..name(inside)]),
        }
    }
    assert!(open.is_empty(), "{open:?} stay open");
    let ampersands = text.split('&').skip(1);
    ampersands
        .for_each(|after| assert!(after.split(';').next().unwrap().len() <= 5, "&{after:.20}"));
}
