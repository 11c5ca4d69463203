//! Atomic words with the interface of the standard library's. Inside a simulation, each operation is an
//! access to the word's cache line, charged to the place in the source that makes it. Outside of a
//! simulation, these types behave like the standard library's.

use std::fmt;
use std::panic::Location;

pub use std::sync::atomic::Ordering;

use zerocopy::FromZeros;

use crate::line::LineOperation;
use crate::simulation::access;

/// A fence has no effect, since all operations are ordered already. It costs about as much as an operation on
/// a word whose line this core has.
pub fn fence(order: Ordering) {
    std::sync::atomic::fence(order);
}

macro_rules! word {
    ($name:ident, $std:ty, $value:ty $(, $method:ident)*) => {
        #[doc = concat!("The standard library's `", stringify!($name), "`, simulated.")]
        #[derive(Default, FromZeros)]
        #[repr(transparent)]
        pub struct $name($std);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$value> for $name {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }

        #[allow(missing_docs, reason = "the standard library's")]
        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(<$std>::new(value))
            }

            fn access(&self, kind: LineOperation, from: &'static Location<'static>) {
                access(std::ptr::from_ref(self).addr(), kind, from);
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                self.access(LineOperation::Load, Location::caller());
                self.0.load(order)
            }

            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                self.access(LineOperation::Store, Location::caller());
                self.0.store(value, order);
            }

            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.access(LineOperation::Update, Location::caller());
                self.0.swap(value, order)
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.access(LineOperation::Update, Location::caller());
                self.0.compare_exchange(current, new, success, failure)
            }

            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            /// Works like the standard library's: by a load, and compare-and-swaps until one succeeds.
            #[track_caller]
            pub fn fetch_update(
                &self,
                set_order: Ordering,
                fetch_order: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut before = self.load(fetch_order);
                while let Some(next) = change(before) {
                    match self.compare_exchange(before, next, set_order, fetch_order) {
                        Ok(before) => return Ok(before),
                        Err(now) => before = now,
                    }
                }
                Err(before)
            }

            $(
                #[track_caller]
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    self.access(LineOperation::Update, Location::caller());
                    self.0.$method(value, order)
                }
            )*

            /// Returns the value without an access. The simulated kernel reads a futex's word in this way.
            #[allow(dead_code, reason = "only one of the words is a futex")]
            pub(crate) fn peek(&self) -> $value {
                self.0.load(Ordering::Relaxed)
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }
    };
}

word!(AtomicBool, std::sync::atomic::AtomicBool, bool, fetch_and, fetch_or, fetch_xor);
word!(
    AtomicU32,
    std::sync::atomic::AtomicU32,
    u32,
    fetch_add,
    fetch_sub,
    fetch_and,
    fetch_or,
    fetch_xor,
    fetch_max,
    fetch_min
);
word!(
    AtomicU64,
    std::sync::atomic::AtomicU64,
    u64,
    fetch_add,
    fetch_sub,
    fetch_and,
    fetch_or,
    fetch_xor,
    fetch_max,
    fetch_min
);
word!(
    AtomicUsize,
    std::sync::atomic::AtomicUsize,
    usize,
    fetch_add,
    fetch_sub,
    fetch_and,
    fetch_or,
    fetch_xor,
    fetch_max,
    fetch_min
);
