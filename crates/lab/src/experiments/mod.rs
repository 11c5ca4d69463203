//! The experiments of the four Linux patches, by three kinds of evidence.

pub mod args;
pub mod scaling;

use octavo_command::failure::Failure;
use octavo_command::output::{JsonSink, Text};
use octavo_experiments::comparison::{Comparison, FormFigures};
use octavo_experiments::microbenchmarks::{Microbenchmark, PUBLISHED};
use octavo_experiments::scaling::Mechanism;
use octavo_experiments::{Form, percpu_lists, pin, swap_cache, zero_page};
use octavo_measure::table::TextTable;
use octavo_sim::{MachineModel, Report, Stopped};
use serde::{Deserialize, Serialize};

use self::args::{CommonArgs, Experiment};
use crate::choices::JsonTarget;
use crate::udp_stream;

/// Makes the failure of a simulation that did not end.
fn stopped(stopped: Stopped) -> Failure {
    Failure::Said(stopped.to_string())
}

/// Runs one experiment.
pub fn run(experiment: &Experiment) -> Result<(), Failure> {
    match experiment {
        Experiment::Scaling { machine, mechanism, mode, cpus, seed, svg, json } => {
            let mechanisms = if mechanism.is_empty() { &Mechanism::ALL[..] } else { mechanism };
            scaling::run(&scaling::ScalingJob {
                machine: args::machine(machine)?,
                mechanisms: mechanisms.to_vec(),
                modes: mode.modes(),
                cpus: cpus.clone(),
                seed: *seed,
                svg: svg.as_deref(),
                json: json.as_ref(),
            })
        }
        Experiment::Machines { seed, json } => machines(*seed, json.as_ref()),
        Experiment::ZeroPage { common, tasks, steps } => {
            let machine = common.machine("haswell-ep")?;
            let tasks = tasks
                .map_or(zero_page::published::TASKS.min(machine.cpus() as usize), |tasks| tasks as usize);
            let options = zero_page::Options { tasks, steps: *steps, seed: common.seed, here: here(common) };
            show(
                common,
                &machine,
                tasks,
                || zero_page::compare(&machine, options).map_err(stopped),
                || {
                    let load = zero_page::Load {
                        tasks,
                        steps: *steps,
                        warm_up: 0,
                        beside: std::time::Duration::ZERO,
                    };
                    Ok(zero_page::simulate(&machine, common.seed, Form::Base, load).map_err(stopped)?.profile)
                },
            )
        }
        Experiment::SwapCache { common, tasks, pages, memory } => {
            let machine = common.machine("haswell-ep")?;
            let (tasks, budget_bytes) = (*tasks as usize, memory.bytes);
            let options = swap_cache::Options {
                tasks,
                pages: *pages,
                budget_bytes,
                seed: common.seed,
                here: here(common),
            };
            show(
                common,
                &machine,
                tasks,
                || swap_cache::compare(&machine, options).map_err(stopped),
                || {
                    let load = swap_cache::Load {
                        tasks,
                        warm_up: 0,
                        pages: *pages,
                        budget_bytes,
                        background: true,
                        beside: std::time::Duration::ZERO,
                    };
                    Ok(swap_cache::simulate(&machine, common.seed, Form::Base, load)
                        .map_err(stopped)?
                        .profile)
                },
            )
        }
        Experiment::PercpuLists { common, messages } => {
            let machine = common.machine("haswell-ep")?;
            let options = percpu_lists::Options { messages: *messages, seed: common.seed };
            show(
                common,
                &machine,
                2,
                || {
                    let mut comparison = percpu_lists::compare(&machine, options).map_err(stopped)?;
                    if !common.no_measure {
                        comparison.lines.extend(udp_stream::lines()?);
                        comparison
                            .notes
                            .push("Measured here by `octavo-lab udp-stream`, in short runs.".into());
                    }
                    Ok(comparison)
                },
                || {
                    let place = percpu_lists::MessagePlace::of(16384);
                    let load =
                        percpu_lists::Load { place, messages: *messages, beside: std::time::Duration::ZERO };
                    Ok(percpu_lists::simulate(&machine, common.seed, Form::Base, load)
                        .map_err(stopped)?
                        .profile)
                },
            )
        }
        Experiment::Pin { common, threads, reads, pages } => {
            let machine = common.machine("tigerton")?;
            let threads = threads.map_or(machine.cpus() as usize, |threads| threads as usize);
            let options =
                pin::Options { threads, reads: *reads, pages: *pages, seed: common.seed, here: here(common) };
            show(
                common,
                &machine,
                threads,
                || pin::compare(&machine, options).map_err(stopped),
                || {
                    let load = pin::Load {
                        threads,
                        reads: *reads,
                        pages: *pages,
                        is_shared: true,
                        beside: std::time::Duration::ZERO,
                    };
                    Ok(pin::simulate(&machine, common.seed, Form::Base, load).map_err(stopped)?.profile)
                },
            )
        }
    }
}

/// Returns the number of tasks on this machine: one for each CPU.
fn here(common: &CommonArgs) -> Option<usize> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    (!common.no_measure).then_some(cpus)
}

/// Compares, and prints the result.
fn show(
    common: &CommonArgs,
    machine: &MachineModel,
    cpus: usize,
    compare: impl FnOnce() -> Result<Comparison, Failure>,
    profile: impl FnOnce() -> Result<Option<Report>, Failure>,
) -> Result<(), Failure> {
    if cpus > machine.cpus() as usize {
        let all = machine.cpus();
        return Err(Failure::Said(format!(
            "{} has {all} CPUs, too few for {cpus} tasks; take another --machine",
            machine.name
        )));
    }
    let json = common.json.as_ref().map(JsonSink::open).transpose()?;
    let text = Text::beside(common.json.as_ref());
    text.line(format!("{}: {}", machine.name, machine.title))?;
    let comparison = compare()?;
    text.line(table_of(&comparison))?;
    for note in &comparison.notes {
        text.line(note)?;
    }
    if common.profile
        && let Some(profile) = profile()?
    {
        show_profile(&text, &profile)?;
    }
    json.map_or(Ok(()), |sink| sink.write(&comparison))
}

/// Returns the figures of the forms. A star marks fitted ones.
pub fn table_of(comparison: &Comparison) -> TextTable {
    let mut table =
        TextTable::new(&["figure", "evidence", "base", "patched", "best", "patched to base", "to published"]);
    let mut last = "";
    for line in figures_together(&comparison.lines) {
        let figure = if line.figure == last { "" } else { &line.figure };
        last = &line.figure;
        let star = |form| if line.fitted == Some(form) { "*" } else { "" };
        let cell = |form, value: Option<f64>| {
            value.map_or("-".into(), |value| format!("{}{}", number(value), star(form)))
        };
        let percent = |ratio: f64| format!("{:+.1} %", 100.0 * (ratio - 1.0));
        table.row(vec![
            figure.into(),
            line.evidence.name().into(),
            cell(Form::Base, line.base),
            cell(Form::Patched, line.patched),
            cell(Form::Best, line.best),
            line.ratio.map_or("-".into(), percent),
            line.error.map_or(String::new(), |error| percent(error + 1.0)),
        ]);
    }
    table
}

/// Groups the lines of each figure, in the order in which figures first appear.
fn figures_together(lines: &[FormFigures]) -> Vec<&FormFigures> {
    let mut figures: Vec<&str> = Vec::new();
    for line in lines {
        if !figures.contains(&line.figure.as_str()) {
            figures.push(&line.figure);
        }
    }
    let of = |figure: &&str| lines.iter().filter(move |line| line.figure == **figure).collect::<Vec<_>>();
    figures.iter().flat_map(of).collect()
}

/// Formats a number with four significant digits.
fn number(value: f64) -> String {
    let digits = (3.0 - value.abs().max(1e-9).log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.digits$}")
}

/// The most rows of a profile.
const PROFILED: usize = 10;

fn show_profile(text: &Text, profile: &Report) -> Result<(), Failure> {
    let busy: f64 = profile.busy.iter().sum();
    let share = |time: f64| format!("{:.2}", 100.0 * time / busy);
    text.line("\nWhere the simulated time of the base form went, without plain work:")?;
    let mut functions: Vec<_> = octavo_experiments::functions::by_function(profile).into_iter().collect();
    functions.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
    let mut table = TextTable::new(&["function", "% of CPU time"]);
    for (function, time) in functions.iter().take(PROFILED) {
        table.row(vec![function.clone(), share(*time)]);
    }
    text.line(table)?;
    let mut table = TextTable::new(&["cache line", "transfers", "% of CPU time", "who waits for it"]);
    for line in profile.lines.iter().take(PROFILED) {
        let who: Vec<_> = line.places.iter().map(|place| place_for_people(&place.0)).collect();
        table.row(vec![
            line.number.to_string(),
            line.transfers.to_string(),
            share(line.stalled),
            who.join(", "),
        ]);
    }
    text.line(table)
}

/// Returns a place in the source without the folders above its crate.
fn place_for_people(place: &str) -> String {
    let (file, line) = place.rsplit_once(':').unwrap_or((place, "0"));
    let function = octavo_experiments::functions::function_at(file, line.parse().unwrap_or(0));
    function.unwrap_or_else(|| file.rsplit("crates/").next().unwrap_or(file).to_string())
}

/// A published microbenchmark, and its simulation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Tested {
    machine: String,
    what: Microbenchmark,
    published_ns: f64,
    simulated_ns: f64,
    is_fit: bool,
    source: String,
}

/// All simulated machines, and their microbenchmarks beside the published figures.
#[derive(Debug, Serialize, Deserialize)]
pub struct Machines {
    machines: Vec<MachineModel>,
    microbenchmarks: Vec<Tested>,
}

fn machines(seed: u64, json: Option<&JsonTarget>) -> Result<(), Failure> {
    let sink = json.map(JsonSink::open).transpose()?;
    let text = Text::beside(json);
    let machines: Vec<_> = MachineModel::names().filter_map(MachineModel::named).collect();
    let mut microbenchmarks = Vec::new();
    for one in PUBLISHED {
        let Some(machine) = machines.iter().find(|machine| machine.name == one.machine) else { continue };
        let simulated = one.what.simulate(machine, seed);
        microbenchmarks.push(Tested {
            machine: one.machine.into(),
            what: one.what,
            published_ns: one.nanoseconds,
            simulated_ns: simulated,
            is_fit: one.is_fit,
            source: one.source.into(),
        });
    }
    let all = Machines { machines, microbenchmarks };
    text.line(all.table())?;
    text.line("")?;
    text.line(all.tests())?;
    sink.map_or(Ok(()), |sink| sink.write(&all))
}

impl Machines {
    /// Describes each machine.
    pub fn table(&self) -> TextTable {
        let mut table = TextTable::new(&["machine", "CPUs", "what it is"]);
        for machine in &self.machines {
            table.row(vec![machine.name.clone(), machine.cpus().to_string(), machine.title.clone()]);
        }
        table
    }

    /// Shows how far each simulated figure is from the published one.
    pub fn tests(&self) -> TextTable {
        let mut table = TextTable::new(&["microbenchmark", "published, ns", "simulated, ns", "off by", ""]);
        for one in &self.microbenchmarks {
            table.row(vec![
                format!("{}: {}", one.machine, one.what),
                number(one.published_ns),
                number(one.simulated_ns),
                format!("{:+.0} %", 100.0 * (one.simulated_ns / one.published_ns - 1.0)),
                if one.is_fit { "fitted".into() } else { "test".into() },
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use octavo_experiments::comparison::Evidence;

    use super::*;

    #[test]
    fn figures_have_four_digits_that_count() {
        let shown = [4726.9, 0.30397, 54.03, 3.8995, 1.0e8].map(number);
        assert_eq!(shown, ["4727", "0.3040", "54.03", "3.900", "100000000"]);
    }

    #[test]
    fn lines_of_one_figure_stand_together() {
        let line = |figure: &str, evidence| FormFigures::new(figure, evidence);
        let lines = [
            line("time", Evidence::Published),
            line("share", Evidence::Published),
            line("time", Evidence::Measured),
            line("share", Evidence::SimulatedOctavo),
        ];
        let order: Vec<_> =
            figures_together(&lines).iter().map(|line| (line.figure.as_str(), line.evidence)).collect();
        let (published, octavo, measured) =
            (Evidence::Published, Evidence::SimulatedOctavo, Evidence::Measured);
        assert_eq!(order, [("time", published), ("time", measured), ("share", published), ("share", octavo)]);
    }

    #[test]
    fn a_place_is_named_by_its_function() {
        assert_eq!(place_for_people("a/crates/sim/src/lock.rs:5"), "sim/src/lock.rs");
        assert_eq!(place_for_people("nonsense"), "nonsense");
    }
}
