//! The traces: page numbers, one for each access that is not to the page accessed just before.

use octavo_measure::random::Random;

/// A trace.
#[derive(Clone, Debug)]
pub struct NamedTrace {
    /// The trace's name.
    pub name: &'static str,
    /// The pages accessed, in order.
    pub pages: Vec<u32>,
    /// Whether the misses of the default policy must be within a twentieth of the best policy's on this
    /// trace.
    pub ruled: bool,
}

/// The size of the traces.
#[derive(Clone, Copy, Debug)]
pub struct TraceSize {
    /// Accesses in each trace.
    pub accesses: u32,
    /// Pages that random, zipf and sequential accesses go to.
    pub pages: u32,
    /// Frames for the replay of the traces.
    pub frames: u32,
}

/// Makes every trace, from one seed.
pub fn all(seed: u64, size: TraceSize) -> Vec<NamedTrace> {
    let mut random = Random::new(seed);
    let TraceSize { accesses, pages, frames } = size;
    let zipf = Zipf::new(pages, 0.99, &mut random);
    let half = Zipf::new(pages / 2, 0.99, &mut random);
    let mut turn = 0;
    let mut next_of = |length: u32| {
        turn += 1;
        turn % length
    };
    vec![
        record("sequential, again and again", true, size, |time| time % pages),
        record("random", true, size, |_| random.below(pages as usize) as u32),
        record("zipf 0.99", true, size, |_| zipf.draw(&mut random)),
        scan_over_hot_set(seed, size),
        // All accesses go to a hot set of three quarters of memory for a while, then to a scan for as long.
        record("hot set, then scan, in turn", true, size, |time| {
            let hot = frames / 4 * 3;
            if time / (accesses / 20) % 2 == 0 {
                random.below(hot as usize) as u32
            } else {
                hot + next_of(pages - hot)
            }
        }),
        record("loop, 1.1 of memory", true, size, |time| time % (frames / 10 * 11)),
        record("loop, 1.25 of memory", true, size, |time| time % (frames / 4 * 5)),
        record("loop, 2 of memory", true, size, |time| time % (frames * 2)),
        record("zipf 0.99 (2/3), loop of 3/4 of memory (1/3)", true, size, |time| {
            if time % 3 == 0 { pages / 2 + next_of(frames / 4 * 3) } else { half.draw(&mut random) }
        }),
        record("zipf 0.99, a ninth of it moving 10 times", false, size, |time| {
            (zipf.draw(&mut random) + time / (accesses / 10) * (pages / 9)) % pages
        }),
        record("random in 3/4 of memory, moving 10 times", false, size, |time| {
            let hot = frames / 4 * 3;
            (random.below(hot as usize) as u32 + time / (accesses / 10) * (hot / 4 * 3)) % pages
        }),
    ]
}

/// Every other access goes to a hot set of half the memory. The accesses in between go through the rest in
/// order.
pub fn scan_over_hot_set(seed: u64, size: TraceSize) -> NamedTrace {
    let mut random = Random::new(!seed);
    let hot = size.frames / 2;
    record("scan over a hot set", true, size, |time| {
        if time % 2 == 0 { random.below(hot as usize) as u32 } else { hot + time / 2 % (size.pages - hot) }
    })
}

fn record(name: &'static str, ruled: bool, size: TraceSize, page: impl FnMut(u32) -> u32) -> NamedTrace {
    NamedTrace { name, ruled, pages: (0..size.accesses).map(page).collect() }
}

/// Draws page `k` of a shuffled order with a probability in proportion to `k^-s`.
struct Zipf {
    cumulated: Vec<f64>,
    order: Vec<u32>,
}

impl Zipf {
    fn new(pages: u32, s: f64, random: &mut Random) -> Self {
        let mut sum = 0.0;
        let mut cumulated: Vec<f64> = (1..=pages)
            .map(|rank| {
                sum += f64::from(rank).powf(-s);
                sum
            })
            .collect();
        cumulated.iter_mut().for_each(|value| *value /= sum);
        let mut order: Vec<u32> = (0..pages).collect();
        random.shuffle(&mut order);
        Self { cumulated, order }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let at = random.below(1 << 31) as f64 / f64::from(1_u32 << 31);
        let rank = self.cumulated.partition_point(|value| *value < at);
        self.order[rank.min(self.order.len() - 1)]
    }
}
