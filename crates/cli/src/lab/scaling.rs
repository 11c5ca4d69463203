//! Scaling curves: a table, plots, and the cache lines that stop each mechanism.

use std::path::{Path, PathBuf};

use octavo_lab::Form;
use octavo_lab::scaling::{Curve, Mechanism};
use octavo_sim::Machine;
use plotters::prelude::*;
use serde::Serialize;

use crate::choices::{JsonTarget, Mode};
use crate::failure::Failure;
use crate::output::{JsonSink, Text};
use crate::table::Table;

/// What to simulate.
#[derive(Debug)]
pub struct Job<'a> {
    pub machine: Machine,
    pub mechanisms: Vec<Mechanism>,
    pub modes: Vec<Mode>,
    pub cpus: Vec<u32>,
    pub seed: u64,
    pub svg: Option<&'a Path>,
    pub json: Option<&'a JsonTarget>,
}

#[derive(Debug, Serialize)]
struct Curves {
    machine: String,
    seed: u64,
    curves: Vec<Curve>,
}

pub fn run(job: &Job) -> Result<(), Failure> {
    let most = job.cpus.iter().max().copied().unwrap_or(1);
    if most > job.machine.cpus() {
        let all = job.machine.cpus();
        return Err(Failure::Said(format!(
            "{} has {all} CPUs, and not {most}; take another --machine",
            job.machine.name
        )));
    }
    let sink = job.json.map(JsonSink::open).transpose()?;
    let text = Text::beside(job.json);
    let mut cpus: Vec<usize> = job.cpus.iter().map(|cpus| *cpus as usize).collect();
    cpus.sort_unstable();
    cpus.dedup();
    text.line(format!("simulated {}: {}", job.machine.name, job.machine.title))?;
    let mut curves = Vec::new();
    for &mechanism in &job.mechanisms {
        let mut of_mechanism = Vec::new();
        for mode in &job.modes {
            of_mechanism.push(Curve::simulate(&job.machine, job.seed, mechanism, form(*mode), &cpus)?);
        }
        show(&text, &of_mechanism)?;
        if let Some(name) = job.svg {
            let path = file(name, mechanism);
            plot(&path, mechanism, &of_mechanism)
                .map_err(|error| Failure::Said(format!("cannot draw {}: {error}", path.display())))?;
        }
        curves.extend(of_mechanism);
    }
    let all = Curves { machine: job.machine.name.clone(), seed: job.seed, curves };
    sink.map_or(Ok(()), |sink| sink.write(&all))
}

fn form(mode: Mode) -> Form {
    match mode {
        Mode::Base => Form::Base,
        Mode::Patched => Form::Patched,
        Mode::Best => Form::Best,
    }
}

fn file(name: &Path, mechanism: Mechanism) -> PathBuf {
    let mut file = name.as_os_str().to_owned();
    file.push(format!("-{}.svg", mechanism.name()));
    file.into()
}

/// Nanoseconds of an operation on its CPU, and how near to linear the whole is.
fn show(text: &Text, curves: &[Curve]) -> Result<(), Failure> {
    let Some(first) = curves.first() else { return Ok(()) };
    let mut header = vec!["CPUs".to_string()];
    for curve in curves {
        header.extend([format!("{}, ns", curve.form.name()), "of linear".into()]);
    }
    text.line(format!("\n{}", first.mechanism.name()))?;
    let mut table = Table::new(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for (at, &(cpus, _)) in first.points.iter().enumerate() {
        let mut row = vec![cpus.to_string()];
        for curve in curves {
            let each = 1e9 * cpus as f64 / curve.points[at].1;
            row.extend([format!("{each:.1}"), format!("{:.0} %", 100.0 * curve.linearity()[at])]);
        }
        table.row(row);
    }
    text.line(table)?;
    let Some(last) = curves.last().filter(|curve| !curve.lines.is_empty()) else { return Ok(()) };
    text.line(format!(
        "What the {} form waits for at {} CPUs, worst first; the time before the clock starts counts too:",
        last.form.name(),
        first.points[first.points.len() - 1].0
    ))?;
    for line in &last.lines {
        text.line(format!(
            "  {:5.2} % of time, {} transfers: {}",
            100.0 * line.share,
            line.transfers,
            line.functions.join(", ")
        ))?;
    }
    Ok(())
}

const SIZE: (u32, u32) = (720, 480);

fn plot(path: &Path, mechanism: Mechanism, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let most_cpus = points().map(|point| point.0).max().unwrap_or(1) as f64;
    let most = points().map(|point| point.1).fold(1.0, f64::max);
    let least = points().map(|point| point.1).fold(most, f64::min);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("{}, simulated", mechanism.name()), ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(
            (1.0..most_cpus.max(2.0)).log_scale().base(2.0),
            (least..most * 1.5).log_scale(),
        )?;
    chart.configure_mesh().x_desc("CPUs").y_desc("operations a second").draw()?;
    for curve in curves {
        let color = match curve.form {
            Form::Base => RGBColor(200, 60, 60),
            Form::Patched => RGBColor(60, 100, 200),
            Form::Best => RGBColor(40, 140, 80),
        };
        let line = curve.points.iter().map(|&(cpus, rate)| (cpus as f64, rate));
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(2)).point_size(3))?
            .label(curve.form.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_an_image_with_a_line_for_each_form() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder.path().join("curves"), Mechanism::PinShared);
        assert!(path.ends_with("curves-pin-shared.svg"));
        let curve = |form, rate: f64| Curve {
            mechanism: Mechanism::PinShared,
            form,
            points: vec![(1, rate), (2, 2.0 * rate), (128, 90.0 * rate)],
            lines: Vec::new(),
        };
        plot(&path, Mechanism::PinShared, &[curve(Form::Base, 1e6), curve(Form::Best, 2e6)]).unwrap();
        let image = std::fs::read_to_string(&path).unwrap();
        assert!(image.starts_with("<svg") && image.trim_end().ends_with("</svg>"), "{image}");
        assert!(image.contains("base") && image.contains("best") && image.contains("pin-shared, simulated"));
        assert!(image.matches("<polyline").count() >= 2, "{image}");
    }
}
