//! Scaling curves: a table, plots, and the cache lines that stop each mechanism.

use std::fs;
use std::path::{Path, PathBuf};

use octavo_command::failure::Failure;
use octavo_command::output::{JsonSink, Text};
use octavo_experiments::Form;
use octavo_experiments::scaling::{Curve, Mechanism};
use octavo_measure::table::TextTable;
use octavo_sim::MachineModel;
use serde::{Deserialize, Serialize};

use crate::choices::{JsonTarget, Mode};
use crate::experiments::stopped;
use crate::plots::{self, Axes, Series};

/// What to simulate.
#[derive(Debug)]
pub struct ScalingJob<'a> {
    pub machine: MachineModel,
    pub mechanisms: Vec<Mechanism>,
    pub modes: Vec<Mode>,
    pub cpus: Vec<u32>,
    pub seed: u64,
    pub svg: Option<&'a Path>,
    pub json: Option<&'a JsonTarget>,
}

/// The object that `--json` writes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Curves {
    pub machine: String,
    pub seed: u64,
    pub curves: Vec<Curve>,
}

pub fn run(job: &ScalingJob) -> Result<(), Failure> {
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
            let curve = Curve::simulate(&job.machine, job.seed, mechanism, form(*mode), &cpus);
            of_mechanism.push(curve.map_err(stopped)?);
        }
        show(&text, &of_mechanism)?;
        if let Some(name) = job.svg {
            let path = file(name, mechanism);
            fs::write(&path, plot(&of_mechanism)?)
                .map_err(|error| Failure::system(format!("cannot write {}", path.display()), error))?;
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

/// Returns, by form, the nanoseconds of an operation on its CPU, and how near to linear the scaling is.
pub fn table_of(curves: &[Curve]) -> TextTable {
    let mut header = vec!["CPUs".to_string()];
    for curve in curves {
        header.extend([format!("{}, ns", curve.form.name()), "of linear".into()]);
    }
    let mut table = TextTable::new(&header);
    let linear: Vec<_> = curves.iter().map(Curve::linearity).collect();
    for (at, &(cpus, _)) in curves.first().into_iter().flat_map(|curve| curve.points.iter().enumerate()) {
        let mut row = vec![cpus.to_string()];
        for (curve, linear) in curves.iter().zip(&linear) {
            let each = 1e9 * cpus as f64 / curve.points[at].1;
            row.extend([format!("{each:.1}"), format!("{:.0} %", 100.0 * linear[at])]);
        }
        table.row(row);
    }
    table
}

fn show(text: &Text, curves: &[Curve]) -> Result<(), Failure> {
    let Some(first) = curves.first() else { return Ok(()) };
    text.line(format!("\n{}", first.mechanism.name()))?;
    text.line(table_of(curves))?;
    culprits(curves).iter().try_for_each(|line| text.line(line))
}

/// Lists the cache lines that the last form waits for.
pub fn culprits(curves: &[Curve]) -> Vec<String> {
    let Some(last) = curves.last().filter(|curve| !curve.lines.is_empty()) else { return Vec::new() };
    let cpus = last.points.last().map_or(1, |point| point.0);
    let mut lines = vec![format!(
        "What the {} form waits for at {cpus} CPUs, worst first; the time before the clock starts counts too:",
        last.form.name(),
    )];
    lines.extend(last.lines.iter().map(|line| {
        let (share, who) = (100.0 * line.share, line.functions.join(", "));
        format!("  {share:5.2} % of time, {} transfers: {who}", line.transfers)
    }));
    lines
}

/// Plots one mechanism.
pub fn plot(curves: &[Curve]) -> Result<String, Failure> {
    let name = curves.first().map_or("nothing", |curve| curve.mechanism.name());
    let axes = Axes { title: &format!("{name}, simulated"), right: "CPUs", up: "operations a second" };
    let series = |curve: &Curve| Series {
        name: curve.form.name().into(),
        points: curve.points.iter().map(|&(cpus, rate)| (cpus as f64, rate)).collect(),
    };
    plots::curves(axes, &curves.iter().map(series).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_a_line_for_each_form_and_the_table_a_row_for_each_number_of_cpus() {
        let path = file(Path::new("/folder/curves"), Mechanism::PinShared);
        assert!(path.ends_with("curves-pin-shared.svg"));
        let curve = |form, rate: f64| Curve {
            mechanism: Mechanism::PinShared,
            form,
            points: vec![(1, rate), (2, 2.0 * rate), (128, 64.0 * rate)],
            lines: Vec::new(),
        };
        let curves = [curve(Form::Base, 1e6), curve(Form::Best, 2e6)];
        let image = plot(&curves).unwrap();
        assert!(image.contains("base") && image.contains("best") && image.contains("pin-shared, simulated"));
        let expected = "\
CPUs  base, ns  of linear  best, ns  of linear
1       1000.0      100 %     500.0      100 %
2       1000.0      100 %     500.0      100 %
128     2000.0       50 %    1000.0       50 %";
        assert_eq!(table_of(&curves).to_string(), expected);
        assert!(culprits(&curves).is_empty());
    }
}
