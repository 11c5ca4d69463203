//! Decides whether a thread stays awake for the next event, or sleeps.
//!
//! Staying awake takes CPU time, but sleeping and waking takes longer than many a wait. So the thread tries
//! to stay awake, and tries again if that has saved time lately. If other threads wanted the CPU meanwhile,
//! it tries ever more rarely.

/// Whether to stay awake for the next event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wakefulness {
    /// How often staying awake has saved time lately. Each failure takes two off.
    credit: u8,
    /// Without credit, the thread does not try in this many more turns.
    pause: u32,
    /// Determines the next pause after others wanted the CPU. `undisturbed` counts how often staying awake
    /// has saved time since then.
    long_pause: u32,
    undisturbed: u32,
}

impl Default for Wakefulness {
    fn default() -> Self {
        Self { credit: 0, pause: 0, long_pause: Self::PAUSE, undisturbed: 0 }
    }
}

impl Wakefulness {
    const MOST_CREDIT: u8 = 8;
    const PAUSE: u32 = 31;
    const LONGEST_PAUSE: u32 = 8191;
    /// The long pause halves after this many successes.
    const UNDISTURBED: u32 = 64;

    pub(crate) fn is_worth_it(&mut self) -> bool {
        let pauses = self.credit == 0 && self.pause > 0;
        self.pause -= u32::from(pauses);
        !pauses
    }

    pub(crate) fn note(&mut self, came: bool) {
        if came {
            self.credit = (self.credit + 1).min(Self::MOST_CREDIT);
            self.undisturbed += 1;
            if self.undisturbed == Self::UNDISTURBED {
                (self.long_pause, self.undisturbed) = ((self.long_pause / 2).max(Self::PAUSE), 0);
            }
        } else {
            self.credit = self.credit.saturating_sub(2);
            self.pause = Self::PAUSE;
        }
    }

    /// Notes that others wanted the CPU meanwhile. Finding that out may cost this thread some milliseconds.
    pub(crate) fn disturbed(&mut self) {
        (self.credit, self.undisturbed) = (0, 0);
        self.long_pause = (self.long_pause * 4).min(Self::LONGEST_PAUSE);
        self.pause = self.long_pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_stay_awake_is_tried_seldom_where_it_does_not_pay() {
        let mut awake = Wakefulness::default();
        let mut tries = |pays: bool| {
            (0..320)
                .filter(|_| {
                    let tries = awake.is_worth_it();
                    if tries {
                        awake.note(pays);
                    }
                    tries
                })
                .count()
        };
        assert_eq!(tries(false), 10);
        assert!(tries(true) > 280, "after a try that pays, each is worth it");
        assert!(tries(false) < 15, "no more than the credit allows");
    }

    #[test]
    fn who_takes_the_cpu_from_others_tries_ever_more_seldom() {
        let mut awake = Wakefulness::default();
        (0..20).for_each(|_| awake.note(true));
        let mut pauses = || {
            awake.disturbed();
            (0..).take_while(|_| !awake.is_worth_it()).count()
        };
        assert_eq!([(); 6].map(|()| pauses()), [124, 496, 1984, 7936, 8191, 8191]);
        (0..63).for_each(|_| awake.note(true));
        awake.disturbed();
        assert_eq!((0..).take_while(|_| !awake.is_worth_it()).count(), 8191);
        (0..8 * 64).for_each(|_| awake.note(true));
        awake.disturbed();
        assert_eq!((0..).take_while(|_| !awake.is_worth_it()).count(), 124, "that was undisturbed for long");
    }
}
