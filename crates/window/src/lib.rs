//! Octavo's spaces at real addresses, in another process or in this one.
//!
//! A window is a space's [translation](octavo::translation::Translation) over userfaultfd. Pages come in
//! by a copy and go out by a move. The engine that serves handles also decides when they do.
//! `docs/pager.md` describes the protocol and its races.
//!
//! | module | what it holds |
//! |---|---|
//! | `window` | the translation |
//! | `gate` | keeps events unread while pages are on their way |
//! | `reach` | the seam: what a window needs to reach its target |
//! | `target` | a process, reached by userfaultfd and a mover inside |
//! | `robust` | the mutexes that the kernel marks when a thread ends: their pages stay |
//! | `own`, `windows` | this process as a target; arrays in its windows |
//! | `used` | which pages of a target were used |
//! | `changes` | the order in which changes of mappings are taken in |
//! | `allocator` | the windows of this process as an allocator |
//! | `global`, `blocks` | the same, below the global allocator; which window a block lies in |
//! | `driver` | the thread that serves a target's faults |
//! | `listener` | the events that the driver cannot deal with by itself |
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
