//! Whether this thread is inside the engine.
//!
//! The engine allocates memory, on its own threads and on threads that call it. A program may have an
//! allocator whose memory the engine itself serves. Such an allocator asks here, and gives memory of another
//! kind to a thread that is inside. So the engine never waits for itself.
//!
//! A mark raises this thread's count for the time of a call, so marks nest. It takes no lock and allocates
//! nothing. Marks count only after an allocator has called [`Inside::ask`]. Before that call, a mark costs
//! one load. After it, a mark also costs two changes of a thread-local word. Calls that find their page in
//! memory set no mark, since they allocate nothing large.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once an allocator asks, and never cleared.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    // The count needs no initialization and no destructor, so an allocator may ask on any thread, at any time
    // of the thread's life.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Marks this thread as inside the engine while it lives.
#[derive(Debug)]
#[must_use = "the thread leaves when this is dropped"]
pub struct Inside {
    is_counted: bool,
    /// Not `Send`: the count belongs to this thread.
    stays_here: PhantomData<*const ()>,
}

impl Inside {
    /// Enters the engine.
    #[inline]
    pub fn enter() -> Self {
        // Relaxed: a caller that depends on the answer has called `ask` on this thread.
        let is_counted = IS_ASKED.load(Ordering::Relaxed);
        if is_counted {
            DEPTH.set(DEPTH.get() + 1);
        }
        Self { is_counted, stays_here: PhantomData }
    }

    /// Starts the counting. Marks that are already set stay uncounted.
    #[inline]
    pub fn ask() {
        IS_ASKED.store(true, Ordering::Relaxed);
    }

    /// Returns whether this thread is inside the engine. Entries before [`Inside::ask`] do not count.
    #[inline]
    pub fn is_here() -> bool {
        DEPTH.get() > 0
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        if self.is_counted {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_nest_and_are_of_one_thread() {
        Inside::ask();
        assert!(!Inside::is_here());
        let outer = Inside::enter();
        drop(Inside::enter());
        assert!(Inside::is_here());
        std::thread::spawn(|| assert!(!Inside::is_here())).join().unwrap();
        drop(outer);
        assert!(!Inside::is_here());
    }
}
