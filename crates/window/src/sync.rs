//! The locks and atomics of this crate: the standard library's, or the model checker's.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::{RwLock, RwLockReadGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::{RwLock, RwLockReadGuard};
