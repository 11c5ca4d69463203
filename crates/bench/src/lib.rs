//! Octavo's measurements: its forms against each other and against its peers, all sides in one run.
//!
//! Each program in `bin/` measures one thing. The programs that use [`peers`] need the feature `peers`.

pub mod jobs;
pub mod latency;
pub mod pages;
#[cfg(feature = "peers")]
pub mod peers;
pub mod policies;

use octavo_measure::rounds::measure_in_turns;
use octavo_measure::statistics::Spread;
use octavo_measure::table::markdown_row;

/// Writes the median, and the least in brackets. On a shared machine, the truth lies between the two.
pub fn summary(figures: Vec<f64>) -> String {
    let spread = Spread::of(figures).expect("there is a round at least");
    format!("{:.1} ({:.1})", spread.median, spread.min)
}

/// Measures all sides in turn, round after round, and prints a row of their summaries.
pub fn row(name: &str, rounds: usize, sides: &mut [&mut dyn FnMut() -> f64]) {
    let figures = measure_in_turns(rounds, sides.len(), |side| sides[side]());
    print!("{}", markdown_row(name, figures.into_iter().map(summary)));
}

/// Returns the rounds that the first word of the command line asks for.
pub fn rounds_or(default: usize) -> usize {
    std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(default).max(1)
}
