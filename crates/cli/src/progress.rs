//! The bar on long work: on standard error, only when that is a terminal, only after the first second.
//!
//! Workers add to one counter now and then; a thread of the bar's own looks at it five times a second, so
//! that drawing never happens on a worker's time.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const FIRST_LOOK: Duration = Duration::from_secs(1);
const NEXT_LOOK: Duration = Duration::from_millis(200);

/// A bar that goes away when dropped.
#[derive(Debug)]
pub struct Progress {
    done: Arc<AtomicU64>,
    drawer: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Shows `title` and how much of `total` is done, or only the time where the total cannot be followed.
    pub fn start(title: String, total: Option<u64>) -> Self {
        let done = Arc::new(AtomicU64::new(0));
        let drawer = io::stderr().is_terminal().then(|| {
            let (stop, stopped) = mpsc::channel();
            let counter = Arc::clone(&done);
            let draw = move || draw_until(&stopped, &counter, title, total);
            // Without a thread for it, the work goes on without a bar.
            thread::Builder::new().name("progress".into()).spawn(draw).ok().map(|thread| (stop, thread))
        });
        Self { done, drawer: drawer.flatten() }
    }

    /// The counter to add to, where somebody watches.
    pub fn counter(&self) -> Option<&AtomicU64> {
        self.drawer.as_ref().map(|_| &*self.done)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.drawer.take() {
            drop(stop);
            // A bar that panicked is no reason to fail the work.
            let _ = thread.join();
        }
    }
}

fn draw_until(stopped: &mpsc::Receiver<()>, done: &AtomicU64, title: String, total: Option<u64>) {
    if stopped.recv_timeout(FIRST_LOOK) != Err(RecvTimeoutError::Timeout) {
        return;
    }
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
    while stopped.recv_timeout(NEXT_LOOK) == Err(RecvTimeoutError::Timeout) {
        // Relaxed: a figure to look at, which orders nothing.
        match total {
            Some(_) => bar.set_position(done.load(Ordering::Relaxed)),
            None => bar.tick(),
        }
    }
    bar.finish_and_clear();
}
