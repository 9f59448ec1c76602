//! The command line of `bench shunt`.

use crate::units::parse_seconds;

#[derive(clap::Args)]
#[command(
    about = "Repeat the experiment of two driver instances that slow each other, between models of a network card"
)]
#[command(
    long_about = "Joins two models of the Intel 82599 by a shunt, with a packetblaster that replays packets of 64 bytes at the far end of \
each cable, on one processor: one instance of the driver and two; then with apps in Lua in either direction, with own copies of their code and \
without, with one ctype and with one for each instance. The figures of the source document (Snabb's issue 612) stand beside. What the models \
cost by themselves is measured, taken off, and shown. A model is no network card, and its rate is none of one."
)]
pub struct BenchShunt {
    /// How long each run takes
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Rounds: each runs every row once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// 3 rounds of 0.3 s
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
