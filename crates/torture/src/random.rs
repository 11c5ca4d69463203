//! Random numbers from a seed, the same on every machine.

/// A sequence that its seed determines.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// The odd number that is added to the state at each step.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes all bits of a number, one to one.
pub const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(STEP)))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number below `limit`, or 0 if the limit is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// Returns `true` once in `times` on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns a run of 1 to `longest` places among `all` places. Both numbers must be at least 1.
    pub fn run(&mut self, all: usize, longest: usize) -> std::ops::Range<usize> {
        let length = 1 + self.below(longest.min(all));
        let start = self.below(all - length + 1);
        start..start + length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_sequence_and_runs_stay_inside() {
        let (mut one, mut two) = (Random::new(7), Random::new(7));
        for _ in 0..1000 {
            let run = one.run(10, 20);
            assert_eq!(run, two.run(10, 20));
            assert!(!run.is_empty() && run.end <= 10);
        }
        assert_ne!(Random::new(1).next(), Random::new(2).next());
    }
}
