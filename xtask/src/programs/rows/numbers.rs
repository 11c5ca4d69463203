//! Numbers and strings in Python.

use super::{ProgramRow, all, nothing, words};
use crate::machine::packages::Need;
use crate::programs::place::InputFolder;

/// The system's Python, since Debian's packages belong to it.
const PYTHON: &str = "/usr/bin/python3";

const NUMPY: Need = Need {
    test: "/usr/bin/python3 -c 'import numpy' && ls /usr/lib/*/openblas-pthread/libblas.so.3",
    packages: &["python3-numpy", "libopenblas0-pthread"],
};
const PANDAS: Need = Need { test: "/usr/bin/python3 -c 'import pandas'", packages: &["python3-pandas"] };
const PLAIN: Need = Need { test: "test -x /usr/bin/python3", packages: &["python3-minimal"] };

/// Returns the command line of a script of `inputs/`, with a size and a seed.
fn script(place: &InputFolder, text: &str, arguments: &[&str], size: u64) -> Vec<String> {
    let mut command = words([PYTHON, "-c", text]);
    command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    command.extend([place.scaled(size), place.seed.to_string()]);
    command
}

const ARRAYS: &str = include_str!("../inputs/arrays.py");

pub const SORT: ProgramRow = ProgramRow {
    name: "numpy-sort",
    what: "NumPy makes random numbers, sorts them and sums them up",
    needs: &[NUMPY],
    prepare: nothing,
    command: |place| script(place, ARRAYS, &["sort"], 25_000_000),
    compared: all,
};

pub const MATMUL: ProgramRow = ProgramRow {
    name: "numpy-matmul",
    what: "NumPy multiplies matrices by OpenBLAS, with two threads",
    needs: &[NUMPY],
    prepare: nothing,
    command: |place| script(place, ARRAYS, &["matmul"], 3_600),
    compared: all,
};

pub const FFT: ProgramRow = ProgramRow {
    name: "numpy-fft",
    what: "NumPy transforms a signal and back",
    needs: &[NUMPY],
    prepare: nothing,
    command: |place| script(place, ARRAYS, &["fft"], 6_000_000),
    compared: all,
};

pub const BOOLEAN: ProgramRow = ProgramRow {
    name: "numpy-boolean",
    what: "NumPy chooses from arrays by masks",
    needs: &[NUMPY],
    prepare: nothing,
    command: |place| script(place, ARRAYS, &["boolean"], 20_000_000),
    compared: all,
};

pub const DICT: ProgramRow = ProgramRow {
    name: "python-dict",
    what: "CPython fills a dict of strings and looks all of them up (3 million; --scale 3.4 makes it 10)",
    needs: &[PLAIN],
    prepare: nothing,
    command: |place| script(place, include_str!("../inputs/dict.py"), &[], 3_000_000),
    compared: all,
};

pub const GROUPBY: ProgramRow = ProgramRow {
    name: "pandas-groupby",
    what: "pandas groups, joins and sorts a frame",
    needs: &[NUMPY, PANDAS],
    prepare: nothing,
    command: |place| script(place, include_str!("../inputs/groupby.py"), &[], 4_000_000),
    compared: all,
};

pub const MULTIPROCESSING: ProgramRow = ProgramRow {
    name: "python-multiprocessing",
    what: "four forked Python processes change what they inherited",
    needs: &[NUMPY],
    prepare: nothing,
    command: |place| script(place, include_str!("../inputs/processes.py"), &[], 12_000_000),
    compared: all,
};
