//! The options of `octavo-lab compare`.

use clap::ValueEnum;

/// Compare results of workloads.
///
/// FILE is a file that a workload has written with --json. FILE#MODE takes one mode of a file with several
/// modes. A single FILE compares its modes with each other. The others are compared to the first side. With
/// several runs of a side (--rounds), the table shows how much its figures vary.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
                        octavo-lab usemem -n 4 512M --mode all --json modes.json && octavo-lab compare modes.json\n  \
                        octavo-lab compare before.json after.json --layout lkp\n  \
                        octavo-lab compare modes.json#base modes.json#best --layout mmtests")]
pub struct CompareArgs {
    /// Results; the others are compared to the first
    #[arg(value_name = "FILE[#MODE]", required = true)]
    pub files: Vec<String>,
    /// How the table looks
    #[arg(long, value_enum, default_value_t = TableLayout::Plain)]
    pub layout: TableLayout,
    /// List every metric. Without this option, lkp lists only metrics that have changed, and the other
    /// layouts leave out counters and shares of time
    #[arg(long)]
    pub all: bool,
    /// Only metrics whose names contain this text
    #[arg(long = "metric", value_name = "NAME")]
    pub metrics: Vec<String>,
}

/// How a table looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableLayout {
    /// Medians, and by how much they are better
    Plain,
    /// As lkp-tests: %stddev and %change, and only metrics that have changed
    Lkp,
    /// As lkp-tests in 2016, which also gave changes of shares in percent
    #[value(name = "lkp-2016")]
    Lkp2016,
    /// As mmtests: means, and asterisks where intervals do not overlap
    Mmtests,
}
