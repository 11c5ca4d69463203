//! Seeded randomness.

/// Splitmix64: the seed decides all numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Raw numbers that become an operation. Small numbers become simple operations, so that shrinking helps.
pub type Raw = (u8, u16, u16, u8);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// So many operations.
    pub fn ops(&mut self, steps: u64) -> Vec<Raw> {
        let op = |word: u64| (word as u8, (word >> 8) as u16, (word >> 24) as u16, (word >> 40) as u8);
        (0..steps).map(|_| op(self.next())).collect()
    }
}
