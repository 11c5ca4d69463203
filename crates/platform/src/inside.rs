//! Whether this thread is inside of the engine.
//!
//! The engine allocates, on its own threads and on those that call it. A program may have an allocator whose
//! memory the engine itself serves. Such an allocator asks here, and gives memory of another kind to a thread
//! that is inside. So the engine never waits for itself.
//!
//! A mark is a count of this thread: marks nest, and each lives as long as its call. Nothing is locked or
//! allocated. Threads are counted from when an allocator has said that it will ask: until then a mark costs a
//! load, and afterwards two changes of a thread-local word as well. Calls that find everything at hand (a
//! load of a page that is there) set no mark, since they allocate nothing large.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// Some allocator asks. It is never taken back.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    // Made in place and without a destructor: any allocator may ask, on any thread and at any time of its
    // life.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// This thread is inside of the engine as long as this lives.
#[derive(Debug)]
#[must_use = "the thread leaves when this is dropped"]
pub struct Inside {
    is_counted: bool,
    /// The count is this thread's.
    stays_here: PhantomData<*const ()>,
}

impl Inside {
    /// Enters the engine.
    #[inline]
    pub fn enter() -> Self {
        // Relaxed: whoever depends on the answer has said so on this thread.
        let is_counted = IS_ASKED.load(Ordering::Relaxed);
        if is_counted {
            DEPTH.set(DEPTH.get() + 1);
        }
        Self { is_counted, stays_here: PhantomData }
    }

    /// Has threads counted from now on. A thread that is inside of the engine already is not.
    #[inline]
    pub fn ask() {
        IS_ASKED.store(true, Ordering::Relaxed);
    }

    /// Returns whether this thread is inside of the engine, as far as it has entered since [`Inside::ask`].
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
