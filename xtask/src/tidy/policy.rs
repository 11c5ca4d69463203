//! All data of the rules, and nothing else: to change a rule's data, change this file.
//!
//! Every exception carries its reason. An exception that is no longer needed is reported, too.

/// The modules of `crates/octavo/src`, from the bottom to the top.
///
/// A module may name modules of lower layers. Inside a layer it may name its neighbours as long as no circle
/// forms. `lib.rs` is the one file above all layers: it only declares and re-exports. A module without a
/// layer is reported.
pub const LAYERS: &[&[&str]] = &[
    &["sizes", "sync", "units", "error", "config", "counters", "latency", "budget", "policy", "backoff"],
    &["frame", "io"],
    &["table", "region", "lru", "rmap", "mapping", "store"],
    &["swap", "page_cache"],
    // The structures of one manager, and the steps in which a page loses its frame.
    &["engine"],
    &["reclaim", "writeback"],
    // `fault` decides to reclaim and retry; `reclaim` never faults.
    &["fault"],
    &["access"],
    &["space"],
    &["vec", "file"],
    &["manager"],
];

/// Single upward imports that are allowed. Each has the file, the module that the file may name, and the
/// reason.
pub const UPWARD_IMPORTS: &[Allowed] = &[];

/// Folders whose files must not name each other in a circle.
pub const NO_CIRCLES: &[&str] = &[
    "crates/cli/src/",
    "crates/lab/src/",
    "crates/pager/src/managed/",
    "crates/pager/src/monitor/",
    "crates/pager/src/report/",
    "crates/pager/src/system/",
    "crates/pager/src/tree/",
    "crates/private-files/src/cleaner/",
    "crates/stub/src/",
    "crates/sim/src/",
    "crates/window/src/allocator/",
    "crates/window/src/driver/",
    "crates/window/src/events/",
    "crates/window/src/placement/",
    "crates/window/src/target/",
    "crates/octavo/src/access/",
    "crates/octavo/src/file/",
    "crates/octavo/src/frame/",
    "crates/octavo/src/io/",
    "crates/octavo/src/reclaim/",
    "crates/octavo/src/swap/pool/",
];

/// The packages of the workspace by their folders, each with the folders of the packages that it may depend
/// on.
pub const PACKAGES: &[(&str, &[&str])] = &[
    ("crates/platform", &[]),
    ("crates/octavo", &["crates/platform"]),
    ("crates/stub", &["crates/platform"]),
    ("crates/private-files", &["crates/platform", "crates/stub"]),
    ("crates/window", &["crates/octavo", "crates/platform", "crates/stub"]),
    (
        "crates/pager",
        &["crates/octavo", "crates/platform", "crates/private-files", "crates/stub", "crates/window"],
    ),
    // The programs in the guide, which it checks, make windows.
    ("crates/command", &["crates/octavo", "crates/window"]),
    ("crates/cli", &["crates/command", "crates/octavo", "crates/pager", "crates/platform"]),
    ("crates/measure", &[]),
    ("crates/bench", &["crates/measure", "crates/octavo", "crates/trace"]),
    ("crates/sim", &[]),
    // The engine's own source, built on the simulated face.
    ("crates/simulated", &["crates/platform", "crates/sim"]),
    ("crates/experiments", &["crates/measure", "crates/octavo", "crates/sim", "crates/simulated"]),
    ("crates/mutants", &["crates/platform", "crates/sim"]),
    ("crates/check", &["crates/mutants", "crates/sim", "crates/simulated"]),
    ("crates/trace", &[]),
    (
        "crates/lab",
        &[
            "crates/check",
            "crates/command",
            "crates/experiments",
            "crates/measure",
            "crates/octavo",
            "crates/platform",
            "crates/sim",
            "crates/trace",
        ],
    ),
    // This package tests the programs, so it shares no code with them.
    ("crates/torture", &[]),
    ("xtask", &["crates/measure"]),
];

/// The package that everything in `LAYERS` belongs to.
pub const ENGINE_SOURCE: &str = "crates/octavo/src/";

/// The one folder that may hold unsafe code.
pub const UNSAFE_HOME: &str = "crates/platform/";

/// Files, or folders with a slash at the end, that may hold unsafe code outside its home. `docs/soundness.md`
/// must argue each by its path.
pub const UNSAFE_ELSEWHERE: &[Allowed] = &[
    Allowed {
        path: "crates/bench/src/jobs/file_array.rs",
        what: "",
        reason: "a mapped file is the rival, and others could change it",
    },
    Allowed {
        path: "crates/octavo/src/access/guard.rs",
        what: "",
        reason: "a guard makes a slice of pages that the engine's protocols keep from others",
    },
    Allowed {
        path: "crates/octavo/src/table/translation.rs",
        what: "",
        reason: "a trait whose implementations are handed memory of which most is not theirs",
    },
    Allowed {
        path: "crates/octavo/src/access/loom/away.rs",
        what: "",
        reason: "an implementation of that trait, for models",
    },
    Allowed {
        path: "crates/octavo/tests/common/target.rs",
        what: "",
        reason: "an implementation of that trait, for tests",
    },
    Allowed {
        path: "crates/check/src/workloads/other_side.rs",
        what: "",
        reason: "an implementation of that trait, for runs under chosen schedules",
    },
    Allowed {
        path: "crates/bench/src/peers/",
        what: "",
        reason: "the peers' own interfaces are C functions and raw pointers",
    },
    Allowed {
        path: "crates/sim/",
        what: "",
        reason: "a coroutine goes back to a place that is kept beside its stack, and an allocator hands out memory",
    },
    Allowed {
        path: "crates/private-files/fixtures/",
        what: "",
        reason: "a program for tests, which does with memory what programs do",
    },
    Allowed {
        path: "crates/stub/",
        what: "",
        reason: "ptrace, a page shared with another process, and code that runs there belong together",
    },
    Allowed {
        path: "crates/window/",
        what: "",
        reason: "addresses of a window, and of the process behind it, are what it is about",
    },
    Allowed {
        path: "crates/torture/",
        what: "",
        reason: "it does with memory what programs do, and shares no code with what it judges",
    },
];

/// The folder of the facade over atomics, locks, threads, clocks, CPUs and randomness.
pub const FACADE: &str = "crates/octavo/src/sync/";

/// The one file of the engine that asks what is compiled (`cfg!`): it makes sizes small in models.
pub const SIZES: &str = "crates/octavo/src/sizes.rs";

/// Paths that the engine reaches only through the facade, with everything below them.
pub const FACADE_ONLY: &[&str] = &[
    "std::sync",
    "core::sync",
    "alloc::sync",
    "std::thread",
    "parking_lot",
    "loom::sync",
    "loom::thread",
    "std::thread_local",
    // Clocks.
    "std::time",
    "core::time",
    "rustix::time",
    // The CPU's number, the CPU count and the machine's memory.
    "octavo_platform::rseq",
    "octavo_platform::usage",
    // Randomness.
    "getrandom",
    "rand",
    "rustix::rand",
];

/// Sources that need a `//!` documentation at their head.
pub const DOCUMENTED: &[&str] = &["crates/octavo/src/", "crates/platform/src/"];

/// The longest a source file may be.
pub const MAX_LINES: usize = 700;

/// The widest that a comment may be: `rustfmt`'s width for code.
pub const MOST_COLUMNS: usize = 110;

/// The widest that prose in markdown may be.
pub const MOST_PROSE_COLUMNS: usize = 120;

/// Macros that stand for code that was never written.
pub const UNFINISHED_MACROS: &[&str] = &["todo", "unimplemented"];

/// Words that mark a debt left in the text. They are put together from parts, so that this file does not
/// contain them.
pub const DEBT_MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("X", "XX")];

/// Names of places that exist only where the project is worked on.
pub const PRIVATE_PLACES: &[&str] =
    &[concat!("/wo", "rk/"), concat!("../sh", "ared"), concat!(".lib", "rary")];

/// The only file that may name these places.
pub const PRIVATE_PLACES_ALLOWED_IN: &str = ".gitignore";

/// An exception to a rule.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// The file, or folder with a slash at the end.
    pub path: &'static str,
    /// The thing that is allowed there, if the rule needs it: the module for an import, otherwise empty.
    pub what: &'static str,
    /// The reason.
    pub reason: &'static str,
}

impl Allowed {
    /// Returns whether the exception covers this file.
    pub fn covers(&self, path: &str) -> bool {
        path == self.path || (self.path.ends_with('/') && path.starts_with(self.path))
    }
}
