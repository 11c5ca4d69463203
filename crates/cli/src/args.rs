//! The command line: its options, how sizes are written, and what is refused before anything runs.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum, value_parser};

use crate::swap::args::{LoadArgs, SwapArgs};
use crate::usemem::{Job, Mode, Plan};

/// Rounds where modes are compared: enough for a median.
const COMPARISON_ROUNDS: u32 = 5;
/// Bytes of one access.
const ACCESS_BYTES: u64 = 8;
/// The smallest piece that can be mapped.
const PAGE_BYTES: u64 = octavo::PAGE_BYTES as u64;

/// Workloads over Octavo's memory, side by side with the kernel's.
#[derive(Debug, Parser)]
#[command(name = "octavo", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const SWAP_EXAMPLES: &str = "Sizes are bytes, decimal or 0x hexadecimal, with a suffix k, m, g or t (powers of \
                             1024).\n\nExamples:\n  \
                             octavo swap-w-seq -n 8 --memory 1G --total 3G --mode all\n  \
                             octavo swap-w-seq --against kernel --against disk\n  \
                             octavo swapin --memory 1G --total 3G --data text --verify\n  \
                             octavo swap-r-rand --memory 1G --total 4G --threads 64 --against disk\n  \
                             octavo swap-r-rand --memory 512M --total 576M --data half --against zram";

#[derive(Debug, Subcommand)]
pub enum Command {
    Usemem(UsememArgs),
    /// Swap out: write more than fits in memory, page by page in order
    #[command(after_help = SWAP_EXAMPLES)]
    SwapWSeq(SwapArgs),
    /// Swap out: write more than fits in memory, pages in random order
    #[command(after_help = SWAP_EXAMPLES)]
    SwapWRand(SwapArgs),
    /// Swap in: write more than fits in memory, then time reading it back in order
    #[command(after_help = SWAP_EXAMPLES)]
    Swapin(SwapArgs),
    /// Swap in: write more than fits in memory, then time loads of words of random pages
    #[command(name = "swap-r-rand", after_help = SWAP_EXAMPLES)]
    SwapRRand(LoadArgs),
    /// A process of the kernel's side of the swap commands; started by `octavo` itself.
    #[command(hide = true)]
    SwapTask {
        order: String,
    },
    /// Sets up and puts back the machine for the kernel's side; started by `octavo` itself.
    #[command(hide = true)]
    SwapKeeper,
    /// One process of the kernel's side; started by `octavo` itself.
    #[command(hide = true)]
    KernelTask {
        plan: String,
    },
}

/// Touch memory as vm-scalability's usemem does: one access of 8 bytes each step, all tasks at once.
///
/// A task is a thread with a space of its own. Time runs from the moment all tasks stand ready until the last
/// has touched all its memory, mapping included; starting and ending tasks is left out. Each task prints
/// usemem's two lines, then a summary follows. Where modes are compared, the runs alternate, one line for each
/// run and a table take their place.
#[derive(Debug, clap::Args)]
#[command(after_help = "Sizes are bytes, decimal or 0x hexadecimal, with a suffix k, m, g or t \
                        (powers of 1024).\n\nExamples:\n  \
                        octavo usemem -n 72 --readonly -j 0x200000 100G\n  \
                        octavo usemem -n 4 -r 2 --verify 512M --memory 256M\n  \
                        octavo usemem -n 72 --readonly -j 0x200000 100G --mode all --against kernel")]
pub struct UsememArgs {
    /// Memory of each task; with -t, of each of its threads, as in usemem
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// Tasks, each with a space of its own
    #[arg(short = 'n', long = "nproc", value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    tasks: u32,
    /// Threads of each task, sharing its space
    #[arg(short = 't', long = "thread", value_name = "M", default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    threads: u32,
    /// Bytes from one access to the next (at least 8; rounded down to a multiple of 8)
    #[arg(short = 'j', long, value_name = "SIZE", default_value = "8", value_parser = parse_size)]
    step: u64,
    /// Times to go through the memory
    #[arg(short = 'r', long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    repeat: u32,
    /// Access random places instead of one after the other
    #[arg(short = 'R', long)]
    random: bool,
    /// Map the memory in pieces of this size (at least 4096) instead of at once
    #[arg(short = 'u', long, value_name = "SIZE", value_parser = parse_size)]
    unit: Option<u64>,
    /// Read only; without it, write
    #[arg(short = 'o', long)]
    readonly: bool,
    /// Map with MAP_ANONYMOUS. Accepted for usemem's sake: the memory is anonymous with and without it
    #[arg(short = 'O', long)]
    anonymous: bool,
    /// Check in each repeat what the last one wrote; wrong data ends in exit code 1
    #[arg(long)]
    verify: bool,
    /// Octavo's memory budget, everything included [default: 80 % of the machine's memory, or of
    /// the control group's limit]
    #[arg(long, value_name = "BUDGET", value_parser = parse_size)]
    memory: Option<u64>,
    /// The form of each mechanism: before its patch, after it, or the best known; all compares the three
    #[arg(long, value_enum, default_value_t = ModeChoice::Best)]
    mode: ModeChoice,
    /// Compare with the same touches of plain mmap memory, by forked processes. The kernel knows no budget:
    /// --memory binds Octavo's side only
    #[arg(long, value_enum)]
    against: Option<Rival>,
    /// Runs of each mode [default: 1; 5 where modes are compared]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Sample the time each function takes, in further runs that are not timed (--mode all does so anyway)
    #[arg(long)]
    profile: bool,
    /// Write the results as one JSON object to FILE, or to standard output (-); text then goes to standard error
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<JsonTarget>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeChoice {
    Base,
    Patched,
    Best,
    All,
}

impl ModeChoice {
    /// The modes that are chosen.
    pub fn modes(self) -> Vec<Mode> {
        match self {
            Self::Base => vec![Mode::Base],
            Self::Patched => vec![Mode::Patched],
            Self::Best => vec![Mode::Best],
            Self::All => vec![Mode::Base, Mode::Patched, Mode::Best],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rival {
    Kernel,
}

/// Where a report goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonTarget {
    Stdout,
    File(PathBuf),
}

impl FromStr for JsonTarget {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}

impl UsememArgs {
    /// What is to be done; or why these options make no sense together.
    pub fn into_job(self) -> Result<Job, String> {
        if self.size < ACCESS_BYTES {
            return Err(format!("SIZE is {} bytes, but one access takes 8; give a larger SIZE", self.size));
        }
        if self.step < ACCESS_BYTES {
            return Err(format!("a step of {} bytes is less than one access; give -j 8 or more", self.step));
        }
        if let Some(unit) = self.unit.filter(|&unit| unit < PAGE_BYTES) {
            return Err(format!("a unit of {unit} bytes is less than a page; give -u 4096 or more"));
        }
        if self.verify && self.readonly {
            return Err("--verify checks what was written, and --readonly writes nothing; drop one".into());
        }
        if self.verify && self.repeat < 2 {
            return Err("--verify checks in each repeat what the last one wrote; add -r 2 or more".into());
        }
        let participants = u64::from(self.tasks) * u64::from(self.threads);
        if self.size.checked_mul(participants).is_none() {
            return Err(format!("{participants} threads of SIZE exceed 2^64 bytes; give a smaller SIZE"));
        }
        let modes = self.mode.modes();
        let against_kernel = self.against == Some(Rival::Kernel);
        let compared = modes.len() > 1 || against_kernel;
        Ok(Job {
            workload: self.workload(),
            plan: Plan {
                bytes: self.size,
                unit_bytes: self.unit.unwrap_or(self.size),
                step_words: self.step / ACCESS_BYTES,
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
            budget_bytes: self.memory,
            rounds: self.rounds.unwrap_or(if compared { COMPARISON_ROUNDS } else { 1 }),
            json: self.json,
        })
    }

    /// The workload as a command line: what was touched and how, without what it was compared with.
    fn workload(&self) -> String {
        let mut line =
            format!("usemem -n {} -t {} -j {:#x} -r {}", self.tasks, self.threads, self.step, self.repeat);
        if let Some(unit) = self.unit {
            line.push_str(&format!(" -u {unit:#x}"));
        }
        for (given, flag) in
            [(self.random, " -R"), (self.readonly, " --readonly"), (self.verify, " --verify")]
        {
            if given {
                line.push_str(flag);
            }
        }
        line.push_str(&format!(" {:#x}", self.size));
        line
    }
}

/// Ends the program with exit code 2, as clap does, and says what is wrong.
pub fn refuse(subcommand: &str, complaint: &str) -> ! {
    let mut cli = Cli::command();
    cli.build();
    let command = match cli.find_subcommand_mut(subcommand) {
        Some(command) => command,
        None => &mut cli,
    };
    command.error(ErrorKind::ArgumentConflict, complaint).exit()
}

/// A size: decimal or 0x hexadecimal, with a suffix k, m, g or t in powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let malformed =
        || "a size is a whole number with a suffix k, m, g or t, such as 512M or 0x200000".to_string();
    let last = text.chars().last().ok_or_else(malformed)?.to_ascii_lowercase();
    let (digits, shift) = match ['k', 'm', 'g', 't'].iter().position(|&suffix| suffix == last) {
        Some(place) => (&text[..text.len() - 1], 10 * (place as u32 + 1)),
        None => (text, 0),
    };
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) => (hexadecimal, 16),
        None => (digits, 10),
    };
    // `from_str_radix` takes a sign.
    if !digits.starts_with(|first: char| first.is_digit(radix)) {
        return Err(malformed());
    }
    let number = u64::from_str_radix(digits, radix).map_err(|error| match error.kind() {
        std::num::IntErrorKind::PosOverflow => "a size is less than 2^64 bytes".to_string(),
        _ => malformed(),
    })?;
    number.checked_mul(1 << shift).ok_or_else(|| "a size is less than 2^64 bytes".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(line: &str) -> Result<Job, String> {
        let cli = Cli::try_parse_from(format!("octavo usemem {line}").split_whitespace());
        match cli.map_err(|error| error.to_string())?.command {
            Command::Usemem(args) => args.into_job(),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_take_binary_suffixes_and_hexadecimal() {
        let cases = [
            ("4096", 4096),
            ("1k", 1 << 10),
            ("512M", 512 << 20),
            ("100G", 100 << 30),
            ("2t", 2 << 40),
            ("0x200000", 2 << 20),
            ("0X10k", 16 << 10),
            ("0", 0),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "k", "-5", "+5", "0x", "0x+5", "1.5G", "12q", "5MB", "ü", "5ü", "16777216t"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size("18446744073709551616").unwrap_err().contains("2^64"));
        assert!(parse_size("17179869184g").unwrap_err().contains("2^64"));
    }

    #[test]
    fn the_seeds_command_is_understood() {
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
