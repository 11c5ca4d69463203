//! Octavo's spaces at real addresses, in another process or in this one.
//!
//! A window is a space's [translation](octavo::translation::Translation) over userfaultfd. Pages come in by a
//! copy and go out by a move. The same engine that serves handles decides when. `docs/pager.md` describes the
//! protocol and its races.
//!
//! | module | what it holds |
//! |---|---|
//! | `window` | the translation |
//! | `reach` | the seam: what a window needs to reach its target |
//! | `target` | a process, reached by userfaultfd and a mover inside |
//! | `own`, `windows` | this process as a target; arrays in its windows |
//! | `allocator` | the windows of this process as an allocator, and below the global one |
//! | `driver` | the thread that serves a target's faults |
//! | `placement` | where the driver runs |
//! | `events` | changes of mappings: when they are read, and the order in which they are applied |
//! | `bell` | wakes the driver |
//! | `used` | which pages of a target were used |

mod allocator;
mod bell;
mod driver;
mod events;
mod own;
mod placement;
mod reach;
mod sync;
mod target;
mod used;
mod window;
mod windows;

pub use allocator::LEAST_BYTES;
pub use allocator::global::WindowAlloc;
pub use bell::{Bell, Lateness};
pub use driver::Driver;
pub use driver::listener::{Listener, RemainingWork, Served};
pub use placement::Watch;
pub use reach::{Reach, TakeOutcome, Taking};
pub use target::Target;
pub use window::Window;
pub use windows::{Boxed, WindowBox, WindowVec, Windows};
