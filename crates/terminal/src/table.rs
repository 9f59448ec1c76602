//! How tables look.

use comfy_table::{Cell, LineStyle, Table, TableStyle};

pub const LINES: TableStyle = TableStyle::new()
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

pub fn new<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(LINES);
    table.set_header(header.map(Cell::new));
    table
}
