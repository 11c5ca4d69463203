//! High orders on the per-CPU lists: messages over loopback (Linux 5.14, 44042b449872, *mm/page_alloc: allow
//! high-order pages to be stored on the per-cpu lists*).
//!
//! A large message lies in a block of its own. A small one lies in a part of a slab, so only every n-th
//! message asks the page allocator. The size decides where Linux puts a message. Linux adds 380 bytes to the
//! data, and takes objects up to 8 KiB from SLUB's classes. A slab has at least 32 objects, unless that needs
//! more than order 3.
//!
//! For each size, the plain work is calibrated so that the *patched* form takes the published time. The
//! simulation then predicts the *base* figure. The Linux patch does not name its machine, so the simulated
//! one is a guess.

use std::time::Duration;

use octavo_sim::{MachineModel, Report, Stopped};
use serde::Serialize;

use crate::comparison::{Comparison, Evidence, FormFigures};
use crate::faces::simulated;
use crate::{Form, until_it_gives};

/// Messages that a socket holds.
pub const QUEUED: usize = 64;

/// The figures in the commit message of the Linux patch: bytes of a message, and 10^6 bit/s sent, without and
/// with the patch.
pub const PUBLISHED: [(u64, f64, f64); 9] = [
    (64, 261.46, 266.30),
    (128, 516.35, 536.78),
    (256, 1014.13, 1034.63),
    (1024, 3907.65, 4046.11),
    (2048, 7492.93, 7754.85),
    (3312, 11410.04, 11772.32),
    (4096, 13521.95, 13912.34),
    (8192, 21660.50, 22730.72),
    (16384, 31902.32, 32637.50),
];

/// Names the figure of a size.
pub fn figure(bytes: u64) -> String {
    format!("send-{bytes}, 10^6 bit/s")
}

/// Returns the nanoseconds of a message of `bytes` bytes at `megabits` 10^6 bit/s.
pub fn nanoseconds(bytes: u64, megabits: f64) -> f64 {
    bytes as f64 * 8.0 * 1000.0 / megabits
}

/// Where messages lie: in blocks of an order, with a number of messages to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePlace {
    /// The block's order.
    pub order: u8,
    /// Messages of a block.
    pub messages: u64,
}

/// Bytes of a message besides its data: headers, and the kernel's record behind it.
const BESIDE: u64 = 380;
/// The largest object of a slab.
const LARGEST_OBJECT: u64 = 8192;
/// The fewest objects of a slab, unless the largest slab has fewer.
const OBJECTS: u64 = 32;
/// The largest slab's order.
const LARGEST_SLAB: u8 = 3;

impl MessagePlace {
    /// Returns where Linux puts a message of `bytes` bytes.
    pub fn of(bytes: u64) -> Self {
        let object = (bytes + BESIDE).next_power_of_two();
        if object > LARGEST_OBJECT {
            return Self { order: (object / 4096).trailing_zeros() as u8, messages: 1 };
        }
        let order =
            (0..LARGEST_SLAB).find(|order| (4096 << order) / object >= OBJECTS).unwrap_or(LARGEST_SLAB);
        Self { order, messages: (4096 << order) / object }
    }
}

/// How much is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Where messages lie.
    pub place: MessagePlace,
    /// The number of messages.
    pub messages: u64,
    /// Plain work for each message, in simulations only.
    pub beside: Duration,
}

/// One form's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The form.
    pub form: Form,
    /// Nanoseconds of a message, at the sender.
    pub message: f64,
    /// How a simulated run spent its time.
    #[serde(skip)]
    pub profile: Option<Report>,
}

/// Runs one form on a simulated machine.
///
/// # Errors
/// [`Stopped`] if both ends wait for each other, or the simulation has no memory.
pub fn simulate(machine: &MachineModel, seed: u64, form: Form, load: Load) -> Result<Row, Stopped> {
    let (outcome, _) =
        octavo_sim::run(machine, seed, move || simulated::workloads::percpu_lists::run(form, load))?;
    Ok(Row { form, message: per_message(load, &outcome.tasks), profile: Some(outcome.profile) })
}

fn per_message(load: Load, ends: &[Duration]) -> f64 {
    ends[0].as_nanos() as f64 / load.messages as f64
}

/// Finds the plain work for which the patched form takes `message` nanoseconds a message.
///
/// # Errors
/// The errors of [`simulate`].
pub fn calibrate(machine: &MachineModel, seed: u64, load: Load, message: f64) -> Result<Duration, Stopped> {
    until_it_gives(message, |beside| {
        Ok(simulate(machine, seed, Form::Patched, Load { beside, ..load })?.message)
    })
}

/// The parameters of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Messages of each size.
    pub messages: u64,
    /// The seed of the simulations.
    pub seed: u64,
}

/// Compares the published figures with simulated ones, in 10^6 bit/s.
///
/// # Errors
/// The errors of [`simulate`].
pub fn compare(machine: &MachineModel, options: Options) -> Result<Comparison, Stopped> {
    let Options { messages, seed } = options;
    let mut lines = Vec::new();
    for (bytes, base, patched) in PUBLISHED {
        let figure = figure(bytes);
        lines.push(FormFigures::new(&figure, Evidence::Published).of_two(base, patched));
        let load = Load { place: MessagePlace::of(bytes), messages, beside: Duration::ZERO };
        let rate = |message: f64| bytes as f64 * 8.0 * 1000.0 / message;
        let all = |load: Load| -> Result<[f64; 3], Stopped> {
            let [base, patched, best] = Form::ALL.map(|form| simulate(machine, seed, form, load));
            Ok([base?, patched?, best?].map(|row| rate(row.message)))
        };
        let linux = Load { beside: calibrate(machine, seed, load, nanoseconds(bytes, patched))?, ..load };
        let line = FormFigures::new(&figure, Evidence::SimulatedLinux).of(all(linux)?);
        lines.push(line.beside(patched / base).fitted(Form::Patched));
    }
    let notes = vec!["The patch does not name its machine. The simulated one is a guess.".into()];
    Ok(Comparison { experiment: "percpu-lists".into(), machine: machine.name.clone(), seed, lines, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_lie_where_linux_puts_them() {
        let places: Vec<_> = PUBLISHED
            .iter()
            .map(|(bytes, ..)| MessagePlace::of(*bytes))
            .map(|at| (at.order, at.messages))
            .collect();
        assert_eq!(places, [(2, 32), (2, 32), (3, 32), (3, 16), (3, 8), (3, 8), (3, 4), (2, 1), (3, 1)]);
    }

    #[test]
    fn the_published_rates_are_the_times_of_the_published_messages() {
        let (bytes, base, patched) = PUBLISHED[8];
        assert!((nanoseconds(bytes, base) - 4109.0).abs() < 1.0);
        assert!((nanoseconds(bytes, base) - nanoseconds(bytes, patched) - 93.0).abs() < 1.0);
    }
}
