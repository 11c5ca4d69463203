//! The huge zero page: 72 tasks read 100 GiB each in steps of 2 MiB (Linux 4.9, 6fcb52a56ff6, *thp: reduce
//! usage of huge zero page's atomic counter*).
//!
//! Two simulated rows are compared with the published one:
//!
//! - **Octavo**: the engine's own operations. Each access is also charged the plain work that the simulator
//!   does not see: the time of an access with one task on this machine, minus its simulated time.
//! - **Linux-calibrated**: the same operations, with plain work such that the *patched* form takes the
//!   published time. The simulation then predicts the *base* figure.

use std::time::Duration;

use octavo_sim::{MachineModel, Report, Stopped};
use serde::Serialize;

use crate::comparison::{Comparison, Evidence, FormFigures, in_turns};
use crate::faces::{measured, simulated};
use crate::functions::by_function;
use crate::{Form, until_it_gives};

/// Bytes from one access to the next.
pub const STEP_BYTES: u64 = 2 << 20;

/// The figures in the commit message of the Linux patch.
pub mod published {
    /// The number of tasks.
    pub const TASKS: usize = 72;
    /// Accesses of a task: 100 GiB in steps of 2 MiB.
    pub const STEPS: u64 = 51_200;
    /// Throughput with the patch divided by throughput without.
    pub const THROUGHPUT_RATIO: f64 = 4_726_928_591.0 / 1_784_430_792.0;
    /// Runtime with the patch divided by runtime without.
    pub const RUNTIME_RATIO: f64 = 303_970.0 / 707_592.0;
    /// Share of time in the get function, without and with the patch.
    pub const SHARES: (f64, f64) = (0.5403, 0.0011);
    /// Nanoseconds of an access of the patched kernel, from its throughput. usemem counts the bytes of its
    /// accesses, plus an eighth of the bytes of the mapping.
    pub const PATCHED_ACCESS: f64 =
        72.0 * (107_374_182_400.0 / 8.0 + 409_600.0) / 1024.0 / 4_726_928_591.0 * 1e9 / STEPS as f64;
}

/// How much the tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Tasks, each on a CPU of its own.
    pub tasks: usize,
    /// Accesses of a task.
    pub steps: u64,
    /// Accesses of a task before its clock starts.
    pub warm_up: u64,
    /// Plain work for each access, in simulations only.
    pub beside: Duration,
}

/// One form's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The form.
    pub form: Form,
    /// Nanoseconds of an access, as the mean over all tasks.
    pub access: f64,
    /// Accesses a second of all tasks together.
    pub throughput: f64,
    /// Seconds until the last task has given its memory back.
    pub runtime: f64,
    /// Share of the tasks' time in the get function. `None` if nothing was profiled.
    pub share: Option<f64>,
    /// How a simulated run spent its time.
    #[serde(skip)]
    pub profile: Option<Report>,
}

/// The functions that take a use of the huge zero page.
const GETS: &[&str] = &["get", "get_for_space", "get_reference", "get_live", "get_or_allocate"];

/// Runs one form on a simulated machine.
///
/// # Errors
/// [`Stopped`] if all threads wait for each other, or the simulation has no memory.
pub fn simulate(machine: &MachineModel, seed: u64, form: Form, load: Load) -> Result<Row, Stopped> {
    let (outcome, _) =
        octavo_sim::run(machine, seed, move || simulated::workloads::zero_page::run(form, load))?;
    let spent: f64 = outcome.tasks.iter().map(Duration::as_secs_f64).sum();
    let is_get = |name: &str| GETS.iter().any(|get| name.strip_prefix("frame/zero_page::") == Some(get));
    let gets: f64 =
        by_function(&outcome.profile).iter().filter(|(name, _)| is_get(name)).map(|(_, time)| time).sum();
    let mut row = row(form, load, &outcome.tasks, outcome.elapsed);
    row.share = Some(gets / (spent * 1e9));
    row.profile = Some(outcome.profile);
    Ok(row)
}

/// Runs one form on this machine.
pub fn measure(form: Form, load: Load) -> Row {
    let outcome = measured::workloads::zero_page::run(form, load);
    row(form, load, &outcome.tasks, outcome.elapsed)
}

fn row(form: Form, load: Load, tasks: &[Duration], elapsed: Duration) -> Row {
    let each = |time: &Duration| load.steps as f64 / time.as_secs_f64();
    let spent: f64 = tasks.iter().map(Duration::as_secs_f64).sum();
    Row {
        form,
        access: spent * 1e9 / (load.steps * tasks.len() as u64) as f64,
        throughput: tasks.iter().map(each).sum(),
        runtime: elapsed.as_secs_f64(),
        share: None,
        profile: None,
    }
}

/// Finds the plain work for which the patched form takes `access` nanoseconds an access on this simulated
/// machine.
///
/// # Errors
/// The errors of [`simulate`].
pub fn calibrate(machine: &MachineModel, seed: u64, load: Load, access: f64) -> Result<Duration, Stopped> {
    until_it_gives(access, |beside| {
        Ok(simulate(machine, seed, Form::Patched, Load { beside, ..load })?.access)
    })
}

/// The parameters of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Tasks on the simulated machine.
    pub tasks: usize,
    /// Accesses of a task.
    pub steps: u64,
    /// The seed of the simulations.
    pub seed: u64,
    /// Tasks on this machine. `None` measures nothing; then Octavo's own operation is charged no plain work.
    pub here: Option<usize>,
}

/// Accesses of a task on this machine, also when it measures the plain work.
const STEPS_HERE: u64 = published::STEPS;
/// The time of an access is the least of this many runs: any disturbance makes a run longer.
const RUNS_OF_ONE: usize = 5;

/// Compares the figures of all kinds of evidence.
///
/// # Errors
/// The errors of [`simulate`].
pub fn compare(machine: &MachineModel, options: Options) -> Result<Comparison, Stopped> {
    let Options { tasks, steps, seed, here } = options;
    let load = Load { tasks, steps, warm_up: 0, beside: Duration::ZERO };
    let all = |load: Load| -> Result<[Row; 3], Stopped> {
        let [base, patched, best] = Form::ALL.map(|form| simulate(machine, seed, form, load));
        Ok([base?, patched?, best?])
    };
    let linux = Load { beside: calibrate(machine, seed, load, published::PATCHED_ACCESS)?, ..load };
    let one = |_| measure(Form::Patched, Load { tasks: 1, steps: STEPS_HERE, ..load }).access;
    let alone = here.map(|_| (0..RUNS_OF_ONE).map(one).fold(f64::INFINITY, f64::min));
    let own = match alone {
        None => load,
        Some(alone) => {
            let single = Load { tasks: 1, steps: 2048, ..load };
            Load { beside: calibrate(machine, seed, single, alone)?, ..load }
        }
    };
    let mut sides = vec![(Evidence::SimulatedLinux, all(linux)?), (Evidence::SimulatedOctavo, all(own)?)];
    if let Some(tasks) = here {
        let load = Load { tasks, steps: STEPS_HERE, ..load };
        sides.push((Evidence::Measured, in_turns(|form| measure(form, load), |row| row.access)));
    }
    let published = |figure: &str| FormFigures::new(figure, Evidence::Published);
    let (time, throughput, runtime, share) =
        ("ns an access", "throughput, accesses/s", "runtime, s", "share of the get function, %");
    let base_access = published::PATCHED_ACCESS * published::THROUGHPUT_RATIO;
    let mut lines = vec![
        published(time).of_two(base_access, published::PATCHED_ACCESS),
        published(throughput).of_ratio(published::THROUGHPUT_RATIO),
        published(runtime).of_ratio(published::RUNTIME_RATIO),
        published(share).of_two(100.0 * published::SHARES.0, 100.0 * published::SHARES.1),
    ];
    for (evidence, rows) in sides {
        let figures = |value: fn(&Row) -> f64| rows.each_ref().map(value);
        let line = |figure: &str| FormFigures::new(figure, evidence);
        let is_prediction = evidence == Evidence::SimulatedLinux;
        let beside = |line: FormFigures, ratio: f64| if is_prediction { line.beside(ratio) } else { line };
        let mut access = line(time).of(figures(|row| row.access));
        if is_prediction {
            access = access.beside(1.0 / published::THROUGHPUT_RATIO).fitted(Form::Patched);
        }
        lines.push(access);
        lines.push(beside(line(throughput).of(figures(|row| row.throughput)), published::THROUGHPUT_RATIO));
        lines.push(beside(line(runtime).of(figures(|row| row.runtime)), published::RUNTIME_RATIO));
        if rows.iter().all(|row| row.share.is_some()) {
            lines.push(line(share).of(figures(|row| 100.0 * row.share.unwrap_or_default())));
        }
    }
    let mut notes = vec![
        format!(
            "Simulated: {tasks} tasks of {steps} accesses; published: 72 of 51200. The rates do not depend on the number."
        ),
        format!(
            "Plain work beside an access: {:.0} ns for Linux's patched form.",
            linux.beside.as_secs_f64() * 1e9
        ),
    ];
    notes.push(match alone {
        Some(alone) => format!(
            "An access takes {alone:.0} ns here with one task, of which the simulation charges {:.0} ns as plain work.",
            own.beside.as_secs_f64() * 1e9
        ),
        None => "Nothing was measured here, so Octavo's own operation is charged no plain work.".into(),
    });
    Ok(Comparison { experiment: "zero-page".into(), machine: machine.name.clone(), seed, lines, notes })
}
