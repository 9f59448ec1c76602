//! Rate, loss and latency: as a picture, and as a table with bars.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use terminal::units::engineering;

use super::Outcome;
use super::trial::Trial;

/// By rate, since trials jump to and fro.
fn sorted(trials: &[Trial]) -> Vec<&Trial> {
    let mut all: Vec<&Trial> = trials.iter().collect();
    all.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    all
}

pub fn svg(trials: &[Trial], best: Option<&Trial>) -> Result<String> {
    draw(trials, best).map_err(|error| anyhow!("{error}"))
}

fn draw(trials: &[Trial], best: Option<&Trial>) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    {
        let all = sorted(trials);
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let rates = 0.0..most(&mut all.iter().map(|trial| trial.rate / 1e6)) * 1.05;
        let losses = 0.0..most(&mut all.iter().map(|trial| trial.loss_percent)).max(0.1) * 1.05;
        let latencies = all.iter().filter_map(|trial| Some((trial, trial.latency_us?)));
        let longest =
            0.0..most(&mut latencies.clone().map(|(_, latency)| latency.p99)).max(1.0) * 1.05;
        let root = SVGBackend::with_string(&mut text, (900, 700)).into_drawing_area();
        root.fill(&WHITE)?;
        let (upper, lower) = root.split_vertically(350);
        let mut loss = ChartBuilder::on(&upper)
            .caption("loss by rate", ("sans-serif", 20))
            .margin(15)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(rates.clone(), losses.clone())?;
        loss.configure_mesh().x_desc("sent, Mpps").y_desc("loss, %").draw()?;
        let points: Vec<(f64, f64)> =
            all.iter().map(|trial| (trial.rate / 1e6, trial.loss_percent)).collect();
        loss.draw_series(LineSeries::new(points.iter().copied(), &RED))?;
        loss.draw_series(points.iter().map(|point| Circle::new(*point, 3, RED.filled())))?;
        if let Some(best) = best {
            let at = best.rate / 1e6;
            loss.draw_series(LineSeries::new([(at, losses.start), (at, losses.end)], &BLACK))?;
        }
        let mut delay = ChartBuilder::on(&lower)
            .caption("latency by rate: median blue, 99 % green", ("sans-serif", 20))
            .margin(15)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(rates, longest)?;
        delay.configure_mesh().x_desc("sent, Mpps").y_desc("latency, us").draw()?;
        for (color, p99) in [(&BLUE, false), (&GREEN, true)] {
            let value =
                |latency: super::trial::Latency| if p99 { latency.p99 } else { latency.p50 };
            let points =
                latencies.clone().map(|(trial, latency)| (trial.rate / 1e6, value(latency)));
            delay.draw_series(LineSeries::new(points, color))?;
        }
        root.present()?;
    }
    Ok(text)
}

/// Width of the longest bar.
const WIDTH: f64 = 30.0;

pub fn text(outcome: &Outcome) -> String {
    let all = sorted(outcome.trials);
    let fastest = all.last().map_or(1.0, |trial| trial.rate);
    let mut table = terminal::table::new(["rate", "", "loss", "median", "99 %", "longest"]);
    for trial in &all {
        let bar = "█".repeat((trial.rate / fastest * WIDTH).round().max(1.0) as usize);
        let us = |value: Option<f64>| value.map_or_else(|| "-".into(), |us| format!("{us:.1} us"));
        table.add_row([
            format!("{}pps", engineering(trial.rate)),
            bar,
            format!("{:.3}%", trial.loss_percent),
            us(trial.latency_us.map(|latency| latency.p50)),
            us(trial.latency_us.map(|latency| latency.p99)),
            us(trial.latency_us.map(|latency| latency.max)),
        ]);
    }
    let limit = outcome.loss_limit_percent;
    let found = match (outcome.packets_per_second, outcome.bits_per_second) {
        (Some(packets), Some(bits)) => {
            let sender = match all.last() {
                Some(last) if last.rate == packets => {
                    ": all that was asked for or that the sender can"
                }
                _ => "",
            };
            format!("{}pps, {}bit/s on a wire{sender}", engineering(packets), engineering(bits))
        }
        _ => "none that was tried".into(),
    };
    format!(
        "{table}\nhighest rate from {} to {} with loss up to {limit}%: {found}\n",
        outcome.from, outcome.to
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadtest::trial::Latency;

    fn trial(rate: f64, loss_percent: f64) -> Trial {
        let latency_us = Some(Latency { p50: 10.0, p99: 20.0, max: 30.0 });
        Trial { asked: None, rate, sent: 1, received: 1, loss_percent, latency_us }
    }

    #[test]
    fn the_picture_has_both_curves_and_the_table_the_result() {
        let trials = [trial(2e6, 3.0), trial(1e6, 0.0)];
        let svg = draw(&trials, Some(&trials[1])).unwrap();
        for part in ["<svg", "loss by rate", "latency by rate", "Mpps"] {
            assert!(svg.contains(part), "{part}");
        }
        let outcome = Outcome {
            from: "a",
            to: "b",
            loss_limit_percent: 0.0,
            packets_per_second: Some(1e6),
            bits_per_second: Some(672e6),
            trials: &trials,
        };
        let text = text(&outcome);
        assert!(
            text.contains("1.00Mpps") && text.contains("3.000%") && text.contains("672Mbit/s"),
            "{text}"
        );
    }
}
