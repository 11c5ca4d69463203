//! Random numbers that are the same on every run: SplitMix64 (Steele, Lea and Flood, *Fast Splittable
//! Pseudorandom Number Generators*, 2014).
//!
//! No draw waits for the one before, so a draw is cheap enough for a timed loop. Every seed is equally good,
//! since even neighbouring seeds give unrelated sequences.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws the next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Draws a number below `bound`. Uses a multiplication, so that a timed loop does not measure a division.
    #[inline]
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Puts items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Returns the word at place `number` of the sequence of seed 0.
#[inline]
pub fn word(number: u64) -> u64 {
    mix(number.wrapping_add(1).wrapping_mul(STEP))
}

/// Mixes the bits of a number: each input bit flips about half of the output's. 0 stays 0.
#[inline]
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        // The first outputs of the authors' generator for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        let mut random = Random::new(0);
        assert!((0..100).all(|number| word(number) == random.next_u64()));
    }

    #[test]
    fn sequences_repeat_and_differ_by_seed() {
        assert_eq!(Random::new(7).next_u64(), Random::new(7).next_u64());
        assert_ne!(Random::new(7).next_u64(), Random::new(8).next_u64());
    }

    #[test]
    fn numbers_below_a_bound_cover_it() {
        let mut random = Random::new(3);
        let mut seen = [false; 10];
        (0..1000).for_each(|_| seen[random.below(10)] = true);
        assert_eq!(seen, [true; 10]);
    }

    #[test]
    fn a_shuffle_keeps_every_item_once() {
        let mut order: Vec<u32> = (0..4096).collect();
        Random::new(3).shuffle(&mut order);
        assert_ne!(order, (0..4096).collect::<Vec<u32>>());
        order.sort_unstable();
        assert_eq!(order, (0..4096).collect::<Vec<u32>>());
    }
}
