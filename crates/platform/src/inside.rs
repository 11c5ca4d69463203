//! Whether this thread is inside of the engine.
//!
//! The engine allocates, on its own threads and on those that call it. A program may have an allocator whose memory the engine
//! itself serves. Such an allocator asks here, and gives memory of another kind to a thread that is inside. So the engine never waits
//! for itself.
//!
//! A mark is a count of this thread: marks nest, and each lives as long as its call. Nothing is locked or allocated, and a mark costs
//! two changes of a thread-local word. Calls that find everything at hand (a load of a page that is there) set no mark, since they
//! allocate nothing large.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    // Made in place and without a destructor: any allocator may ask, on any thread and at any time of its life.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// This thread is inside of the engine as long as this lives.
#[derive(Debug)]
#[must_use = "the thread leaves when this is dropped"]
pub struct Inside {
    /// The count is this thread's.
    stays_here: PhantomData<*const ()>,
}

impl Inside {
    /// Enters the engine.
    #[inline]
    pub fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self { stays_here: PhantomData }
    }

    /// Returns whether this thread is inside of the engine.
    #[inline]
    pub fn is_here() -> bool {
        DEPTH.get() > 0
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_nest_and_are_of_one_thread() {
        assert!(!Inside::is_here());
        let outer = Inside::enter();
        drop(Inside::enter());
        assert!(Inside::is_here());
        std::thread::spawn(|| assert!(!Inside::is_here())).join().unwrap();
        drop(outer);
        assert!(!Inside::is_here());
    }
}
