//! Sizes and times as people write them, and as people read them.

/// `65536`, `64K`, `64KiB`, `1M`: powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    smc::setting::size(text.as_bytes()).ok_or_else(|| SIZE_HINT.into())
}

const SIZE_HINT: &str =
    "give a number of bytes, or one with K, M or G behind it, such as 65536 or 64K";

/// `2`, `0.5`, `500ms`, `2s`, `1m`: seconds when nothing is said.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    let hint =
        || "give a time such as 2, 0.5, 500ms, 2s or 1m (more than 0, at most an hour)".to_string();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let factor = match suffix {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        _ => return Err(hint()),
    };
    let seconds = number.parse::<f64>().map_err(|_| hint())? * factor;
    if seconds > 0.0 && seconds <= 3_600.0 { Ok(seconds) } else { Err(hint()) }
}

/// Three significant digits with k, M, G (powers of 1000): how figures are read, not how they are
/// stored.
pub fn engineering(value: f64) -> String {
    let magnitude = value.abs();
    let (scaled, suffix) = match magnitude {
        m if m >= 1e9 => (value / 1e9, "G"),
        m if m >= 1e6 => (value / 1e6, "M"),
        m if m >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match scaled.abs() {
        s if s >= 100.0 => 0,
        s if s >= 10.0 => 1,
        _ => 2,
    };
    let digits = format!("{scaled:.decimals$}");
    // What is rounded to nothing has no sign.
    let digits = digits.strip_prefix('-').filter(|rest| is_nothing(rest)).unwrap_or(&digits);
    format!("{digits}{suffix}")
}

fn is_nothing(digits: &str) -> bool {
    digits.bytes().all(|byte| matches!(byte, b'0' | b'.'))
}

/// Microseconds as people read them: `0.45 us`, `17.6 ms`, `2.10 s`.
pub fn time_us(us: f64) -> String {
    let (value, unit) = match us.abs() {
        m if m >= 1e6 => (us / 1e6, "s"),
        m if m >= 1e4 => (us / 1e3, "ms"),
        _ => (us, "us"),
    };
    format!("{} {unit}", engineering(value))
}

/// `8.0K`, `3.2M`: amounts of bytes as the smc tools print them, powers of 1024.
pub fn bytes(value: u64) -> String {
    let mut scaled = value as f64;
    for suffix in ["", "K", "M", "G"] {
        if scaled < 1024.0 {
            return if suffix.is_empty() {
                value.to_string()
            } else {
                format!("{scaled:.1}{suffix}")
            };
        }
        scaled /= 1024.0;
    }
    format!("{scaled:.1}T")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("65536"), Ok(65_536));
        assert_eq!(parse_size("64K"), Ok(65_536));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        for bad in ["", "K", "-1", "1.5M", "64X", "99999999999999999999", "99999999999999G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(parse_seconds("2"), Ok(2.0));
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        assert_eq!(parse_seconds("500ms"), Ok(0.5));
        assert_eq!(parse_seconds("1m"), Ok(60.0));
        for bad in ["", "0", "-1", "s", "1h", "1.2.3", "4000", "nan", "inf"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(engineering(8.456), "8.46");
        assert_eq!(engineering(9_750.0), "9750");
        assert_eq!(engineering(127_877.0), "128k");
        assert_eq!(engineering(1_432_665.0), "1.43M");
        assert_eq!(engineering(45.1e9), "45.1G");
        assert_eq!([engineering(-0.001), engineering(-0.01)], ["0.00", "-0.01"]);
        assert_eq!([time_us(0.449), time_us(9_750.0)], ["0.45 us", "9750 us"]);
        assert_eq!([time_us(17_600.0), time_us(2.1e6)], ["17.6 ms", "2.10 s"]);
        assert_eq!(bytes(800), "800");
        assert_eq!(bytes(64 << 10), "64.0K");
        assert_eq!(bytes(3 << 30), "3.0G");
    }
}
