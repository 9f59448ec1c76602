//! Sizes and times as people write them, and as people read them.

use crate::args::{Cpus, Rate};

/// `65536`, `64K`, `64KiB`, `1M`: powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    smc::setting::size(text.as_bytes()).ok_or_else(|| SIZE_HINT.into())
}

/// `1`, `no`, `true`, `off`.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    let hint = || "give 1, true, yes or on, or else 0, false, no or off".to_string();
    smc::setting::switch(text.as_bytes()).ok_or_else(hint)
}

const SIZE_HINT: &str = "give a number of bytes, or one with K, M or G behind it, such as 65536 or 64K";

/// The receive buffer that the peer writes into: SMC-D's sizes are powers of two.
pub fn parse_dmb_size(text: &str) -> Result<u64, String> {
    let hint = || "give a power of two from 16K to 16M, such as 256K".to_string();
    smc::setting::dmb_size(text.as_bytes()).ok_or_else(hint)
}

/// `2`, `0.5`, `500ms`, `2s`, `1m`: seconds when nothing is said.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    let hint = || "give a time such as 2, 0.5, 500ms, 2s or 1m (more than 0, at most an hour)".to_string();
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

/// `1`, `0,2`, `2-5,8`: numbers of processors.
pub fn parse_cpus(text: &str) -> Result<Cpus, String> {
    let hint = || "give numbers of processors such as 1, 0,2 or 2-5,8".to_string();
    let number = |text: &str| text.parse::<usize>().ok().filter(|cpu| *cpu < 1024).ok_or_else(hint);
    let mut cpus = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => cpus.push(number(part)?),
            Some((first, last)) => cpus.extend(number(first)?..=number(last)?),
        }
    }
    if cpus.is_empty() { Err(hint()) } else { Ok(Cpus(cpus)) }
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

/// `02:00:00:00:00:01`
pub fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() <= 2)).collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| "give a MAC address such as 02:00:00:00:00:01".to_string())
}

/// Three significant digits with k, M, G (powers of 1000): how figures are read, not how they are stored.
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
    format!("{scaled:.decimals$}{suffix}")
}

/// `8.0K`, `3.2M`: amounts of bytes as the smc tools print them, powers of 1024.
pub fn bytes(value: u64) -> String {
    let mut scaled = value as f64;
    for suffix in ["", "K", "M", "G"] {
        if scaled < 1024.0 {
            return if suffix.is_empty() { value.to_string() } else { format!("{scaled:.1}{suffix}") };
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
    fn dmb_sizes_are_the_protocols() {
        assert_eq!(parse_dmb_size("16K"), Ok(16 << 10));
        assert_eq!(parse_dmb_size("16M"), Ok(16 << 20));
        for bad in ["8K", "32M", "100K", "0", "many"] {
            assert!(parse_dmb_size(bad).is_err(), "{bad}");
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
    fn processors() {
        assert_eq!(parse_cpus("1"), Ok(Cpus(vec![1])));
        assert_eq!(parse_cpus("2-4,8"), Ok(Cpus(vec![2, 3, 4, 8])));
        for bad in ["", "a", "1-", "4-2", "1,,2", "1024"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }

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

    #[test]
    fn mac_addresses() {
        assert_eq!(parse_mac("02:00:0:00:00:ff"), Ok([2, 0, 0, 0, 0, 255]));
        for bad in ["", "02:00:00:00:00", "02:00:00:00:00:00:01", "02:00:00:00:00:001", "zz:00:00:00:00:00"] {
            assert!(parse_mac(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(engineering(8.456), "8.46");
        assert_eq!(engineering(9_750.0), "9750");
        assert_eq!(engineering(127_877.0), "128k");
        assert_eq!(engineering(1_432_665.0), "1.43M");
        assert_eq!(engineering(45.1e9), "45.1G");
        assert_eq!(bytes(800), "800");
        assert_eq!(bytes(64 << 10), "64.0K");
        assert_eq!(bytes(3 << 30), "3.0G");
    }
}
