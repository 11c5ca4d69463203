//! Tools of the system.

use super::{ProgramRow, all, nothing, words};
use crate::machine::packages::Need;

const COREUTILS: Need = Need { test: "command -v sort && command -v awk", packages: &["coreutils", "mawk"] };

pub const SORT: ProgramRow = ProgramRow {
    name: "gnu-sort",
    what: "GNU sort with a buffer for all of its lines",
    needs: &[COREUTILS],
    prepare: |place| {
        let lines = place.scaled(6_000_000);
        let program = "BEGIN { srand(seed); for (i = 0; i < lines; i++) print int(rand() * 1e9) \" line \" i \" of the input\" }";
        let make = format!(
            "awk -v seed={} -v lines={lines} '{program}' > lines.part && mv lines.part lines",
            place.seed
        );
        place.make("lines", &make)
    },
    command: |place| {
        let sort = "LC_ALL=C sort -S 4G --parallel=2 \"$1\" > sorted && sha256sum sorted && wc -l sorted";
        [words(["sh", "-c", sort, "sh"]), vec![place.path("lines")]].concat()
    },
    compared: all,
};

pub const STRESS: ProgramRow = ProgramRow {
    name: "stress-ng",
    what: "stress-ng goes through its methods of writing and verifying memory",
    needs: &[Need { test: "command -v stress-ng", packages: &["stress-ng"] }],
    prepare: nothing,
    command: |place| {
        let bytes = format!("{}K", place.scaled(320 << 10));
        let options = ["--vm", "2", "--vm-method", "all", "--verify", "--vm-ops", "400000", "--oom-avoid"];
        let bytes = words(["--vm-bytes", &bytes, "--seed", &place.seed.to_string()]);
        [words(["stress-ng"]), words(options), bytes].concat()
    },
    // The exit status says whether everything was verified. Other lines contain times.
    compared: |output| output.lines().filter(|line| line.contains("fail:")).collect(),
};
