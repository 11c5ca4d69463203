//! A progress bar on long work, and a notice beforehand if the command will take long.
//!
//! Workers add to one counter now and then. The bar's own thread looks at this counter five times a second,
//! so that drawing takes no time of a worker. The bar appears after the first second, on standard error, and
//! only if standard error is a terminal. The notice (see [`Pace`]) always goes to standard error, as soon as
//! the time can be estimated.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use octavo_command::output::tell;

const FIRST_LOOK: Duration = Duration::from_secs(1);
const NEXT_LOOK: Duration = Duration::from_millis(200);
/// Commands that take longer than this are announced.
const LONG: Duration = Duration::from_secs(10);

/// The pace of a command's turns, from which their total time is estimated.
#[derive(Debug)]
pub struct Pace {
    turns: u32,
    /// The times of the finished turns.
    over: Mutex<Over>,
    said: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Over {
    turns: u32,
    time: Duration,
}

/// An estimate of the time of all turns.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Foreseen {
    About(Duration),
    AtLeast(Duration),
}

impl Pace {
    /// Makes the pace of `turns` turns, each of which takes at least `each`. Announces a long time at once.
    pub fn new(turns: u32, each: Duration) -> Arc<Self> {
        let pace = Self { turns, over: Mutex::default(), said: AtomicBool::new(false) };
        if let Some(sentence) = pace.announcement(Foreseen::AtLeast(each * turns)) {
            tell(sentence);
        }
        Arc::new(pace)
    }

    /// Estimates the total time when the current turn has taken `time`. `part` is the part of the turn that
    /// is done, if known.
    fn foresee(&self, time: Duration, part: Option<f64>) -> Foreseen {
        let over = *self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let all =
            |turn: Duration| (over.time + turn).mul_f64(f64::from(self.turns) / f64::from(over.turns + 1));
        match part.filter(|&part| part > 0.0) {
            Some(part) => Foreseen::About(all(time.div_f64(part.min(1.0)))),
            None if over.turns > 0 => Foreseen::About(all(time.max(over.time / over.turns))),
            // A turn whose progress is unknown may be nearly over.
            None if time < LONG / 2 => Foreseen::AtLeast(time),
            None => Foreseen::AtLeast(all(time)),
        }
    }

    /// Returns the sentence to print, the first time that the estimate exceeds [`LONG`].
    fn announcement(&self, foreseen: Foreseen) -> Option<String> {
        let (Foreseen::About(time) | Foreseen::AtLeast(time)) = foreseen;
        // Relaxed: printing the notice twice would do no harm.
        if time <= LONG || self.said.swap(true, Ordering::Relaxed) {
            return None;
        }
        let how = if matches!(foreseen, Foreseen::About(_)) { "about" } else { "at least" };
        let turns = if self.turns > 1 { format!(", for {} turns", self.turns) } else { String::new() };
        Some(format!("this will take {how} {}{turns}", in_words(time)))
    }

    fn end_turn(&self, time: Duration) {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.turns += 1;
        over.time += time;
    }
}

/// Returns a rough time in words.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..60.0 => format!("{seconds:.0} s"),
        60.0..5400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.0} h", seconds / 3600.0),
    }
}

/// The progress of a turn, or of a part of the preparations. Dropping it removes the bar.
#[derive(Debug)]
pub struct TurnProgress {
    done: Arc<AtomicU64>,
    looker: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
    /// Present if the work is a turn.
    turn: Option<(Arc<Pace>, Instant)>,
}

impl TurnProgress {
    /// Begins a turn. Shows `title` and how much of `total` is done, or only the time if the total is
    /// unknown.
    pub fn turn(pace: &Arc<Pace>, title: String, total: Option<u64>) -> Self {
        Self::start(pace, title, total, true)
    }

    /// Begins work outside the turns.
    pub fn aside(pace: &Arc<Pace>, title: String, total: Option<u64>) -> Self {
        Self::start(pace, title, total, false)
    }

    fn start(pace: &Arc<Pace>, title: String, total: Option<u64>, is_turn: bool) -> Self {
        let done = Arc::new(AtomicU64::new(0));
        let (bar, begun) = (io::stderr().is_terminal(), Instant::now());
        let turn = is_turn.then(|| (Arc::clone(pace), begun));
        if !bar && pace.said.load(Ordering::Relaxed) {
            return Self { done, looker: None, turn };
        }
        let (stop, stopped) = mpsc::channel();
        let look = Looker { done: Arc::clone(&done), total, pace: Arc::clone(pace), is_turn, begun };
        let look = move || look.until(&stopped, bar.then_some(title));
        // If the thread cannot be started, the work continues without a bar.
        let looker = thread::Builder::new().name("progress".into()).spawn(look).ok();
        Self { done, looker: looker.map(|thread| (stop, thread)), turn }
    }

    /// The counter to add to, if a bar shows it.
    pub fn counter(&self) -> Option<&AtomicU64> {
        self.looker.as_ref().map(|_| &*self.done)
    }
}

impl Drop for TurnProgress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.looker.take() {
            drop(stop);
            // A bar that panicked is no reason to fail the work.
            let _ = thread.join();
        }
        if let Some((pace, begun)) = self.turn.take() {
            pace.end_turn(begun.elapsed());
        }
    }
}

/// The thread that looks at the counter while the work continues.
struct Looker {
    done: Arc<AtomicU64>,
    total: Option<u64>,
    pace: Arc<Pace>,
    is_turn: bool,
    begun: Instant,
}

impl Looker {
    fn until(&self, stopped: &mpsc::Receiver<()>, title: Option<String>) {
        if stopped.recv_timeout(FIRST_LOOK) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let bar = title.map(|title| bar(title, self.total));
        loop {
            if let Some(sentence) = self.announcement() {
                match &bar {
                    Some(bar) => bar.println(sentence),
                    None => tell(sentence),
                }
            }
            if let Some(bar) = &bar {
                match self.total {
                    Some(_) => bar.set_position(self.done()),
                    None => bar.tick(),
                }
            }
            if stopped.recv_timeout(NEXT_LOOK) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
    }

    fn done(&self) -> u64 {
        // Relaxed: the figure is only shown, and orders nothing.
        self.done.load(Ordering::Relaxed)
    }

    fn announcement(&self) -> Option<String> {
        let time = self.begun.elapsed();
        let part = self.total.map(|total| self.done() as f64 / total.max(1) as f64);
        let foreseen = if self.is_turn { self.pace.foresee(time, part) } else { Foreseen::AtLeast(time) };
        self.pace.announcement(foreseen)
    }
}

fn bar(title: String, total: Option<u64>) -> ProgressBar {
    let bar = match total {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::new_spinner(),
    }
    .with_elapsed(FIRST_LOOK);
    let template = match total {
        Some(_) => "{msg} [{bar:40}] {percent:>3}% {elapsed}, {eta} to go",
        None => "{msg} {spinner} {elapsed}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(title);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(turns: u32) -> Pace {
        Pace { turns, over: Mutex::default(), said: AtomicBool::new(false) }
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn all_turns_are_foreseen_from_the_part_that_is_done() {
        let pace = pace(10);
        assert_eq!(pace.foresee(s(2), None), Foreseen::AtLeast(s(2)));
        assert_eq!(pace.foresee(s(6), None), Foreseen::AtLeast(s(60)));
        assert_eq!(pace.foresee(s(2), Some(0.5)), Foreseen::About(s(40)));
        pace.end_turn(s(4));
        // If the progress of a turn is unknown, the estimate assumes that the turn takes at least as long as
        // those before it.
        assert_eq!(pace.foresee(s(1), None), Foreseen::About(s(40)));
        assert_eq!(pace.foresee(s(8), None), Foreseen::About(s(60)));
        assert_eq!(pace.foresee(s(1), Some(0.25)), Foreseen::About(s(40)));
        assert_eq!(pace.foresee(s(1), Some(0.0)), Foreseen::About(s(40)));
    }

    #[test]
    fn what_takes_over_ten_seconds_is_said_once() {
        let pace = pace(3);
        assert_eq!(pace.announcement(Foreseen::About(s(10))), None);
        let sentence = pace.announcement(Foreseen::About(s(125)));
        assert_eq!(sentence.as_deref(), Some("this will take about 2 min, for 3 turns"));
        assert_eq!(pace.announcement(Foreseen::About(s(200))), None);
        let one = super::Pace { turns: 1, ..self::pace(1) };
        let sentence = one.announcement(Foreseen::AtLeast(s(7200)));
        assert_eq!(sentence.as_deref(), Some("this will take at least 2 h"));
    }
}
