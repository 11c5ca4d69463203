//! The options of replays, and the checks of their combinations.

use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use octavo::MIN_BUDGET_BYTES;
use octavo_trace::Format;

use super::job::{Contender, EventCosts, ReplayJob};
use crate::choices::{JsonTarget, PolicyChoice, Size, name_of};
use crate::table;

/// Replay a trace under the engine's policies and Belady's optimum: hit ratios, misses, write-backs and
/// costs.
///
/// Each policy runs in the engine itself, under a manager of that memory: without readahead, compression and
/// background work. The optimum knows the future, and has as many frames as the policy that had most. Costs
/// are the counts of the events, multiplied by --hit-ns, --miss-ns and --write-back-ns.
#[derive(Debug, clap::Args)]
#[command(after_help = "Sizes are bytes, decimal or 0x hexadecimal, with a suffix k, m, g or t (powers of \
                        1024).\n\nExamples:\n  \
                        octavo-lab usemem -r 4 -j 4k 64M --memory 32M --record usemem.trace\n  \
                        octavo-lab replay usemem.trace --memory 32M,48M\n  \
                        octavo-lab replay keys.csv --policy reuse,s3-fifo,belady --memory 64M\n  \
                        octavo-lab replay cluster.oracleGeneral --memory 16M,64M,256M --json hits.json")]
pub struct ReplayArgs {
    /// The trace: a file of --record, lines of keys (the first column of a CSV file), or libCacheSim's
    /// oracleGeneral
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The policies [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "POLICY[,POLICY...]")]
    policy: Vec<Contender>,
    /// Octavo's memory budgets, everything included (each at least 16M)
    #[arg(long, value_delimiter = ',', value_name = "SIZE[,SIZE...]", required = true)]
    memory: Vec<Size>,
    /// The format of the trace [default: told by its first bytes]
    #[arg(long, value_enum)]
    format: Option<FormatChoice>,
    /// The cost of a hit, in nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 25)]
    hit_ns: u64,
    /// The cost of a miss, in nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 100_000)]
    miss_ns: u64,
    /// The cost of a page that is written back, in nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 10_000)]
    write_back_ns: u64,
    /// Write the results as one JSON object to FILE, or to standard output (-); text then goes to standard
    /// error
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<JsonTarget>,
}

/// `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatChoice {
    /// A trace of --record
    Octavo,
    /// Lines whose first column is a key
    Csv,
    /// libCacheSim's oracleGeneral
    Oracle,
}

impl FormatChoice {
    /// Returns the choice for this format.
    pub fn of(format: Format) -> Self {
        match format {
            Format::Octavo => Self::Octavo,
            Format::Csv => Self::Csv,
            Format::OracleGeneral => Self::Oracle,
        }
    }

    fn format(self) -> Format {
        match self {
            Self::Octavo => Format::Octavo,
            Self::Csv => Format::Csv,
            Self::Oracle => Format::OracleGeneral,
        }
    }
}

impl ValueEnum for Contender {
    fn value_variants<'a>() -> &'a [Self] {
        Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Policy(policy) => policy.to_possible_value(),
            Self::Belady => Some(PossibleValue::new("belady").help("The optimum, which knows the future")),
        }
    }
}

impl ReplayArgs {
    /// Returns the job of these options, or the reason why they make no sense.
    pub fn into_job(self) -> Result<ReplayJob, String> {
        let contenders = if self.policy.is_empty() { Contender::ALL.to_vec() } else { self.policy };
        for (at, contender) in contenders.iter().enumerate() {
            if contenders[..at].contains(contender) {
                return Err(format!("--policy names {} twice; drop one", name_of(*contender)));
            }
        }
        for (at, memory) in self.memory.iter().enumerate() {
            if self.memory[..at].iter().any(|other| other.bytes == memory.bytes) {
                return Err(format!("--memory names {memory} twice; drop one"));
            }
        }
        if let Some(small) = self.memory.iter().find(|size| size.bytes < MIN_BUDGET_BYTES) {
            return Err(format!(
                "--memory {small} is less than a manager works in; give {} or more",
                table::bytes(MIN_BUDGET_BYTES)
            ));
        }
        Ok(ReplayJob {
            file: self.file,
            contenders,
            memories: self.memory,
            format: self.format.map(FormatChoice::format),
            costs: EventCosts {
                hit_ns: self.hit_ns,
                miss_ns: self.miss_ns,
                write_back_ns: self.write_back_ns,
            },
            json: self.json,
        })
    }
}

impl Contender {
    /// All contenders, in the order of the table.
    const ALL: &[Self] = &[
        Self::Policy(PolicyChoice::Reuse),
        Self::Policy(PolicyChoice::Returns),
        Self::Policy(PolicyChoice::Generations),
        Self::Policy(PolicyChoice::S3Fifo),
        Self::Policy(PolicyChoice::Sieve),
        Self::Policy(PolicyChoice::Clock),
        Self::Policy(PolicyChoice::Fifo),
        Self::Belady,
    ];
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct CommandLine {
        #[command(flatten)]
        args: ReplayArgs,
    }

    fn job(line: &str) -> Result<ReplayJob, String> {
        let parsed = CommandLine::try_parse_from(format!("replay {line}").split_whitespace());
        parsed.map_err(|error| error.to_string())?.args.into_job()
    }

    #[test]
    fn every_policy_of_the_engine_takes_part_unless_told() {
        let contenders = job("trace --memory 16M").unwrap().contenders;
        let policies = PolicyChoice::value_variants().iter().map(|policy| Contender::Policy(*policy));
        assert_eq!(contenders, policies.chain([Contender::Belady]).collect::<Vec<_>>());
        let few = job("trace --memory 16M --policy belady,s3-fifo").unwrap().contenders;
        assert_eq!(few, [Contender::Belady, Contender::Policy(PolicyChoice::S3Fifo)]);
    }

    #[test]
    fn several_sizes_may_be_given() {
        let sizes = job("trace --memory 16M,0x2000000 --memory 1g").unwrap().memories;
        assert_eq!(sizes.iter().map(|size| size.bytes).collect::<Vec<_>>(), [16 << 20, 32 << 20, 1 << 30]);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "",
            "trace",
            "--memory 16M",
            "trace --memory 15M",
            "trace --memory 16M,",
            "trace --memory 32M,16M,0x1000000",
            "trace --memory 16M --policy lifo",
            "trace --memory 16M --policy fifo,belady,fifo",
            "trace --memory 16M --format tar",
            "trace --memory 16M --hit-ns -1",
        ] {
            assert!(job(line).is_err(), "{line}");
        }
    }
}
