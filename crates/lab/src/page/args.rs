//! The options of `octavo-lab report`.

use std::path::PathBuf;

/// Make one HTML page of all results in a folder: tables and plots, with nothing that is loaded from
/// elsewhere.
///
/// Results are the .json files of DIR, which workloads, the lab and replays have written with --json.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
                        mkdir results\n  \
                        octavo-lab zero-page --json results/zero-page.json\n  \
                        octavo-lab usemem -n 2 1g --mode all --json results/usemem.json\n  \
                        octavo-lab report results")]
pub struct PageArgs {
    /// The folder of the results
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The page [default: report.html in DIR]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The page's title
    #[arg(long, default_value = "Octavo: results")]
    pub title: String,
}
