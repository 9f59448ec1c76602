//! The rows of `top` as text: the same for the terminal and for `--once`.

use terminal::units::engineering;

use super::By;
use super::groups::Row;
use crate::ss::shortened;

/// Columns of names come first and are as wide as they need to be, as far as there is room;
/// figures are never cut.
const NARROWEST: usize = 9;

/// Heading and rows, each with its line end.
pub fn lines(rows: &[Row], by: By, width: Option<usize>) -> Vec<String> {
    let (names, header): (usize, Vec<&str>) = match by {
        By::Connection => {
            (2, vec!["program", "peer", "rx/s", "tx/s", "msg/s", "bell/msg", "waits", "mode"])
        }
        By::Program => (
            1,
            vec!["program", "ends", "SMCD", "rx/s", "tx/s", "memory", "msg/s", "bell/msg", "why"],
        ),
        By::Pair => (
            2,
            vec![
                "program", "peer", "conns", "SMCD", "bytes/s", "memory", "msg/s", "bell/msg", "why",
            ],
        ),
    };
    let mut cells = vec![header.into_iter().map(String::from).collect::<Vec<_>>()];
    cells.extend(rows.iter().map(|row| match by {
        By::Connection => of_connection(row),
        By::Program => of_program(row),
        By::Pair => of_pair(row),
    }));
    aligned(&cells, names, width)
}

fn of_connection(row: &Row) -> Vec<String> {
    vec![
        row.program.clone(),
        row.peer.clone(),
        figure(row.memory_rx + row.tcp_rx),
        figure(row.memory_tx + row.tcp_tx),
        figure(row.messages),
        share(row.doorbells_per_message),
        row.waits.into(),
        row.mode.clone().unwrap_or_default(),
    ]
}

fn of_program(row: &Row) -> Vec<String> {
    vec![
        row.program.clone(),
        row.connections.to_string(),
        row.smcd.to_string(),
        figure(row.memory_rx + row.tcp_rx),
        figure(row.memory_tx + row.tcp_tx),
        percent(row.through_memory()),
        figure(row.messages),
        share(row.doorbells_per_message),
        row.reason.unwrap_or("-").into(),
    ]
}

fn of_pair(row: &Row) -> Vec<String> {
    vec![
        row.program.clone(),
        row.peer.clone(),
        row.connections.to_string(),
        row.smcd.to_string(),
        figure(row.bytes()),
        percent(row.through_memory()),
        figure(row.messages),
        share(row.doorbells_per_message),
        row.reason.unwrap_or("-").into(),
    ]
}

fn figure(value: f64) -> String {
    if value == 0.0 { "0".into() } else { engineering(value) }
}

fn share(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.2}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{:.0}%", value * 100.0))
}

fn aligned(cells: &[Vec<String>], names: usize, width: Option<usize>) -> Vec<String> {
    let columns = cells.first().map_or(0, Vec::len);
    let mut widths: Vec<usize> = (0..columns)
        .map(|column| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    while let Some(width) = width
        && widths.iter().sum::<usize>() + 2 * (columns - 1) > width
    {
        let widest = (0..names).max_by_key(|&column| widths[column]).unwrap_or(0);
        if widths[widest] <= NARROWEST {
            break;
        }
        widths[widest] -= 1;
    }
    // The last column is words again, and may be as long as it is.
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let (cell, width) = (shortened(cell, widths[column], false), widths[column]);
            if column < names || column == columns - 1 {
                line += &format!("{cell:<width$}  ");
            } else {
                line += &format!("{cell:>width$}  ");
            }
        }
        format!("{}\n", line.trim_end())
    };
    cells.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::groups::{rows, tests::change};
    use super::super::{By, Sort};
    use super::*;

    #[test]
    fn rows_fit_80_columns_in_each_view() {
        for (by, parts) in [
            (By::Connection, ["12/redis", "TCP PEER_NO_SMC", "spins"]),
            (By::Program, ["client", "PEER_NO_SMC", "memory"]),
            (By::Pair, ["client", "0.25", "conns"]),
        ] {
            let mut rows = rows(&change(), by, Sort::Bytes);
            rows[0].program += "-with-a-rather-long-name-in-front-of-it";
            let lines = lines(&rows, by, Some(80));
            assert!(lines.iter().all(|line| line.trim_end().chars().count() <= 80), "{lines:#?}");
            let text = lines.concat();
            for part in parts {
                assert!(text.contains(part), "{part} is missing in\n{text}");
            }
            assert!(super::lines(&rows, by, None).concat().contains("in-front-of-it"));
        }
    }
}
