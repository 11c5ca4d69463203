//! Decides which place is better for a driver, by the cost of faults at each.
//!
//! The driver keeps the better place, and tries the other one now and then: ever more rarely if it loses. A
//! driver that was called back stays apart for a while, longer each time.

use std::time::Duration;

/// Epochs until the other place is tried: at first, after a change of place, and at most.
const FIRST_TRIAL: u32 = 1;
const PAUSE: u32 = 8;
const LONGEST_PAUSE: u32 = 64;
/// Epochs without a trial after the driver was called back, at most.
const MOST_FORBIDDEN: u32 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverPlace {
    Apart,
    Beside,
}

impl DriverPlace {
    fn other(self) -> Self {
        match self {
            Self::Apart => Self::Beside,
            Self::Beside => Self::Apart,
        }
    }
}

/// The better place so far, and when to try the other one.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacementChoice {
    better: DriverPlace,
    /// The usual cost of a fault there.
    usual: Duration,
    is_trial: bool,
    epochs_left: u32,
    pause: u32,
    /// Epochs without a trial after the driver's next call back.
    forbids: u32,
}

impl PlacementChoice {
    pub(super) fn new() -> Self {
        let (usual, is_trial) = (Duration::MAX, false);
        let (epochs_left, pause, forbids) = (FIRST_TRIAL, PAUSE, PAUSE);
        Self { better: DriverPlace::Apart, usual, is_trial, epochs_left, pause, forbids }
    }

    /// Judges an epoch at `place` by its `cost` per fault. Returns the place for the next epoch.
    pub(super) fn judge(&mut self, place: DriverPlace, cost: Duration) -> DriverPlace {
        if place == DriverPlace::Beside {
            self.forbids = (self.forbids / 2).max(PAUSE);
        }
        if std::mem::take(&mut self.is_trial) && place != self.better {
            // Beside the thread, no other CPU has to wake. So the driver leaves that place only if the other
            // is clearly better.
            let has_won = match place {
                DriverPlace::Beside => cost < self.usual,
                DriverPlace::Apart => cost < self.usual / 5 * 4,
            };
            if has_won {
                (self.better, self.usual) = (place, cost);
            }
            self.pause = if has_won { PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
            self.epochs_left = self.pause;
        } else if place == self.better {
            // Averages, since faults that wait for a device make epochs differ.
            self.usual = if self.usual == Duration::MAX { cost } else { (self.usual * 3 + cost) / 4 };
            // The number is 0 already if another thread prevented a trial.
            self.epochs_left = self.epochs_left.saturating_sub(1);
            self.is_trial = self.epochs_left == 0;
            if self.is_trial {
                return place.other();
            }
        }
        self.better
    }

    /// Notes that the driver was called back.
    pub(super) fn forbid(&mut self) {
        (self.better, self.usual, self.is_trial) = (DriverPlace::Apart, Duration::MAX, false);
        self.epochs_left = self.forbids;
        self.forbids = (self.forbids * 4).min(MOST_FORBIDDEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(8);
    const SLOW: Duration = Duration::from_micros(40);

    /// Returns a driver's place, epoch by epoch, for a cost of faults at each place.
    fn places(
        choice: &mut PlacementChoice,
        epochs: usize,
        cost: impl Fn(DriverPlace) -> Duration,
    ) -> Vec<DriverPlace> {
        let mut at = DriverPlace::Apart;
        let mut places = Vec::new();
        for _ in 0..epochs {
            places.push(at);
            at = choice.judge(at, cost(at));
        }
        places
    }

    #[test]
    fn the_better_place_is_taken_and_the_other_is_tried_ever_more_seldom() {
        for better in [DriverPlace::Apart, DriverPlace::Beside] {
            let cost = |place| if place == better { FAST } else { SLOW };
            let places = places(&mut PlacementChoice::new(), 4000, cost);
            let others = places[2..].iter().filter(|place| **place != better).count();
            assert!((40..=70).contains(&others), "{better:?}: {others}");
        }
    }

    #[test]
    fn a_place_beside_is_not_left_for_one_that_is_hardly_better() {
        let cost = |place| if place == DriverPlace::Apart { SLOW / 20 * 19 } else { SLOW };
        let mut choice = PlacementChoice::new();
        assert_eq!(choice.judge(DriverPlace::Apart, SLOW * 2), DriverPlace::Beside);
        assert_eq!(choice.judge(DriverPlace::Beside, SLOW), DriverPlace::Beside);
        let later: Vec<_> =
            std::iter::successors(Some(DriverPlace::Beside), |at| Some(choice.judge(*at, cost(*at))))
                .take(100)
                .collect();
        assert!(later.iter().filter(|place| **place == DriverPlace::Apart).count() <= 5);
    }

    #[test]
    fn a_place_that_becomes_better_is_found() {
        let mut choice = PlacementChoice::new();
        places(&mut choice, 500, |place| if place == DriverPlace::Apart { FAST } else { SLOW });
        let later = places(&mut choice, 1000, |place| if place == DriverPlace::Beside { FAST } else { SLOW });
        assert_eq!(later.last(), Some(&DriverPlace::Beside));
    }

    #[test]
    fn a_driver_that_was_called_back_stays_apart_longer_each_time() {
        let cost = |place| if place == DriverPlace::Beside { FAST } else { SLOW };
        let apart = [1, 2, 3].map(|calls| {
            let mut choice = PlacementChoice::new();
            (0..calls).for_each(|_| choice.forbid());
            places(&mut choice, 1000, cost).iter().position(|place| *place == DriverPlace::Beside)
        });
        assert_eq!(apart, [8, 32, 128].map(Some));
    }

    #[test]
    fn a_thread_after_another_has_the_better_place_at_once() {
        let cost = |place| if place == DriverPlace::Beside { FAST } else { SLOW };
        let mut choice = PlacementChoice::new();
        places(&mut choice, 5, cost);
        // The thread's first epoch is apart, since the thread was not known yet.
        assert_eq!(choice.judge(DriverPlace::Apart, SLOW), DriverPlace::Beside);
    }

    #[test]
    fn a_trial_that_another_thread_ends_is_made_up_for() {
        for better in [DriverPlace::Apart, DriverPlace::Beside] {
            let cost = |place| if place == better { FAST } else { SLOW };
            let mut choice = PlacementChoice::new();
            let mut at = DriverPlace::Apart;
            while !choice.is_trial || at == better {
                at = choice.judge(at, cost(at));
            }
            let again = choice.judge(better, FAST);
            assert_eq!((again, choice.is_trial), (better.other(), true));
            assert_eq!(choice.judge(again, SLOW), better);
        }
    }
}
