//! Threads of a simulation, with the interface of the standard library's.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::coroutine::STACK_BYTES;
use crate::simulation;
use crate::task::TaskId;

/// A thread's result, or the panic that ended it.
pub type Result<T> = std::result::Result<T, Box<dyn Any + Send>>;

/// Names a thread.
#[derive(Clone, Debug)]
pub struct Thread(Option<TaskId>);

/// Names a thread within its simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(Option<TaskId>);

impl Thread {
    /// The thread's name within the simulation.
    pub fn id(&self) -> ThreadId {
        ThreadId(self.0)
    }

    /// Lets the thread's current or next [`park`] return.
    pub fn unpark(&self) {
        if let Some(task) = self.0 {
            simulation::unpark(task);
        }
    }
}

/// Returns the calling thread. Outside of a simulation, it names no thread.
pub fn current() -> Thread {
    Thread(simulation::current())
}

/// Sleeps until [`Thread::unpark`].
pub fn park() {
    simulation::park(None);
}

/// Sleeps until [`Thread::unpark`], or for `time`.
pub fn park_timeout(time: Duration) {
    simulation::park(Some(time));
}

/// Sleeps for `time`.
pub fn sleep(time: Duration) {
    simulation::sleep(time);
}

/// Lets another thread of this CPU run.
pub fn yield_now() {
    simulation::yield_now();
}

/// How a thread is started.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
    cpu: Option<usize>,
}

impl Builder {
    /// A thread without a name, on the CPU with the fewest threads.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives it a name.
    pub fn name(mut self, name: String) -> Self {
        self.name = Some(name);
        self
    }

    /// Accepts a stack size. Every simulated thread has a stack of the same size, which is as large as any
    /// thread asks for.
    pub fn stack_size(self, bytes: usize) -> Self {
        assert!(bytes <= STACK_BYTES, "a stack of at most {STACK_BYTES} bytes");
        self
    }

    /// Puts it on a CPU, where it stays.
    pub fn cpu(mut self, cpu: usize) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// Fails if the kernel has no memory for its stack.
    pub fn spawn<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let result = Arc::new(Mutex::new(None));
        let hand = Arc::clone(&result);
        let name = self.name.unwrap_or_else(|| "thread".into());
        let task = simulation::spawn(&name, self.cpu, move || {
            let done = catch_unwind(AssertUnwindSafe(work));
            if let Err(panic) = &done {
                simulation::note_panic(&**panic);
            }
            *hand.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        })?;
        Ok(JoinHandle { task, result })
    }
}

/// Starts a thread on the CPU with the fewest threads.
///
/// # Panics
/// If there is no memory for its stack.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(work).expect("memory for a stack")
}

/// A thread that can be waited for.
#[derive(Debug)]
pub struct JoinHandle<T> {
    task: TaskId,
    result: Arc<Mutex<Option<Result<T>>>>,
}

impl<T> JoinHandle<T> {
    /// The thread.
    pub fn thread(&self) -> Thread {
        Thread(Some(self.task))
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        simulation::has_ended(self.task)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The panic that ended it.
    pub fn join(self) -> Result<T> {
        simulation::join(self.task);
        let done = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        done.unwrap_or_else(|| Err(Box::new("the simulation ended before the thread")))
    }
}
