//! The jobs to measure. Each is a program, the sides that run it, and the figures that count.

use super::options::Options;

/// One program, run on several sides.
pub struct KernelJob {
    pub name: &'static str,
    /// A description for people.
    pub what: &'static str,
    pub kind: JobKind,
    pub rows: &'static [FigureRow],
}

/// How a job is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// The program needs more memory than it gets, under Octavo and under the kernel.
    Outgrown(JobProgram),
    /// The program needs a little more than it gets, and nothing goes to a device. Only Octavo runs this job.
    AtHand(JobProgram),
    /// The program needs half of what it gets. The number is the runs in each round.
    Fits(JobProgram, usize),
}

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobProgram {
    /// Writes and reads in order, with these contents.
    Order(&'static str),
    /// Reads at random, with this number of threads and these contents.
    Random(u64, &'static str),
    /// The row of the program table with this name.
    Numpy,
    True,
    Tree,
}

/// A figure of a run, and its target.
pub struct FigureRow {
    pub name: &'static str,
    /// A name that the program prints, or `seconds` for the whole run.
    pub figure: &'static str,
    pub unit: Unit,
    pub wanted: FigureTarget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
}

/// The target of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FigureTarget {
    /// Octavo is this many times as fast as the better of the kernel's forms.
    Times(f64),
    /// Octavo takes at most this percentage longer than no limit at all.
    PercentMore(f64),
    /// Octavo takes at most this many milliseconds longer than no limit at all.
    MillisecondsMore(f64),
    /// The figure is only shown.
    Nothing,
}

const fn row(name: &'static str, figure: &'static str, unit: Unit, wanted: FigureTarget) -> FigureRow {
    FigureRow { name, figure, unit, wanted }
}

/// All jobs, in the order of the table.
pub const ALL: &[KernelJob] = &[
    KernelJob {
        name: "order",
        what: "writes pages of random bytes in order, and reads them twice",
        kind: JobKind::Outgrown(JobProgram::Order("random")),
        rows: &[
            row("in order, random bytes: writing", "write_seconds", Unit::Seconds, FigureTarget::Times(2.5)),
            row(
                "in order, random bytes: reading twice",
                "read_seconds",
                Unit::Seconds,
                FigureTarget::Times(4.0),
            ),
            row("in order, random bytes: the whole job", "seconds", Unit::Seconds, FigureTarget::Nothing),
        ],
    },
    KernelJob {
        name: "order-half",
        what: "the same with pages whose second half is zeros",
        kind: JobKind::Outgrown(JobProgram::Order("half")),
        rows: &[
            row("in order, half zeros: writing", "write_seconds", Unit::Seconds, FigureTarget::Times(2.5)),
            row(
                "in order, half zeros: reading twice",
                "read_seconds",
                Unit::Seconds,
                FigureTarget::Times(4.0),
            ),
            row("in order, half zeros: the whole job", "seconds", Unit::Seconds, FigureTarget::Nothing),
        ],
    },
    KernelJob {
        name: "random-1",
        what: "reads pages at random, by one thread",
        kind: JobKind::Outgrown(JobProgram::Random(1, "random")),
        rows: &[
            row("random reads, 1 thread: all", "read_seconds", Unit::Seconds, FigureTarget::Times(1.0)),
            row(
                "random reads, 1 thread: time over reads",
                "read_us",
                Unit::Microseconds,
                FigureTarget::Nothing,
            ),
            row(
                "random reads, 1 thread: a missing page",
                "fault_us",
                Unit::Microseconds,
                FigureTarget::Nothing,
            ),
        ],
    },
    KernelJob {
        name: "random-32",
        what: "reads pages at random, by 32 threads",
        kind: JobKind::Outgrown(JobProgram::Random(32, "random")),
        rows: &[
            row("random reads, 32 threads: all", "read_seconds", Unit::Seconds, FigureTarget::Times(1.5)),
            row(
                "random reads, 32 threads: time over reads",
                "read_us",
                Unit::Microseconds,
                FigureTarget::Nothing,
            ),
        ],
    },
    KernelJob {
        name: "numpy",
        what: "NumPy makes random numbers, sorts them and sums them up",
        kind: JobKind::Outgrown(JobProgram::Numpy),
        rows: &[row("NumPy: make, sort, sum", "seconds", Unit::Seconds, FigureTarget::Times(2.0))],
    },
    KernelJob {
        name: "fits",
        what: "a program in twice the memory that it uses",
        kind: JobKind::Fits(JobProgram::Order("random"), 3),
        rows: &[row("a program that fits", "seconds", Unit::Seconds, FigureTarget::PercentMore(2.0))],
    },
    KernelJob {
        name: "start-up",
        what: "starts /bin/true",
        kind: JobKind::Fits(JobProgram::True, 40),
        rows: &[row(
            "start and end of /bin/true",
            "seconds",
            Unit::Milliseconds,
            FigureTarget::MillisecondsMore(2.0),
        )],
    },
    KernelJob {
        name: "tree",
        what: "a shell starts a thousand short processes, compilers among them",
        kind: JobKind::Fits(JobProgram::Tree, 1),
        rows: &[row("a thousand short processes", "seconds", Unit::Seconds, FigureTarget::PercentMore(3.0))],
    },
    KernelJob {
        name: "at-hand",
        what: "reads pages at random that are in Octavo's compressed pool",
        kind: JobKind::AtHand(JobProgram::Random(1, "light")),
        rows: &[row(
            "a missing page at hand, at random",
            "fault_us",
            Unit::Microseconds,
            FigureTarget::Nothing,
        )],
    },
    KernelJob {
        name: "at-hand-order",
        what: "writes such pages in order, and reads them twice",
        kind: JobKind::AtHand(JobProgram::Order("light")),
        rows: &[
            row(
                "pages at hand, written in order: a page",
                "write_page_us",
                Unit::Microseconds,
                FigureTarget::Nothing,
            ),
            row(
                "pages at hand, read in order: a page",
                "read_page_us",
                Unit::Microseconds,
                FigureTarget::Nothing,
            ),
        ],
    },
];

/// Returns the memory that the program uses, and the memory that it gets.
pub fn sizes(kind: JobKind, options: &Options) -> (u64, u64) {
    match kind {
        JobKind::Outgrown(_) => (options.total_bytes, options.budget_bytes),
        // If a page shrinks to an eighth, all pages that are out fit into a small pool.
        JobKind::AtHand(_) => (options.budget_bytes / 2 * 3, options.budget_bytes),
        JobKind::Fits(..) => (options.budget_bytes, 2 * options.budget_bytes),
    }
}

/// Returns a line for each job.
pub fn list() -> String {
    ALL.iter().map(|job| format!("  {:<16}{}\n", job.name, job.what)).collect()
}
