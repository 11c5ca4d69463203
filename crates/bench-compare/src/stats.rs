//! Median, minimum and maximum of a handful of rounds.

use serde_json::{Value, json};

/// The figures of the rounds of one measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Median of the rounds.
    pub median: f64,
    /// Smallest round.
    pub min: f64,
    /// Largest round.
    pub max: f64,
    /// The rounds, in the order in which they were run.
    pub rounds: Vec<f64>,
}

impl Summary {
    /// Summarises at least one round. `None` of no rounds.
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, min, max, rounds: rounds.to_vec() })
    }

    /// Summarises `numerator / denominator`, round by round.
    pub fn of_ratio(numerator: &[f64], denominator: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = numerator.iter().zip(denominator).map(|(n, d)| n / d).collect();
        Self::of(&ratios)
    }

    /// Gives the figures as the JSON file holds them.
    pub fn to_json(&self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max, "rounds": self.rounds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_stands_between_the_extremes() {
        let odd = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_ratio_pairs_the_rounds_and_not_the_medians() {
        let ratio = Summary::of_ratio(&[1.0, 8.0, 3.0], &[2.0, 2.0, 3.0]).unwrap();
        assert_eq!(ratio.rounds, [0.5, 4.0, 1.0]);
        assert_eq!(ratio.median, 1.0);
    }
}
