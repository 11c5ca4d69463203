//! Randomness that every side sees alike.

/// Marsaglia's xorshift64. It is cheap enough to sit inside a measured loop, and gives the same sequence for
/// the same seed.
#[derive(Clone, Debug)]
pub struct XorShift(u64);

impl XorShift {
    /// Starts the sequence number `stream`. Each worker takes one of its own, and each side the same one.
    pub fn new(stream: u64) -> Self {
        Self(0x9E37_79B9_7F4A_7C15 ^ (stream + 1).wrapping_mul(0xD134_2543_DE82_EF95) | 1)
    }

    /// Draws the next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Draws a number below `bound`, by multiplication, so that no division is measured.
    #[inline]
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Returns 0 to `len - 1` in random order.
    pub fn permutation(&mut self, len: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..len as u32).collect();
        for i in (1..len).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_has_every_number_once() {
        let mut order = XorShift::new(3).permutation(4096);
        assert_ne!(order, (0..4096).collect::<Vec<u32>>());
        order.sort_unstable();
        assert_eq!(order, (0..4096).collect::<Vec<u32>>());
    }

    #[test]
    fn streams_differ_and_repeat() {
        assert_eq!(XorShift::new(7).next_u64(), XorShift::new(7).next_u64());
        assert_ne!(XorShift::new(7).next_u64(), XorShift::new(8).next_u64());
    }
}
