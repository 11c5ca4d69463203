//! Lock-free pins: threads of one process that read from devices into buffers they share (Linux 2.6.27,
//! 8174c430e445, *x86: lockless get_user_pages_fast()*).
//!
//! The Linux patch was measured with a database. A loop of direct reads stands for it here: a pin, plain
//! work, and an unpin. The plain work is calibrated so that the *base* form spends the published share of its
//! time at the lock. The simulation predicts the patched form's share, and the gain from that alone. The
//! published gain of 9.8 % includes more than the lock's samples (blocking waits, and page-table locks), so
//! this simulation cannot reach it.

use std::time::Duration;

use octavo_sim::{MachineModel, Report, Stopped};
use serde::Serialize;

use crate::comparison::{Comparison, Evidence, FormFigures, in_turns};
use crate::faces::{measured, simulated};
use crate::functions::by_function;
use crate::{Form, until_it_gives};

/// Pages of the buffer that all threads share.
pub const BUFFER_PAGES: u64 = 4096;

/// The figures in the commit message of the Linux patch.
pub mod published {
    /// Threads: one for each processor of the machine.
    pub const THREADS: usize = 8;
    /// Share of samples at the lock, without and with the patch.
    pub const SHARES: (f64, f64) = (0.028, 0.0005);
    /// Throughput with the patch divided by throughput without.
    pub const THROUGHPUT_RATIO: f64 = 1.098;
}

/// How much the threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Threads of one process, each on a CPU of its own.
    pub threads: usize,
    /// Reads of a thread.
    pub reads: u64,
    /// Pages of a read.
    pub pages: u64,
    /// Whether the threads belong to one process. Otherwise, each has a space of its own.
    pub is_shared: bool,
    /// Plain work for each read, in simulations only.
    pub beside: Duration,
}

/// One form's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The form.
    pub form: Form,
    /// Nanoseconds of a read, as the mean over all threads.
    pub read: f64,
    /// Reads a second of all threads together.
    pub throughput: f64,
    /// Share of the threads' time at the lock of the regions. `None` if nothing was profiled.
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
    let (outcome, _) = octavo_sim::run(machine, seed, move || simulated::workloads::pin::run(form, load))?;
    let mut row = row(form, load, &outcome.tasks);
    let spent: f64 = outcome.tasks.iter().map(Duration::as_secs_f64).sum();
    // The engine takes the lock. The guard releases it, in the simulator's code.
    let sums = by_function(&outcome.profile);
    let taken = sums.get("region/list::read_lock").copied().unwrap_or_default();
    let places = &outcome.profile.places;
    let let_go: f64 =
        places.iter().filter(|place| place.file.ends_with("sim/src/lock.rs")).map(|place| place.time).sum();
    row.share = Some((taken + let_go) / (spent * 1e9));
    row.profile = Some(outcome.profile);
    Ok(row)
}

/// Runs one form on this machine.
pub fn measure(form: Form, load: Load) -> Row {
    row(form, load, &measured::workloads::pin::run(form, load).tasks)
}

fn row(form: Form, load: Load, threads: &[Duration]) -> Row {
    let spent: f64 = threads.iter().map(Duration::as_secs_f64).sum();
    Row {
        form,
        read: spent * 1e9 / (load.reads * threads.len() as u64) as f64,
        throughput: threads.iter().map(|time| load.reads as f64 / time.as_secs_f64()).sum(),
        share: None,
        profile: None,
    }
}

/// Finds the plain work for which the base form spends `share` of its time at the lock.
///
/// # Errors
/// The errors of [`simulate`].
pub fn calibrate(machine: &MachineModel, seed: u64, load: Load, share: f64) -> Result<Duration, Stopped> {
    // The time divided by the time at the lock grows about in proportion to the work.
    until_it_gives(1.0 / share, |beside| {
        let row = simulate(machine, seed, Form::Base, Load { beside, ..load })?;
        Ok(1.0 / row.share.unwrap_or(1.0))
    })
}

/// The parameters of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads on the simulated machine.
    pub threads: usize,
    /// Reads of a thread.
    pub reads: u64,
    /// Pages of a read.
    pub pages: u64,
    /// The seed of the simulations.
    pub seed: u64,
    /// Threads on this machine. `None` measures nothing.
    pub here: Option<usize>,
}

/// Reads of a thread on this machine.
const READS_HERE: u64 = 200_000;

/// Compares the figures of all kinds of evidence.
///
/// # Errors
/// The errors of [`simulate`].
pub fn compare(machine: &MachineModel, options: Options) -> Result<Comparison, Stopped> {
    let Options { threads, reads, pages, seed, here } = options;
    let load = Load { threads, reads, pages, is_shared: true, beside: Duration::ZERO };
    let all = |load: Load| -> Result<[Row; 3], Stopped> {
        let [base, patched, best] = Form::ALL.map(|form| simulate(machine, seed, form, load));
        Ok([base?, patched?, best?])
    };
    let linux = Load { beside: calibrate(machine, seed, load, published::SHARES.0)?, ..load };
    let mut sides = vec![(Evidence::SimulatedLinux, all(linux)?), (Evidence::SimulatedOctavo, all(load)?)];
    if let Some(threads) = here {
        let load = Load { threads, reads: READS_HERE, ..load };
        sides.push((Evidence::Measured, in_turns(|form| measure(form, load), |row| row.read)));
    }
    let (throughput, share) = ("throughput, reads/s", "share at the lock, %");
    let mut lines = vec![
        FormFigures::new(throughput, Evidence::Published).of_ratio(published::THROUGHPUT_RATIO),
        FormFigures::new(share, Evidence::Published)
            .of_two(100.0 * published::SHARES.0, 100.0 * published::SHARES.1),
    ];
    for (evidence, rows) in sides {
        let figures = |value: fn(&Row) -> f64| rows.each_ref().map(value);
        let line = FormFigures::new(throughput, evidence).of(figures(|row| row.throughput));
        let is_prediction = evidence == Evidence::SimulatedLinux;
        lines.push(if is_prediction { line.beside(published::THROUGHPUT_RATIO) } else { line });
        if rows.iter().all(|row| row.share.is_some()) {
            let line =
                FormFigures::new(share, evidence).of(figures(|row| 100.0 * row.share.unwrap_or_default()));
            lines.push(if is_prediction { line.fitted(Form::Base) } else { line });
        }
    }
    let notes = vec![
        format!("{threads} threads pin {pages} pages {reads} times. A loop of direct reads stands for the patch's database."),
        format!(
            "Plain work beside a read: {:.1} us, so that the base form spends the published share at the lock.",
            linux.beside.as_secs_f64() * 1e6
        ),
        "Octavo's own row has no plain work: threads pin as fast as they can.".into(),
        "Of the published 9.8 % the samples at the lock explain 2.8. The rest (waits that block, page-table locks) is not modelled.".into(),
    ];
    Ok(Comparison { experiment: "pin".into(), machine: machine.name.clone(), seed, lines, notes })
}
