//! The command line of `run`.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use octavo::io::SwapFile;
use octavo_command::choices::{AccessedBitsChoice, CompressionChoice, JsonTarget, Size};

use crate::run::messages;
use crate::rungs::RungChoice;

/// The smallest limit that a program can run in.
pub const LEAST_BYTES: u64 = 32 << 20;

/// Run a program, and all its children, in less memory than they need
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The program's output, terminal, signals and exit status pass through. Each option may also be \
                        given by the environment: OCTAVO_MEMORY, OCTAVO_SWAP and so on.\n\nExamples:\n  \
                        octavo run --memory 512M -- python3 job.py\n  \
                        octavo run --memory 2G --stats -- make -j8\n  \
                        octavo run --memory 1G --swap /fast/swap:20G -- ./server"
)]
pub struct RunArgs {
    /// The most memory that the program, its children and Octavo may use together: a size, or `auto` for the
    /// limit of the container or machine, minus a margin
    #[arg(long, env = "OCTAVO_MEMORY", default_value = "auto", value_name = "SIZE|auto")]
    pub memory: MemoryLimit,
    /// How the limit is kept. `octavo doctor` says what works here
    #[arg(long, env = "OCTAVO_RUNG", value_enum, default_value_t)]
    pub rung: RungChoice,
    /// A folder, swap file or block device, and how much of it may be used. May be given several times. By
    /// default, an unnamed file in $TMPDIR or /var/tmp. A file or device that holds something else is
    /// refused
    #[arg(long, env = "OCTAVO_SWAP", value_name = "PATH[:SIZE]", value_delimiter = ',')]
    pub swap: Vec<SwapPlace>,
    /// Overwrite the contents of the files and block devices of --swap
    #[arg(long, env = "OCTAVO_FORCE")]
    pub force: bool,
    /// How pages are compressed in memory before they go to a device
    #[arg(long, env = "OCTAVO_COMPRESSION", value_enum, default_value_t = CompressionChoice::Zstd)]
    pub compression: CompressionChoice,
    /// Encrypt all pages that are written to devices
    #[arg(long, env = "OCTAVO_ENCRYPT")]
    pub encrypt: bool,
    /// Whether to ask the kernel which pages a program uses
    #[arg(long, env = "OCTAVO_ACCESSED_BITS", value_enum, default_value_t)]
    pub accessed_bits: AccessedBitsChoice,
    /// End the run if a process that outgrows the limit cannot be taken over, or if memory that cannot be
    /// paged outgrows the limit. Without it, the program continues above its limit, and a message on
    /// standard error says so
    #[arg(long, env = "OCTAVO_STRICT")]
    pub strict: bool,
    /// Run nothing: check all that a run with these options needs, print what is there and what is
    /// missing, and exit with code 0 or 1
    #[arg(long, env = "OCTAVO_CHECK")]
    pub check: bool,
    /// Print a short summary to standard error at the end
    #[arg(long, env = "OCTAVO_STATS")]
    pub stats: bool,
    /// Explain at the end where the time went, what could not be managed and why, and what would help
    /// most. A run that mostly waited explains itself without this option, and a run that was stopped
    /// tells where its time went
    #[arg(long, env = "OCTAVO_EXPLAIN")]
    pub explain: bool,
    /// Print no messages while the program waits, and no explanation at the end unless --explain is given
    #[arg(long, env = "OCTAVO_QUIET")]
    pub quiet: bool,
    /// Write the summary as JSON to a file at the end
    #[arg(long, env = "OCTAVO_JSON", value_name = "FILE")]
    pub json: Option<JsonTarget>,
    /// A path for a socket: each connection gets the figures so far, as one line of JSON
    #[arg(long, env = "OCTAVO_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The program and its arguments. Without a program, a test program of Octavo's own that needs 768 MiB
    /// runs with --stats, in 256 MiB or the size given with --memory
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// The limit of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    Auto,
    Bytes(u64),
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let bytes = text.parse::<Size>()?.bytes;
        // If a plain number is below the smallest limit, the user has probably forgotten the unit.
        if (1..LEAST_BYTES).contains(&bytes) && text.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(messages::NO_UNIT.with(&[("bytes", &bytes)]));
        }
        Ok(Self::Bytes(bytes))
    }
}

/// A place for pages that are out, and the number of its bytes that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapPlace {
    pub path: PathBuf,
    pub limit_bytes: Option<u64>,
}

impl SwapPlace {
    /// Returns the folder for an unnamed file, which is the default: `$TMPDIR`, or /var/tmp.
    pub fn without_name() -> Option<Self> {
        match SwapFile::default() {
            SwapFile::Temporary(path) => Some(Self { path, limit_bytes: None }),
            SwapFile::Named(_) | SwapFile::None => None,
        }
    }
}

impl FromStr for SwapPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, size) = match text.rsplit_once(':') {
            Some((path, size)) => match size.parse::<Size>() {
                Ok(size) => (path, Some(size.bytes)),
                Err(_) if is_mistyped_size(size) && !Path::new(text).exists() => {
                    let words: [(&str, &dyn Display); 3] =
                        [("size", &size), ("path", &text), ("place", &path)];
                    return Err(messages::NO_SWAP_SIZE.with(&words));
                }
                // A colon without a size behind it is part of the path.
                Err(_) => (text, None),
            },
            None => (text, None),
        };
        if path.is_empty() {
            return Err("a swap place is a path, with a size behind a colon if it is to be limited".into());
        }
        Ok(Self { path: path.into(), limit_bytes: size })
    }
}

/// Returns whether a text that is not a size was probably meant as one.
fn is_mistyped_size(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit()) && !text.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_places_have_a_path_and_may_have_a_size() {
        let place = |text: &str| text.parse::<SwapPlace>().map(|place| (place.path, place.limit_bytes));
        assert_eq!(place("/a/b"), Ok(("/a/b".into(), None)));
        assert_eq!(place("/a/b:2G"), Ok(("/a/b".into(), Some(2 << 30))));
        assert_eq!(place("/dev/disk/by-path/pci-0:1:x"), Ok(("/dev/disk/by-path/pci-0:1:x".into(), None)));
        assert!(place(":1G").is_err() && place("").is_err());
        assert_eq!("auto".parse(), Ok(MemoryLimit::Auto));
        assert_eq!("512m".parse(), Ok(MemoryLimit::Bytes(512 << 20)));
        assert!("much".parse::<MemoryLimit>().is_err());
        assert_eq!("64".parse::<MemoryLimit>(), Err("that is 64 bytes; did you mean 64M?".into()));
        assert_eq!("268435456".parse(), Ok(MemoryLimit::Bytes(256 << 20)));
    }

    #[test]
    fn a_mistyped_size_of_a_swap_place_is_no_path() {
        let place = |text: &str| text.parse::<SwapPlace>().map(|place| (place.path, place.limit_bytes));
        let told = "12Q is not a size, and there is no file /var/tmp:12Q; give a size behind the last colon, as in \
                    --swap /var/tmp:20G";
        assert_eq!(place("/var/tmp:12Q"), Err(told.into()));
        for size in ["1,5G", "2 GiB", "10GG", "0xG", "99999999999999999999"] {
            assert!(place(&format!("/var/tmp:{size}")).is_err(), "{size}");
        }
        // A folder with a colon in its name, and a file that is there.
        assert_eq!(place("/a:1/b"), Ok(("/a:1/b".into(), None)));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("swap:1f.2");
        let text = path.to_str().unwrap();
        assert!(place(text).is_err());
        std::fs::write(&path, "").unwrap();
        assert_eq!(place(text), Ok((path.clone(), None)));
        assert_eq!(place(&format!("{text}:1G")), Ok((path.clone(), Some(1 << 30))));
    }
}
