//! The options of usemem, and the checks of their combinations.

use std::path::PathBuf;

use clap::{ValueEnum, value_parser};

use super::job::UsememJob;
use super::touch::TouchPlan;
use crate::choices::{JsonTarget, ModeChoice, Size};

/// Rounds if modes are compared: enough for a median.
const COMPARISON_ROUNDS: u32 = 5;
/// Bytes of one access.
const ACCESS_BYTES: u64 = 8;
/// Bytes of the smallest piece that can be mapped.
const PAGE_BYTES: u64 = octavo::PAGE_BYTES as u64;

/// Touch memory as vm-scalability's usemem does: one access of 8 bytes each step, all tasks at once.
///
/// A task is a thread with a space of its own. Time runs from the moment when all tasks stand ready until the
/// last one has touched all its memory. It includes mapping, and leaves out the start and the end of tasks.
/// Each task prints usemem's two lines. A summary follows, in seconds and in MB/s of bytes touched. Where
/// modes are compared, the runs alternate, and a line for each run and tables are printed instead.
#[derive(Debug, clap::Args)]
#[command(after_help = "Sizes are bytes, decimal or 0x hexadecimal, with a suffix k, m, g or t \
                        (powers of 1024).\n\nExamples:\n  \
                        octavo-lab usemem -n 72 --readonly -j 0x200000 100G\n  \
                        octavo-lab usemem -n 4 -r 2 --verify 512M --memory 256M\n  \
                        octavo-lab usemem -n 72 --readonly -j 0x200000 100G --mode all --against kernel")]
pub struct UsememArgs {
    /// Memory of each task or, with -t, of each of its threads, as in usemem
    #[arg(value_name = "SIZE")]
    size: Size,
    /// Tasks, each with a space of its own
    #[arg(short = 'n', long = "nproc", value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    tasks: u32,
    /// Threads of each task, sharing its space
    #[arg(short = 't', long = "thread", value_name = "M", default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    threads: u32,
    /// Bytes from one access to the next (at least 8; rounded down to a multiple of 8)
    #[arg(short = 'j', long, value_name = "SIZE", default_value = "8")]
    step: Size,
    /// Times to go through the memory
    #[arg(short = 'r', long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    repeat: u32,
    /// Access places in random order, instead of one after the other
    #[arg(short = 'R', long)]
    random: bool,
    /// Map the memory in pieces of this size (at least 4096) instead of at once
    #[arg(short = 'u', long, value_name = "SIZE")]
    unit: Option<Size>,
    /// Only read. Without this option, write
    #[arg(short = 'o', long)]
    readonly: bool,
    /// Map with MAP_ANONYMOUS. Accepted because usemem has this option: the memory is anonymous with and
    /// without it
    #[arg(short = 'O', long)]
    anonymous: bool,
    /// Check in each repeat the words that the last one wrote. Wrong data gives exit code 1
    #[arg(long)]
    verify: bool,
    /// Octavo's memory budget, everything included [default: 80 % of the machine's memory, or of
    /// the control group's limit]
    #[arg(long, value_name = "BUDGET")]
    memory: Option<Size>,
    /// The form of each mechanism: before its patch, after it, or the best known; all compares the three
    #[arg(long, value_enum, default_value_t = ModeChoice::Best)]
    mode: ModeChoice,
    /// Compare with the same accesses to plain mmap memory, by forked processes, with and without transparent
    /// huge pages. The better of the two counts. The kernel knows no budget: --memory limits only Octavo's
    /// side
    #[arg(long, value_enum)]
    against: Option<Rival>,
    /// Runs of each mode [default: 1; 5 where modes are compared]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Sample the time each function takes, in further runs that are not timed (--mode all does so anyway)
    #[arg(long)]
    profile: bool,
    /// Record each access of Octavo's side in FILE, in one further run that is not timed; `octavo-lab replay`
    /// reads it
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write the results as one JSON object to FILE, or to standard output (-); text then goes to standard
    /// error
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<JsonTarget>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rival {
    Kernel,
}

impl UsememArgs {
    /// Returns the job of these options, or the reason why they make no sense together.
    pub fn into_job(self) -> Result<UsememJob, String> {
        let (size, step) = (self.size.bytes, self.step.bytes);
        if size < ACCESS_BYTES {
            return Err(format!("SIZE is {}, but one access takes 8 bytes; give a larger SIZE", self.size));
        }
        if step < ACCESS_BYTES {
            return Err(format!("a step of {} is less than one access; give -j 8 or more", self.step));
        }
        if let Some(unit) = self.unit.as_ref().filter(|unit| unit.bytes < PAGE_BYTES) {
            return Err(format!("a unit of {unit} is less than a page; give -u 4096 or more"));
        }
        if self.verify && self.readonly {
            return Err("--verify checks what was written, and --readonly writes nothing; drop one".into());
        }
        if self.verify && self.repeat < 2 {
            return Err("--verify checks in each repeat what the last one wrote; add -r 2 or more".into());
        }
        let participants = u64::from(self.tasks) * u64::from(self.threads);
        if size.checked_mul(participants).is_none() {
            return Err(format!(
                "{participants} threads of {} exceed 2^64 bytes; give a smaller SIZE",
                self.size
            ));
        }
        let modes = self.mode.modes();
        let against_kernel = self.against == Some(Rival::Kernel);
        let compared = modes.len() > 1 || against_kernel;
        Ok(UsememJob {
            workload: self.workload(),
            plan: TouchPlan {
                bytes: size,
                unit_bytes: self.unit.map_or(size, |unit| unit.bytes),
                step_words: step / ACCESS_BYTES,
                repeats: self.repeat,
                threads: self.threads,
                random: self.random,
                readonly: self.readonly,
                verify: self.verify,
            },
            tasks: self.tasks,
            profile: self.profile || modes.len() > 1,
            modes,
            against_kernel,
            size: self.size,
            budget: self.memory,
            rounds: self.rounds.unwrap_or(if compared { COMPARISON_ROUNDS } else { 1 }),
            record: self.record,
            json: self.json,
        })
    }

    /// Returns the workload as a command line, without the rivals in the comparison.
    fn workload(&self) -> String {
        let mut line =
            format!("usemem -n {} -t {} -j {} -r {}", self.tasks, self.threads, self.step, self.repeat);
        if let Some(unit) = &self.unit {
            line.push_str(&format!(" -u {unit}"));
        }
        for (given, flag) in
            [(self.random, " -R"), (self.readonly, " --readonly"), (self.verify, " --verify")]
        {
            if given {
                line.push_str(flag);
            }
        }
        line.push_str(&format!(" {}", self.size));
        line
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::choices::Mode;

    #[derive(Debug, Parser)]
    struct CommandLine {
        #[command(flatten)]
        args: UsememArgs,
    }

    fn job(line: &str) -> Result<UsememJob, String> {
        let parsed = CommandLine::try_parse_from(format!("usemem {line}").split_whitespace());
        parsed.map_err(|error| error.to_string())?.args.into_job()
    }

    #[test]
    fn the_workload_names_sizes_as_they_were_given() {
        let workload = |line| job(line).unwrap().workload;
        assert_eq!(workload("-u 64k 0x200000"), "usemem -n 1 -t 1 -j 8 -r 1 -u 64k 0x200000");
        assert_eq!(workload("-n 72 --readonly -j 2M 100G"), "usemem -n 72 -t 1 -j 2M -r 1 --readonly 100G");
    }

    #[test]
    fn the_command_of_the_patch_to_the_huge_zero_page_is_understood() {
        // *thp: reduce usage of huge zero page's atomic counter* (Linux 4.9, commit 6fcb52a56ff6).
        let job = job("-n 72 --readonly -j 0x200000 100G").unwrap();
        assert_eq!((job.tasks, job.rounds, job.modes.as_slice()), (72, 1, [Mode::Best].as_slice()));
        assert_eq!(
            (job.plan.bytes, job.plan.unit_bytes, job.plan.step_words),
            (100 << 30, 100 << 30, 1 << 18)
        );
        assert!(job.plan.readonly && !job.profile);
    }

    #[test]
    fn comparisons_take_five_rounds_unless_told() {
        assert_eq!(job("--mode all 1G").unwrap().rounds, 5);
        assert_eq!(job("--against kernel 1G").unwrap().rounds, 5);
        assert_eq!(job("--against kernel --rounds 2 1G").unwrap().rounds, 2);
        assert!(job("--mode all 1G").unwrap().profile);
    }

    #[test]
    fn the_json_target_may_be_left_out() {
        assert_eq!(job("1G --json").unwrap().json, Some(JsonTarget::Stdout));
        assert_eq!(job("1G --json -").unwrap().json, Some(JsonTarget::Stdout));
        assert_eq!(job("--json out 1G").unwrap().json, Some(JsonTarget::File("out".into())));
        assert_eq!(job("1G").unwrap().json, None);
    }

    #[test]
    fn contradictions_are_refused() {
        let lines = [
            "--verify --readonly -r 2 1G",
            "--verify 1G",
            "-j 7 1G",
            "-u 100 1G",
            "7",
            "-n 0 1G",
            "-t 0 1G",
            "-r 0 1G",
            "--rounds 0 1G",
            "--mode worst 1G",
            "--against windows 1G",
            "--sideways 1G",
            "-n 4294967295 -t 4294967295 1G",
            "",
        ];
        for line in lines {
            assert!(job(line).is_err(), "{line}");
        }
    }
}
