//! The limits of this process on its resources: what a run may take of them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Each managed process takes descriptors. Files are for swap, and addresses for its pages.
const RAISED: [Resource; 3] = [Resource::Nofile, Resource::Fsize, Resource::As];

/// The soft limits of this process, raised to the hard ones until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Raised(Vec<(Resource, Rlimit)>);

impl Raised {
    /// Raises them. A program that is started meanwhile has them too.
    pub fn now() -> Self {
        let raised = RAISED.into_iter().map(|resource| {
            let before = getrlimit(resource);
            // Whoever may not have more keeps what it has.
            let _ = setrlimit(resource, Rlimit { current: before.maximum, maximum: before.maximum });
            (resource, before)
        });
        Self(raised.collect())
    }

    /// Leaves them raised.
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
