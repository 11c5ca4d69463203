//! The swap cache without writeback tags: 8 tasks write more memory than there is, in order (Linux 4.9,
//! 371a096edf43, *mm: don't use radix tree writeback tags for pages in swap cache*).
//!
//! The plain work is calibrated so that the *patched* form sends pages out as fast as published. The
//! simulation then predicts the *base* figure. The time for which a lock is held matters most here. The
//! engine's critical sections are shorter than Linux's were, and the work in them is not calibrated.

use std::time::Duration;

use octavo_sim::{MachineModel, Report, Stopped};
use serde::Serialize;

use crate::comparison::{Comparison, Evidence, FormFigures, in_turns};
use crate::faces::{measured, simulated};
use crate::functions::by_function;
use crate::{Form, until_it_gives};

/// The figures in the commit message of the Linux patch.
pub mod published {
    /// The number of tasks.
    pub const TASKS: usize = 8;
    /// KB/s sent out, without and with the patch.
    pub const SWAP_OUT: (f64, f64) = (1_207_402.0, 1_476_578.0);
    /// Throughput with the patch divided by throughput without.
    pub const THROUGHPUT_RATIO: f64 = 3_212_076.0 / 2_506_952.0;
    /// Share of time at the four places that take the lock, without and with the patch.
    pub const SHARES: (f64, f64) = (0.4256, 0.1555);
}

/// How much the tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Tasks, each on a CPU of its own.
    pub tasks: usize,
    /// Pages of a task before the clock starts.
    pub warm_up: u64,
    /// Pages of a task.
    pub pages: u64,
    /// The memory of all.
    pub budget_bytes: u64,
    /// Whether a thread makes room ahead of the tasks. Otherwise, each task makes its own.
    pub background: bool,
    /// Plain work for each page, in simulations only.
    pub beside: Duration,
}

/// One form's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The form.
    pub form: Form,
    /// Nanoseconds of a written page, as the mean over all tasks.
    pub page: f64,
    /// Pages a second that all tasks wrote.
    pub throughput: f64,
    /// Pages that went out, including those of the warm-up.
    pub out: u64,
    /// Share of the tasks' time spent taking the tree's lock. `None` if nothing was profiled.
    pub share: Option<f64>,
    /// How a simulated run spent its time.
    #[serde(skip)]
    pub profile: Option<Report>,
}

/// Runs one form on a simulated machine.
///
/// # Errors
/// [`Stopped`] if all threads wait for each other, or the simulation has no memory.
pub fn simulate(machine: &MachineModel, seed: u64, form: Form, load: Load) -> Result<Row, Stopped> {
    let ((outcome, out), _) =
        octavo_sim::run(machine, seed, move || simulated::workloads::swap_cache::run(form, load))?;
    let mut row = row(form, load, &outcome.tasks, out);
    let spent: f64 = outcome.tasks.iter().map(Duration::as_secs_f64).sum();
    let taken = by_function(&outcome.profile).get("mapping::lock").copied().unwrap_or_default();
    row.share = Some(taken / (spent * 1e9));
    row.profile = Some(outcome.profile);
    Ok(row)
}

/// Runs one form on this machine.
pub fn measure(form: Form, load: Load) -> Row {
    let (outcome, out) = measured::workloads::swap_cache::run(form, load);
    row(form, load, &outcome.tasks, out)
}

fn row(form: Form, load: Load, times: &[Duration], out: u64) -> Row {
    let spent: f64 = times.iter().map(Duration::as_secs_f64).sum();
    Row {
        form,
        page: spent * 1e9 / (load.pages * times.len() as u64) as f64,
        throughput: times.iter().map(|time| load.pages as f64 / time.as_secs_f64()).sum(),
        out,
        share: None,
        profile: None,
    }
}

/// Finds the plain work for which a task of the patched form takes `page` nanoseconds a page.
///
/// # Errors
/// The errors of [`simulate`].
pub fn calibrate(machine: &MachineModel, seed: u64, load: Load, page: f64) -> Result<Duration, Stopped> {
    until_it_gives(page, |beside| Ok(simulate(machine, seed, Form::Patched, Load { beside, ..load })?.page))
}

/// The parameters of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Tasks on the simulated machine.
    pub tasks: usize,
    /// Pages of a task.
    pub pages: u64,
    /// The memory of all tasks.
    pub budget_bytes: u64,
    /// The seed of the simulations.
    pub seed: u64,
    /// Tasks on this machine. `None` measures nothing.
    pub here: Option<usize>,
}

/// Compares the figures of all kinds of evidence.
///
/// # Errors
/// The errors of [`simulate`].
pub fn compare(machine: &MachineModel, options: Options) -> Result<Comparison, Stopped> {
    let Options { tasks, pages, budget_bytes, seed, here } = options;
    let load = Load { tasks, warm_up: 0, pages, budget_bytes, background: true, beside: Duration::ZERO };
    let all = |load: Load| -> Result<[Row; 3], Stopped> {
        let [base, patched, best] = Form::ALL.map(|form| simulate(machine, seed, form, load));
        Ok([base?, patched?, best?])
    };
    // All tasks together send out a page in the time that 4 KB take at the published rate.
    let nanoseconds = |kilobytes: f64| published::TASKS as f64 * 4.0e9 / kilobytes;
    let linux = Load { beside: calibrate(machine, seed, load, nanoseconds(published::SWAP_OUT.1))?, ..load };
    let mut sides = vec![(Evidence::SimulatedLinux, all(linux)?), (Evidence::SimulatedOctavo, all(load)?)];
    if let Some(tasks) = here {
        let load = Load { tasks, ..load };
        sides.push((Evidence::Measured, in_turns(|form| measure(form, load), |row| row.page)));
    }
    let (throughput, time, share) =
        ("throughput, pages/s", "ns a page of a task", "share of taking the lock, %");
    let mut lines = vec![
        FormFigures::new(time, Evidence::Published)
            .of_two(nanoseconds(published::SWAP_OUT.0), nanoseconds(published::SWAP_OUT.1)),
        FormFigures::new(throughput, Evidence::Published).of_ratio(published::THROUGHPUT_RATIO),
        FormFigures::new(share, Evidence::Published)
            .of_two(100.0 * published::SHARES.0, 100.0 * published::SHARES.1),
    ];
    for (evidence, rows) in sides {
        let figures = |value: fn(&Row) -> f64| rows.each_ref().map(value);
        let is_prediction = evidence == Evidence::SimulatedLinux;
        let beside = |line: FormFigures, ratio: f64| if is_prediction { line.beside(ratio) } else { line };
        let page = beside(
            FormFigures::new(time, evidence).of(figures(|row| row.page)),
            published::SWAP_OUT.0 / published::SWAP_OUT.1,
        );
        lines.push(if is_prediction { page.fitted(Form::Patched) } else { page });
        let rate = FormFigures::new(throughput, evidence).of(figures(|row| row.throughput));
        lines.push(beside(rate, published::THROUGHPUT_RATIO));
        if rows.iter().all(|row| row.share.is_some()) {
            lines.push(
                FormFigures::new(share, evidence).of(figures(|row| 100.0 * row.share.unwrap_or_default())),
            );
        }
    }
    let notes = vec![
        format!(
            "{tasks} tasks write {pages} pages each, in {} MiB for all. The published time of a page is that of a page that went out.",
            budget_bytes >> 20
        ),
        "The published shares are the sum of four places that take the lock. Octavo's critical sections are shorter than Linux's were, and are not calibrated.".into(),
    ];
    Ok(Comparison { experiment: "swap-cache".into(), machine: machine.name.clone(), seed, lines, notes })
}
