//! Sides that take turns, round by round. A drift of the machine then hits all of them alike.

/// Returns rounds and sides, by their numbers, in the order in which they run. Each round begins one side
/// further on, so no side is always first.
pub fn turns(rounds: usize, sides: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..sides).map(move |turn| (round, (round + turn) % sides)))
}

/// Measures all sides in turn. Returns the figures of each side, one for each round.
pub fn measure_in_turns(rounds: usize, sides: usize, mut measure: impl FnMut(usize) -> f64) -> Vec<Vec<f64>> {
    let mut figures = vec![Vec::with_capacity(rounds); sides];
    for (_, side) in turns(rounds, sides) {
        figures[side].push(measure(side));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_begins_one_side_further_on() {
        let all: Vec<_> = turns(2, 3).collect();
        assert_eq!(all, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]);
        assert_eq!(turns(3, 0).count() + turns(0, 3).count(), 0);
    }

    #[test]
    fn every_side_has_a_figure_for_each_round() {
        let mut calls = 0.0;
        let measured = measure_in_turns(2, 2, |side| {
            calls += 1.0;
            calls + 10.0 * side as f64
        });
        assert_eq!(measured, [[1.0, 4.0], [12.0, 13.0]]);
    }
}
