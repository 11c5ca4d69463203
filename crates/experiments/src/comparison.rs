//! One experiment's figures from three kinds of evidence, side by side.

use octavo_measure::rounds::turns;
use serde::{Deserialize, Serialize};

use crate::Form;

/// Where figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The commit message of the Linux patch.
    Published,
    /// Linux's operation on a simulated machine: the engine's operation, plus plain work up to the published
    /// patched figure.
    SimulatedLinux,
    /// The engine's own operation on a simulated machine.
    SimulatedOctavo,
    /// The engine on this machine.
    Measured,
}

impl Evidence {
    /// Returns its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::SimulatedLinux => "simulated, Linux-calibrated",
            Self::SimulatedOctavo => "simulated, Octavo",
            Self::Measured => "measured here",
        }
    }
}

/// A figure for all forms, from one kind of evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FormFigures {
    /// What the figure is, with its unit.
    pub figure: String,
    /// Where it comes from.
    pub evidence: Evidence,
    /// The figure of the base form. `None` if this evidence has none.
    pub base: Option<f64>,
    /// The figure of the patched form.
    pub patched: Option<f64>,
    /// The figure of the best form.
    pub best: Option<f64>,
    /// The patched figure divided by the base one.
    pub ratio: Option<f64>,
    /// The difference of the predicted ratio from the published one, as a fraction of the published one.
    pub error: Option<f64>,
    /// The form whose figure was fitted to the published one, and so predicts nothing.
    pub fitted: Option<Form>,
}

/// An experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The name of the experiment on the command line.
    pub experiment: String,
    /// The simulated machine.
    pub machine: String,
    /// The seed of the simulations.
    pub seed: u64,
    /// The figures, each with the published one first.
    pub lines: Vec<FormFigures>,
    /// Remarks on the figures.
    pub notes: Vec<String>,
}

impl FormFigures {
    /// Makes a line without figures.
    pub fn new(figure: impl Into<String>, evidence: Evidence) -> Self {
        Self {
            figure: figure.into(),
            evidence,
            base: None,
            patched: None,
            best: None,
            ratio: None,
            error: None,
            fitted: None,
        }
    }

    /// Adds the figures of all forms, in the order of [`Form::ALL`].
    pub fn of(self, forms: [f64; 3]) -> Self {
        let [base, patched, best] = forms;
        Self {
            base: Some(base),
            patched: Some(patched),
            best: Some(best),
            ratio: Some(patched / base),
            ..self
        }
    }

    /// Adds the figures of the two forms in the Linux patch.
    pub fn of_two(self, base: f64, patched: f64) -> Self {
        Self { base: Some(base), patched: Some(patched), ratio: Some(patched / base), ..self }
    }

    /// Adds a ratio of those two forms alone.
    pub fn of_ratio(self, ratio: f64) -> Self {
        Self { ratio: Some(ratio), ..self }
    }

    /// Adds the error against the published ratio.
    pub fn beside(self, published: f64) -> Self {
        Self { error: self.ratio.map(|ratio| ratio / published - 1.0), ..self }
    }

    /// Marks one form's figure as fitted.
    pub fn fitted(self, form: Form) -> Self {
        Self { fitted: Some(form), ..self }
    }
}

/// Measures all forms `ROUNDS` times, in turns, and returns the run of each form whose figure is the median.
pub(crate) fn in_turns<R>(measure: impl Fn(Form) -> R, figure: impl Fn(&R) -> f64) -> [R; 3] {
    let mut runs = Form::ALL.map(|_| Vec::with_capacity(ROUNDS));
    for (_, side) in turns(ROUNDS, Form::ALL.len()) {
        runs[side].push(measure(Form::ALL[side]));
    }
    runs.map(|mut runs| {
        runs.sort_by(|one, other| figure(one).total_cmp(&figure(other)));
        runs.swap_remove(ROUNDS / 2)
    })
}

/// The number of runs of each form on this machine.
pub(crate) const ROUNDS: usize = 5;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn forms_take_turns_and_the_median_counts() {
        let calls = Cell::new(0);
        let runs = in_turns(
            |form| {
                calls.set(calls.get() + 1);
                (form, f64::from(calls.get() * 7 % 15))
            },
            |(_, figure)| *figure,
        );
        assert_eq!(calls.get(), 15);
        assert_eq!(runs.map(|(form, _)| form), Form::ALL);
        // Calls 1, 6, 8, 10 and 15 were of the base form: 7, 12, 11, 10, 0.
        assert_eq!(runs[0].1, 10.0);
    }

    #[test]
    fn a_line_says_how_far_a_prediction_is_off() {
        let line =
            FormFigures::new("throughput", Evidence::SimulatedLinux).of([100.0, 200.0, 250.0]).beside(2.5);
        assert_eq!((line.ratio, line.error.map(|error| (error * 100.0).round())), (Some(2.0), Some(-20.0)));
    }
}
