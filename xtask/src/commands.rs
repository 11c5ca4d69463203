//! The commands: the steps that each runs, in order.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::root;
use crate::step::Steps;
use crate::suites::{self, Built, Suite, SuiteJob};
use crate::tidy;

/// Which tests run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TestExtent {
    /// The tests of the packages that users get, without [slow](SLOW) tests.
    Short,
    /// Every test of the project, and the loom models.
    All,
}

/// Runs tests, each counted once, and prints the summary line.
pub fn test(extent: TestExtent) -> ExitCode {
    let mut steps = Steps::default();
    test_steps(&mut steps, extent);
    steps.finish()
}

/// Checks only the house rules, and prints a list of findings.
pub fn tidy() -> ExitCode {
    let findings = tidy::check_all(&root());
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("The tree is tidy.");
            ExitCode::SUCCESS
        }
        n => {
            println!("{n} findings.");
            ExitCode::FAILURE
        }
    }
}

/// Runs only the loom models, or those whose names contain one of the filters.
pub fn models(filters: &[String]) -> ExitCode {
    let mut steps = Steps::default();
    let all = [ALL_MODELS.to_string()];
    for package in MODELLED {
        for mut suite in steps.build(&format!("build of the models of {package}"), models_build(package)) {
            suite.command.args(if filters.is_empty() { &all } else { filters });
            steps.tests(&format!("loom models of {package}"), suite.command);
        }
    }
    steps.finish()
}

/// Runs the soak program, which prints its seed and its time.
pub fn soak(arguments: &[String]) -> ExitCode {
    let mut command = cargo(&["run", "--release", "-p", "octavo-bench", "--bin", "soak", "--"]);
    command.args(arguments);
    match command.status() {
        Ok(status) => {
            status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code.clamp(0, 255) as u8))
        }
        Err(error) => {
            eprintln!("cargo could not be started: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the tests, then runs them side by side. The models are built meanwhile. The documentation tests
/// come last, because their build would wait for the build of the models.
fn test_steps(steps: &mut Steps, extent: TestExtent) {
    let mut build = cargo(&TESTS);
    let mut documentation = cargo(&TESTS);
    if extent == TestExtent::Short {
        for package in TOOLS {
            build.args(["--exclude", package]);
            documentation.args(["--exclude", package]);
        }
    }
    build.args(["--no-run", MESSAGES]);
    let mut suites = steps.build("build of the tests", build);
    let models = (extent == TestExtent::All)
        .then(|| SuiteJob::Build("build of the loom models", Box::new(build_models)));
    if extent == TestExtent::Short {
        suites.iter_mut().for_each(|suite| {
            suite.command.args(["--skip", SLOW]);
        });
    }
    documentation.arg("--doc");
    // The source of these packages is the engine's, and the engine's package tests the examples in it.
    // `--doc` ignores that their manifests disable documentation tests.
    for copy in ["octavo-simulated", "octavo-mutants"] {
        documentation.args(["--exclude", copy]);
    }
    let documentation = Suite { name: "documentation tests".into(), command: documentation };
    let jobs =
        models.into_iter().chain(suites.into_iter().map(SuiteJob::Run)).chain([SuiteJob::Run(documentation)]);
    steps.side_by_side(jobs.collect(), &target_dir().join("test-output"));
}

fn build_models() -> Built {
    let (mut suites, mut all_built) = (Vec::new(), Ok(()));
    for package in MODELLED {
        let (models, built) = suites::build(models_build(package), &root());
        for mut suite in models {
            suite.name = format!("loom models of {package}");
            suite.command.arg(ALL_MODELS);
            suites.push(suite);
        }
        all_built = all_built.and(built);
    }
    (suites, all_built)
}

/// The module of tests that take long and seldom find anything that no other test does.
const SLOW: &str = "slow::";

/// The packages that measure, simulate and compare. Users do not get them.
const TOOLS: [&str; 8] = [
    "octavo-bench",
    "octavo-check",
    "octavo-experiments",
    "octavo-lab",
    "octavo-mutants",
    "octavo-sim",
    "octavo-simulated",
    "octavo-trace",
];

/// The tests of all packages without the comparisons, whose dozen peers would take a third of the build time.
/// The tests of the comparisons are a step of `.ci/run`.
const TESTS: [&str; 3] = ["test", "--workspace", "--no-fail-fast"];

/// The prefix of the names of all models.
const ALL_MODELS: &str = "loom_";

/// Makes cargo name the built programs, and print compiler errors for people.
const MESSAGES: &str = "--message-format=json-render-diagnostics";

/// The packages that have models.
const MODELLED: [&str; 2] = ["octavo-vm", "octavo-window"];

/// Makes the command that builds the models of a package. The flag applies to this package only, so the
/// packages that it depends on are built as for the tests.
fn models_build(package: &str) -> Command {
    let mut command = cargo(&["rustc", "--package", package, "--lib", "--profile", "test", MESSAGES]);
    // A thread of a model has a small stack, and unoptimised code needs more of it.
    command.args(["--", "--cfg", "loom", "-C", "opt-level=3"]);
    command
}

fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}
