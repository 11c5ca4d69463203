//! Whims of the test device: failures, lies and delays, drawn from its seed.

use super::Random;

/// The behaviour of the device. Chances are per mille of transfers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whims {
    /// Transfers that are completed before `submit` returns.
    pub inline: u64,
    pub failed_reads: u64,
    pub failed_writes: u64,
    /// Whether all failures are ENOSPC, as on a full file system.
    pub full: bool,
    /// Reads that return Ok with wrong bytes.
    pub lying_reads: u64,
    /// Writes that return Ok and leave a page unchanged.
    pub lost_writes: u64,
    /// The longest delay: in calls for `Driven`, in microseconds for the others. One in 16 takes eight times
    /// as long.
    pub delay: u64,
    /// Transfers that the device refuses because it claims to be full, while others are under way.
    pub refused: u64,
}

impl Whims {
    /// Chooses whims with failures and delays, but without lies.
    pub fn random(random: &mut Random) -> Self {
        let mut chance = |of: &[u64]| random.pick(of);
        Self {
            inline: chance(&[0, 0, 200, 700]),
            failed_reads: chance(&[0, 0, 30, 200]),
            failed_writes: chance(&[0, 0, 50, 300, 1000]),
            full: chance(&[0, 0, 1]) == 1,
            lying_reads: 0,
            lost_writes: 0,
            delay: chance(&[0, 2, 20, 300]),
            refused: chance(&[0, 0, 100, 500]),
        }
    }

    /// Returns these whims without errors.
    pub fn honest(self) -> Self {
        Self { failed_reads: 0, failed_writes: 0, lying_reads: 0, lost_writes: 0, ..self }
    }
}

/// Counts of events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    pub reads: u64,
    pub writes: u64,
    pub failed_reads: u64,
    pub failed_writes: u64,
    pub lies: u64,
    /// Transfers that came while the device was full.
    pub refused: u64,
    /// Transfers that ended before one that was submitted earlier.
    pub overtaken: u64,
    /// A digest of all events above, in order, with places. Equal runs have equal digests.
    pub digest: u64,
}

impl Happened {
    pub(super) fn note(&mut self, what: u64, place: u32, more: u64) {
        let word = what << 60 ^ u64::from(place) << 16 ^ more;
        self.digest = Random::new(self.digest ^ word).next();
    }
}
