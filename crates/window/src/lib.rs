//! Octavo's spaces at real addresses: of another process, or of this one.
//!
//! A window is a space's [translation](octavo::translation::Translation) over userfaultfd. Pages come in by a
//! copy and go out by a move, and the same engine that serves handles decides when. `docs/pager.md` has the
//! protocol and its races.
//!
//! | module | what it holds |
//! |---|---|
//! | `window` | the translation |
//! | `gate` | no event is read while pages are on their way |
//! | `reach` | what a window needs of whoever reaches its target: the seam |
//! | `target` | a process, reached by userfaultfd and a mover inside |
//! | `robust` | the mutexes that the kernel marks when a thread ends: their pages stay |
//! | `own`, `windows` | this process as a target; arrays in its windows |
//! | `used` | which pages of a target were used |
//! | `changes` | the order in which changes of mappings are taken in |
//! | `allocator` | the windows of this process as an allocator |
//! | `global`, `blocks` | the same, below the global allocator; which block lies in whose window |
//! | `driver` | the thread that serves a target's faults |
//! | `listener` | what the driver cannot deal with by itself |
//! | `bell` | wakes the driver |
//! | `wakefulness` | whether the driver stays awake or sleeps |
//! | `ahead` | how many pages a fault brings along |
//! | `placement` | where the driver runs |

mod ahead;
mod allocator;
mod bell;
mod blocks;
mod changes;
mod driver;
mod dropped;
mod gate;
mod global;
mod listener;
mod own;
mod placement;
mod reach;
mod robust;
mod sync;
mod target;
mod used;
mod wakefulness;
mod window;
mod windows;

pub use allocator::LEAST_BYTES;
pub use bell::{Bell, Lateness};
pub use driver::Driver;
pub use global::WindowAlloc;
pub use listener::{Listener, Served, Work};
pub use placement::Watch;
pub use reach::{Reach, Taken, Taking};
pub use target::Target;
pub use window::Window;
pub use windows::{Boxed, WindowBox, WindowVec, Windows};
