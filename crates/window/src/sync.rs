//! The locks of this crate: the standard library's, or the model checker's.

#[cfg(loom)]
pub(crate) use loom::sync::{RwLock, RwLockReadGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{RwLock, RwLockReadGuard};
