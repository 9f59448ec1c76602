//! A table for the cases that differ in lengths only: a row for each routine, a column for each
//! length.

use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};
use terminal::units::engineering;

use super::event::{Case, Role, Routine};
use super::figures::Figures;

const LINES: TableStyle = TableStyle::new()
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// Each with its title, in the order of the cases.
pub fn all(figures: &Figures) -> Vec<(&str, Vec<&Case>)> {
    let mut tables: Vec<(&str, Vec<&Case>)> = Vec::new();
    for case in &figures.cases {
        match tables.iter_mut().find(|(title, _)| *title == case.table) {
            Some((_, cases)) => cases.push(case),
            None => tables.push((&case.table, vec![case])),
        }
    }
    tables
}

pub fn text(title: &str, cases: &[&Case]) -> String {
    let mut table = Table::new();
    table.load_style(LINES);
    table.set_header(
        [Cell::new("ns per packet")]
            .into_iter()
            .chain(cases.iter().map(|case| right(&case.column))),
    );
    let mut names: Vec<(&str, Role)> = Vec::new();
    for routine in cases.iter().flat_map(|case| &case.routines) {
        if !names.iter().any(|(name, _)| *name == routine.name) {
            names.push((&routine.name, routine.role));
        }
    }
    for (name, role) in names {
        let label =
            if role == Role::Kernel { format!("  kernel {name}") } else { name.to_string() };
        row(&mut table, &label, cases, |case| cell(case, name));
        if role == Role::Ours {
            row(&mut table, "  quartiles", cases, |case| case.ours().and_then(spread));
        }
    }
    if cases.iter().any(|case| case.ours().is_some()) {
        row(&mut table, "GB/s", cases, |case| {
            Some(format!("{:.1}", case.gbps(case.ours()?.median())))
        });
        against(&mut table, "to linux", cases, |case| case.routine("linux"), false);
        against(&mut table, "to best rival", cases, Case::best_rival, true);
        against(&mut table, "to read", cases, |case| case.routine("read"), false);
        against(&mut table, "to memcpy", cases, |case| case.routine("memcpy"), false);
    }
    format!("{title}{}\n{table}\n", writer(cases))
}

fn row(table: &mut Table, label: &str, cases: &[&Case], value: impl Fn(&Case) -> Option<String>) {
    let values = cases.iter().map(|case| right(&value(case).unwrap_or_else(|| "-".into())));
    table.add_row([Cell::new(label)].into_iter().chain(values));
}

/// How many times faster ours is.
fn against<'a>(
    table: &mut Table,
    label: &str,
    cases: &[&'a Case],
    rival: impl Fn(&'a Case) -> Option<&'a Routine>,
    named: bool,
) {
    if !cases.iter().any(|case| rival(case).is_some()) {
        return;
    }
    let values = cases.iter().map(|&case| {
        let value = case.ours().zip(rival(case)).and_then(|(ours, rival)| {
            let name = if named { format!("\n{}", rival.name) } else { String::new() };
            Some(format!("{:.2} x{name}", ours.ratio_to(rival)?))
        });
        right(&value.unwrap_or_else(|| "-".into()))
    });
    table.add_row([Cell::new(label)].into_iter().chain(values));
}

fn cell(case: &Case, name: &str) -> Option<String> {
    let routine = case.routines.iter().find(|routine| routine.name == name)?;
    Some(if routine.wrong { "WRONG".into() } else { engineering(routine.summary()?.median) })
}

fn spread(routine: &Routine) -> Option<String> {
    let (low, high) = routine.quartiles()?;
    Some(format!("{}..\n{}", engineering(low), engineering(high)))
}

fn writer(cases: &[&Case]) -> String {
    let rates: Vec<f64> = cases.iter().filter_map(|case| case.writer_gbps).collect();
    let least = rates.iter().copied().reduce(f64::min);
    let most = rates.iter().copied().reduce(f64::max);
    least
        .zip(most)
        .map_or_else(String::new, |(least, most)| format!(" at {least:.1} to {most:.1} GB/s"))
}

pub fn right(text: &str) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

pub fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(LINES);
    table
}
