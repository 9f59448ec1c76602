//! What commands have in common where a person meets them: figures as people write and read them,
//! tables, Ctrl-C, typos.

pub mod near;
pub mod output;
pub mod screen;
pub mod signals;
pub mod table;
pub mod units;
