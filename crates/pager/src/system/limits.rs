//! The resource limits of this process, which a run raises.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors are for managed processes, large files for swap, and addresses for pages.
const RAISED: [Resource; 3] = [Resource::Nofile, Resource::Fsize, Resource::As];

/// The soft limits of this process, raised to the hard ones until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Raised(Vec<(Resource, Rlimit)>);

impl Raised {
    /// Raises the limits. A program that is started before the drop inherits them.
    pub fn now() -> Self {
        let raised = RAISED.into_iter().map(|resource| {
            let before = getrlimit(resource);
            // If the call fails, the limit does not change.
            let _ = setrlimit(resource, Rlimit { current: before.maximum, maximum: before.maximum });
            (resource, before)
        });
        Self(raised.collect())
    }

    /// Leaves the limits raised.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        for (resource, before) in self.0.drain(..) {
            let _ = setrlimit(resource, before);
        }
    }
}
