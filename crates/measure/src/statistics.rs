//! Medians with the least and the greatest; means, deviations and intervals of samples.

/// Median, least and greatest of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle figure, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of some figures, or `None` if there are none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, min, max })
    }
}

/// Returns the middle sample, or the mean of the two in the middle. NaN if there are no samples.
pub fn median(samples: &[f64]) -> f64 {
    Spread::of(samples.iter().copied()).map_or(f64::NAN, |spread| spread.median)
}

/// Returns the figures of one side divided by those of another, round by round. A ratio between two runs
/// would compare two states of the machine.
pub fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// Returns the arithmetic mean. NaN if there are no samples.
pub fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// Returns the harmonic mean, the right one for rates. NaN if there are no samples, or one is not above zero.
pub fn harmonic_mean(samples: &[f64]) -> f64 {
    match samples.iter().all(|sample| *sample > 0.0) {
        true => samples.len() as f64 / samples.iter().map(|sample| sample.recip()).sum::<f64>(),
        false => f64::NAN,
    }
}

/// Returns the standard deviation of a whole population, or `None` for fewer than two samples.
pub fn population_deviation(samples: &[f64]) -> Option<f64> {
    (samples.len() > 1).then(|| (squares(samples) / samples.len() as f64).sqrt())
}

/// Returns the standard deviation estimated from a sample, or `None` for fewer than two samples.
pub fn sample_deviation(samples: &[f64]) -> Option<f64> {
    (samples.len() > 1).then(|| (squares(samples) / (samples.len() - 1) as f64).sqrt())
}

/// Returns mmtests' deviation of rates from their harmonic mean, or `None` for fewer than two samples or if
/// there is no such mean.
pub fn harmonic_deviation(samples: &[f64]) -> Option<f64> {
    let mean = harmonic_mean(samples);
    let squares: f64 = samples.iter().map(|sample| (sample.recip() - mean.recip()).powi(2)).sum();
    (samples.len() > 1 && mean.is_finite()).then(|| (squares * mean.powi(4) / samples.len() as f64).sqrt())
}

/// Student's t for 95 %, by degrees of freedom from 1 on.
const STUDENT_95: [f64; 9] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];
/// The most samples whose interval can be computed.
pub const MOST_SAMPLES: usize = STUDENT_95.len() + 1;

/// Returns the width of the 95 % confidence interval of the mean, as a fraction of the mean. `None` for fewer
/// than two samples, or more than [`MOST_SAMPLES`].
pub fn interval_width(samples: &[f64]) -> Option<f64> {
    let student = STUDENT_95.get(samples.len().checked_sub(2)?)?;
    let error = sample_deviation(samples)? / (samples.len() as f64).sqrt();
    Some(2.0 * student * error / mean(samples))
}

fn squares(samples: &[f64]) -> f64 {
    let mean = mean(samples);
    samples.iter().map(|sample| (sample - mean).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_stands_between_the_extremes() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_ratio_pairs_the_rounds_and_not_the_medians() {
        let ratios = ratios(&[1.0, 8.0, 3.0], &[2.0, 2.0, 3.0]);
        assert_eq!(ratios, [0.5, 4.0, 1.0]);
        assert_eq!(median(&ratios), 1.0);
    }

    #[test]
    fn means_and_deviations_are_those_of_the_book() {
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!((mean(&samples), median(&samples)), (5.0, 4.5));
        assert_eq!(population_deviation(&samples), Some(2.0));
        assert_eq!(sample_deviation(&samples), Some((32.0_f64 / 7.0).sqrt()));
        assert_eq!(harmonic_mean(&[1.0, 2.0, 4.0]), 3.0 / 1.75);
        // 1/x is 1 and 1/2 around 3/4: H is 4/3, and 4/3 squared times 1/4 is 4/9.
        assert!((harmonic_deviation(&[1.0, 2.0]).unwrap() - 4.0 / 9.0).abs() < 1e-12);
    }

    #[test]
    fn an_interval_is_as_wide_as_student_says() {
        // The mean is 100 and the deviation 1. The width is 2 * 4.303 / sqrt(3) / 100, or 4.97 %.
        let width = interval_width(&[99.0, 100.0, 101.0]).unwrap();
        assert!((width - 0.049_686).abs() < 1e-5, "{width}");
        assert_eq!((interval_width(&[1.0]), interval_width(&[1.0; 11])), (None, None));
    }

    #[test]
    fn what_cannot_be_said_is_not() {
        assert!(mean(&[]).is_nan() && median(&[]).is_nan() && harmonic_mean(&[]).is_nan());
        assert!(harmonic_mean(&[1.0, 0.0]).is_nan());
        assert_eq!((population_deviation(&[3.0]), sample_deviation(&[3.0])), (None, None));
        assert_eq!((harmonic_deviation(&[3.0]), harmonic_deviation(&[1.0, 0.0])), (None, None));
    }
}
