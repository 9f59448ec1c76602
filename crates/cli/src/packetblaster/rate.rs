//! Packets or bits per second.

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    Packets(f64),
    Bits(f64),
}

/// `2Mpps`, `500kpps`, `1Gb/s`, `100Mbit/s`: powers of 1000.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    let hint = || "give a rate such as 2Mpps, 500kpps, 1Gb/s or 100Mb/s".to_string();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| hint())?;
    let unit = unit.trim().to_ascii_lowercase();
    let (factor, unit) = match unit.as_bytes().first() {
        Some(b'k') => (1e3, &unit[1..]),
        Some(b'm') => (1e6, &unit[1..]),
        Some(b'g') => (1e9, &unit[1..]),
        _ => (1.0, unit.as_str()),
    };
    let value = number * factor;
    if !(value.is_finite() && value > 0.0) {
        return Err(hint());
    }
    match unit {
        "pps" => Ok(Rate::Packets(value)),
        "b/s" | "bit/s" | "bps" => Ok(Rate::Bits(value)),
        _ => Err(hint()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(parse_rate("2Mpps"), Ok(Rate::Packets(2e6)));
        assert_eq!(parse_rate("1.5 kpps"), Ok(Rate::Packets(1500.0)));
        assert_eq!(parse_rate("1Gb/s"), Ok(Rate::Bits(1e9)));
        assert_eq!(parse_rate("64bit/s"), Ok(Rate::Bits(64.0)));
        for bad in ["", "2", "Mpps", "0pps", "-1pps", "1Xpps", "1G"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }
}
