//! The experiments' own work, built once on each face.

#[allow(dead_code, reason = "only simulated: the bench `frames` measures")]
pub(crate) mod frames;
pub(crate) mod gate;
#[allow(dead_code, reason = "only simulated: messages that are really sent are another command's")]
pub(crate) mod percpu_lists;
pub(crate) mod pin;
#[allow(dead_code, reason = "only simulated: the bench `slots` measures")]
pub(crate) mod slots;
pub(crate) mod swap_cache;
pub(crate) mod zero_page;
