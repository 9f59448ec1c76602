//! Curves: GB/s over length, a panel for each way in which the data lies.

use anyhow::{Result, bail};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::event::{Case, Role};
use super::figures::Figures;
use super::tables;

const PANEL: (u32, u32) = (900, 460);
/// Beside the curves, which leave room for it.
const LEGEND: (i32, i32) = (PANEL.0 as i32 - 165, 60);
const FONT: &str = "sans-serif";
/// Distinct also without colour, by the marks; strong ones first.
const COLOURS: [RGBColor; 10] = [
    RGBColor(200, 30, 30),
    RGBColor(30, 90, 180),
    RGBColor(30, 140, 60),
    RGBColor(230, 140, 20),
    RGBColor(130, 60, 160),
    RGBColor(0, 150, 160),
    RGBColor(150, 100, 60),
    RGBColor(220, 90, 150),
    RGBColor(110, 110, 110),
    RGBColor(120, 160, 30),
];

pub fn draw(figures: &Figures) -> Result<String> {
    let panels: Vec<(&str, Vec<&Case>)> = tables::all(figures)
        .into_iter()
        .filter(|(_, cases)| cases.len() > 1 && cases.iter().all(|case| is_plotted(case)))
        .collect();
    if panels.is_empty() {
        bail!(
            "there is nothing to draw: a curve needs two lengths of one group (hot, large or cold)"
        );
    }
    let mut text = String::new();
    let size = (PANEL.0, PANEL.1 * panels.len() as u32);
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    area.fill(&WHITE).map_err(drawing)?;
    for (part, (title, cases)) in area.split_evenly((panels.len(), 1)).iter().zip(&panels) {
        panel(part, title, cases)?;
    }
    area.present().map_err(drawing)?;
    drop(area);
    Ok(text)
}

/// Where one length stands for all packets, and ours is a sum.
fn is_plotted(case: &Case) -> bool {
    ["hot", "large", "cold"].contains(&case.group.as_str()) && case.ours().is_some()
}

fn panel(area: &DrawingArea<SVGBackend<'_>, Shift>, title: &str, cases: &[&Case]) -> Result<()> {
    let names: Vec<(&str, Role)> = cases[0]
        .routines
        .iter()
        .filter(|routine| routine.role != Role::Kernel)
        .map(|routine| (routine.name.as_str(), routine.role))
        .collect();
    let curve = |name: &str| -> Vec<(f64, f64)> {
        let values = cases
            .iter()
            .filter_map(|case| Some((case.bytes, case.gbps(case.routine(name)?.median()))));
        values.collect()
    };
    let points: Vec<(f64, f64)> = names.iter().flat_map(|(name, _)| curve(name)).collect();
    let bounds = |values: Vec<f64>| {
        let (least, most) = (
            values.iter().copied().fold(f64::MAX, f64::min),
            values.iter().copied().fold(0.0, f64::max),
        );
        (least * 0.8..most * 1.25).log_scale()
    };
    let (x, y) = (
        bounds(points.iter().map(|point| point.0).collect()),
        bounds(points.iter().map(|point| point.1).collect()),
    );
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 18))
        .margin(12)
        .margin_right(180)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(x, y)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc("GB/s")
        .x_label_formatter(&|bytes| number(*bytes))
        .y_label_formatter(&|gbps| number(*gbps))
        .light_line_style(WHITE)
        .draw()
        .map_err(drawing)?;
    for (index, (name, role)) in names.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let style = ShapeStyle {
            color: colour.into(),
            filled: true,
            stroke_width: if *role == Role::Ours { 3 } else { 1 },
        };
        let points = curve(name);
        chart
            .draw_series(points.iter().map(|&point| Circle::new(point, 3, style)))
            .map_err(drawing)?;
        chart.draw_series(LineSeries::new(points, style)).map_err(drawing)?;
        let y = LEGEND.1 + 18 * index as i32;
        area.draw(&PathElement::new([(LEGEND.0, y), (LEGEND.0 + 18, y)], style))
            .map_err(drawing)?;
        area.draw(&Text::new(name.to_string(), (LEGEND.0 + 26, y - 7), (FONT, 14)))
            .map_err(drawing)?;
    }
    Ok(())
}

fn number(value: f64) -> String {
    match value {
        value if value >= f64::from(1 << 20) => format!("{:.0}M", value / f64::from(1 << 20)),
        value if value >= 1.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("cannot draw: {error}")
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{case, figures, routine};
    use super::*;
    use crate::bench::well_formed::assert_well_formed;

    fn two_lengths() -> Figures {
        let at = |length: f64| {
            let routines = vec![
                routine("shortwire", Role::Ours, &[length / 20.0]),
                routine("linux & <co>", Role::Rival, &[length / 10.0]),
                routine("smoltcp", Role::Rival, &[]),
            ];
            case(&format!("hot-{length}"), "In the cache", &length.to_string(), length, routines)
        };
        figures(vec![at(64.0), at(1500.0), at(9000.0)])
    }

    #[test]
    fn the_drawing_is_well_formed_and_has_a_curve_for_each() {
        let text = draw(&two_lengths()).unwrap();
        assert_well_formed(&text);
        assert!(text.starts_with("<svg") && text.contains("In the cache"), "{text:.200}");
        assert!(text.matches("<polyline").count() >= 2);
        assert_eq!(text.matches("<circle").count(), 6, "three lengths of two routines");
    }

    #[test]
    fn one_length_is_no_curve() {
        let mut figures = two_lengths();
        figures.cases.truncate(1);
        assert!(draw(&figures).unwrap_err().to_string().contains("two lengths"));
    }
}
