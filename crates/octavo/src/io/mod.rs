//! Where pages go when memory is short: files, disks, memory, and devices of your own.
//!
//! [`SwapArea`] describes a place to a builder, and most programs need nothing else of this module. Implement
//! [`Device`] to send pages to a place that Octavo does not know.
//!
//! A device is a parameter of the manager: a file, or a test device that fails, delays and tears transfers as
//! told. It gets [`Transfer`]s, and completes each once, inline or from a thread of its own. With other
//! devices, threads *pull* completions: through [`Device::poll`] in passing, or through [`Device::wait`] when
//! they have nothing else to do. [`Device::serve`] tells such a device that a sleeping thread cannot pull.
//!
//! No caller of a device holds a lock.
//!
//! # In the source
//!
//! | file | what | stands on |
//! |---|---|---|
//! | `transfer` | one transfer in flight, and the host to which it belongs | |
//! | `device` | the trait of a device | `transfer` |
//! | `ram` | memory as a device | `device` |
//! | `header` | tells Octavo's files and disks from those that hold something else | |
//! | `pending` | the parts that the engines share | `transfer` |
//! | `uring`, `threads` | the engines, for one file | `device`, `pending` |
//! | `engine` | chooses an engine | `uring`, `threads` |
//! | `file`, `block` | swap files and disks as devices | `engine`, `header` |
//! | `user_file` | files of the user's as devices | `engine`, `pending` |
//! | `area` | the user's description of a place | all devices |
//! | `exercise` | transfers without a manager | `area` |

mod area;
mod block;
mod device;
mod engine;
mod exercise;
mod file;
mod header;
mod pending;
mod ram;
mod threads;
mod transfer;
mod uring;
mod user_file;

pub(crate) use area::Opened;
pub use area::SwapArea;
pub use block::BlockDevice;
pub(crate) use device::{ANY_QUEUE, NO_QUEUE};
pub use device::{Device, Submitted, Waited};
pub use engine::IoEngine;
pub use exercise::Exercise;
pub(crate) use file::bypass_page_cache;
pub use file::{FileDevice, SwapFile};
pub(crate) use pending::is_passing;
pub use ram::RamDevice;
pub use transfer::{Direction, Transfer, TransferPage, Urgency};
pub(crate) use transfer::{Host, Job};
pub use user_file::FileBacking;
pub(crate) use user_file::UserFile;

#[cfg(all(test, not(loom)))]
#[path = "../../tests/common/device/mod.rs"]
#[allow(dead_code, reason = "each test uses some of it")]
pub(crate) mod test_device;
#[cfg(all(test, not(loom)))]
mod tests;
