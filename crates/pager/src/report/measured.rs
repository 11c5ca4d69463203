//! Which figures of a [`Summary`] each rung measures.

use serde_json::Value;

use crate::report::summary::Summary;

/// The figures of a [`Summary`] that every rung measures.
const ALWAYS: [&str; 6] =
    ["budget_bytes", "own_cpu_seconds", "peak_bytes", "program_cpu_seconds", "seconds", "used_bytes"];
/// Those that only the file rung measures besides, and those that only the kernel rung does.
const BY_FILES: [&str; 10] = [
    "files",
    "largest_process_bytes",
    "managed_processes",
    "most_managed",
    "processes",
    "refused",
    "swapped_out_bytes",
    "unpaged_bytes",
    "waits",
    "written_bytes",
];
const BY_KERNEL: [&str; 2] = ["anonymous_peak_bytes", "kernel"];

impl Summary {
    /// Returns the figures that the run has measured, as JSON. The figures that its rung does not measure are
    /// left out, since a 0 would look like a measurement.
    #[must_use]
    pub fn measured(&self) -> Value {
        let mut all = serde_json::to_value(self).expect("names and numbers");
        let figures = all.as_object_mut().expect("a structure");
        let measured: &[&str] = match (&self.files, &self.kernel) {
            (None, None) => return all,
            (Some(_), _) => &BY_FILES,
            (_, Some(_)) => &BY_KERNEL,
        };
        figures.retain(|name, _| ALWAYS.contains(&name.as_str()) || measured.contains(&name.as_str()));
        if let Some(waits) = figures.get_mut("waits").and_then(Value::as_object_mut) {
            waits.retain(|name, _| name == "stood_seconds");
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::rungs::{Files, KernelPaging};

    #[test]
    fn json_has_what_a_rung_measures_and_no_more() {
        let names = |summary: &Summary| {
            let measured = summary.measured();
            measured.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        let pool = names(&Summary::default());
        assert!(pool.contains(&"swapped_in_bytes".into()) && !pool.contains(&"files".into()));
        let files = Summary { files: Some(Files::default()), ..Summary::default() };
        let mut expected = [&ALWAYS[..], &BY_FILES].concat();
        expected.sort_unstable();
        assert_eq!(names(&files), expected);
        assert_eq!(files.measured()["waits"].as_object().unwrap().len(), 1);
        let kernel = Summary { kernel: Some(KernelPaging::default()), ..Summary::default() };
        let mut expected = [&ALWAYS[..], &BY_KERNEL].concat();
        expected.sort_unstable();
        assert_eq!(names(&kernel), expected);
    }
}
