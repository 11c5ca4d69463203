//! The options of `octavo-lab oltp`.

use std::path::PathBuf;
use std::time::Duration;

use clap::value_parser;

use super::job::Job;
use super::log::BUFFER;
use crate::choices::{JsonTarget, ModeChoice, Size};

/// FigureOverRounds if modes are compared: enough for a median.
const COMPARISON_ROUNDS: u32 = 5;
/// The part of the log that a thread may fill before it lets a checkpoint go first, four times.
const LOG_OF_THREAD: u64 = 512 << 10;

/// Make transfers between the accounts of a bank, as TPC-B does: each changes an account, a teller and a
/// branch, and adds a row to the history.
///
/// The rows lie in B-trees on pages of a file, and a write-ahead log makes each transfer durable before it
/// counts. Threads that wait at the same time share one flush. At the end, all balances are added up; a bank
/// that does not add up ends in exit code 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
                        octavo-lab oltp --threads 8 --scale 10 --memory 32M\n  \
                        octavo-lab oltp --threads 8 --mode all --json oltp.json\n  \
                        octavo-lab oltp --dir bank --keep --commits bank/commits --seconds 600 (kill -9 it)\n  \
                        octavo-lab oltp --dir bank --keep --commits bank/commits --seconds 0")]
pub struct OltpArgs {
    /// Branches, each with 10 tellers and 100,000 accounts (about 11 MB)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..=10_000))]
    scale: u64,
    /// Octavo's memory budget, everything included
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    memory: Size,
    /// Seconds of a run; 0 opens the bank and adds up its balances
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    seconds: Duration,
    /// Threads that make transfers
    #[arg(short = 't', long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=128))]
    threads: u32,
    /// The form of each mechanism: before its patch, after it, or the best known; all compares the three
    #[arg(long, value_enum, default_value_t = ModeChoice::Best)]
    mode: ModeChoice,
    /// Runs of each mode, each with a bank of its own [default: 1; 5 where modes are compared]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// The folder of the bank
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Keep the bank in the folder; one that is there is recovered, and its scale holds
    #[arg(long)]
    keep: bool,
    /// Note the number of each transfer that was made durable in FILE; those that are noted there already
    /// must be in the bank's history
    #[arg(long, value_name = "FILE", requires = "keep")]
    commits: Option<PathBuf>,
    /// Length of the log; a checkpoint begins when half of it is full
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    log: Size,
    /// Sample the time that pins take, in further runs that are not timed (--mode all does so anyway)
    #[arg(long)]
    profile: bool,
    /// Write the results as one JSON object to FILE, or to standard output (-); text then goes to standard
    /// error
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<JsonTarget>,
}

impl OltpArgs {
    /// Returns the job of these options, or the reason why they make no sense together.
    pub fn into_job(self) -> Result<Job, String> {
        let modes = self.mode.modes();
        let is_compared = modes.len() > 1;
        let rounds = self.rounds.unwrap_or(if is_compared { COMPARISON_ROUNDS } else { 1 });
        if self.keep && (is_compared || rounds > 1 || self.profile) {
            return Err("--keep is for one run of one mode, which is not sampled".into());
        }
        let least = (u64::from(self.threads) * LOG_OF_THREAD).max(4 * BUFFER);
        if self.log.bytes < least {
            let least = least >> 20;
            return Err(format!("a log of {} is too short; give --log {least}M, or more", self.log));
        }
        let workload = format!(
            "oltp --scale {} --memory {} --threads {} --seconds {}",
            self.scale,
            self.memory,
            self.threads,
            self.seconds.as_secs_f64()
        );
        Ok(Job {
            workload,
            scale: self.scale,
            memory_bytes: self.memory.bytes,
            time: self.seconds,
            threads: self.threads,
            profile: self.profile || is_compared,
            modes,
            rounds,
            folder: self.dir,
            keep: self.keep,
            commits: self.commits,
            log_bytes: self.log.bytes.next_multiple_of(BUFFER),
            json: self.json,
        })
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let given: f64 = text.parse().map_err(|_| "seconds are a number, such as 0.5".to_string())?;
    if (0.0..=86_400.0).contains(&given) {
        return Ok(Duration::from_secs_f64(given));
    }
    Err("a run takes up to 86400 seconds".into())
}
