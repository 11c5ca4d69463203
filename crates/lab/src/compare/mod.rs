//! `octavo-lab compare`: results of workloads, in the layouts that kernel engineers read.
//!
//! | file | what |
//! |---|---|
//! | `args` | the options |
//! | `results` | the files that `--json` writes, as metrics by side |
//! | `plain` | medians, and by how much one side is better |
//! | `lkp` | the layout of lkp-tests, as today and as in 2016 |
//! | `mmtests` | the layout of mmtests |
//!
//! The first side is the one that the others are compared to.

pub mod args;
mod lkp;
mod mmtests;
mod plain;
mod results;

use octavo_command::failure::Failure;
use octavo_command::output::Text;

use self::args::{CompareArgs, TableLayout};
pub use self::plain::table;
pub use self::results::{ComparedResults, Metric, MetricKind};

/// Reads the files, and prints the table.
pub fn run(args: &CompareArgs) -> Result<(), Failure> {
    let mut comparison = ComparedResults::read(&args.files)?;
    comparison.keep(&args.metrics)?;
    let text = Text::beside(None);
    let lines = match args.layout {
        TableLayout::Plain => plain::lines(&comparison, args.all),
        TableLayout::Lkp => lkp::lines(&comparison, args.all, lkp::Edition::Today),
        TableLayout::Lkp2016 => lkp::lines(&comparison, args.all, lkp::Edition::Of2016),
        TableLayout::Mmtests => mmtests::lines(&comparison, args.all),
    };
    lines.iter().try_for_each(|line| text.line(line))
}
