//! Coroutines with stacks of their own. They may stop anywhere.
//!
//! A simulated thread stops inside an atomic operation, deep in code that knows nothing of coroutines. So the
//! way out of the running coroutine is kept in a thread-local variable, not on its stack.

use std::cell::Cell;
use std::ops::Range;
use std::ptr;

use corosensei::stack::{DefaultStack, Stack as _};
use corosensei::{Coroutine as Switched, CoroutineResult, Yielder};

/// Bytes of a coroutine's stack. The kernel gives memory to the stack as it is touched.
pub(crate) const STACK_BYTES: usize = 1 << 20;

thread_local! {
    /// The way out of the coroutine that runs on this thread. Null if none runs.
    static WAY_OUT: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// A function that may stop anywhere in its calls and continue later.
pub(crate) struct Coroutine {
    switched: Switched<(), (), ()>,
    stack: Range<usize>,
}

impl std::fmt::Debug for Coroutine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Coroutine")
    }
}

impl Coroutine {
    /// Makes a coroutine that has not begun.
    ///
    /// # Errors
    /// Fails if the kernel has no memory for a stack.
    pub(crate) fn new(work: impl FnOnce() + 'static) -> std::io::Result<Self> {
        let memory = DefaultStack::new(STACK_BYTES)?;
        let stack = memory.limit().get()..memory.base().get();
        let switched = Switched::with_stack(memory, |way_out: &Yielder<(), ()>, ()| {
            WAY_OUT.set(way_out);
            work();
        });
        Ok(Self { switched, stack })
    }

    /// Returns the addresses of its stack.
    pub(crate) fn stack(&self) -> Range<usize> {
        self.stack.clone()
    }

    /// Runs the coroutine until it stops or ends. Returns whether it has ended. A panic of its work
    /// propagates to the caller.
    pub(crate) fn resume(&mut self) -> bool {
        let ended = matches!(self.switched.resume(()), CoroutineResult::Return(()));
        WAY_OUT.set(ptr::null());
        ended
    }
}

/// Stops the calling coroutine. Returns when the coroutine is resumed.
pub(crate) fn stop() {
    let way_out = WAY_OUT.get();
    assert!(!way_out.is_null(), "only a coroutine stops");
    // SAFETY: the pointer was set from a reference that lives as long as the coroutine's work. It is null
    // while no coroutine of this thread runs. Each coroutine sets it to its own when it starts and each time
    // it is resumed. So the caller runs inside the work that the pointer belongs to.
    let back = unsafe { &*way_out };
    back.suspend(());
    WAY_OUT.set(way_out);
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn coroutines_take_turns_and_end() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut both: Vec<_> = (0..2)
            .map(|number| {
                let log = Rc::clone(&log);
                Coroutine::new(move || {
                    for step in 0..2 {
                        log.borrow_mut().push((number, step));
                        stop();
                    }
                })
                .unwrap()
            })
            .collect();
        for _ in 0..2 {
            both.iter_mut().for_each(|one| assert!(!one.resume()));
        }
        both.iter_mut().for_each(|one| assert!(one.resume()));
        assert_eq!(*log.borrow(), [(0, 0), (1, 0), (0, 1), (1, 1)]);
    }

    #[test]
    fn what_a_stopped_coroutine_holds_is_dropped_with_it() {
        let held = Rc::new(());
        let inside = Rc::clone(&held);
        let mut one = Coroutine::new(move || {
            let _inside = inside;
            stop();
        })
        .unwrap();
        one.resume();
        assert_eq!(Rc::strong_count(&held), 2);
        drop(one);
        assert_eq!(Rc::strong_count(&held), 1);
    }

    #[test]
    #[should_panic = "only a coroutine stops"]
    fn nobody_else_stops() {
        stop();
    }
}
