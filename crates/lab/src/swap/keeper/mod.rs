//! The keeper: a process of its own that sets up the machine for the kernel's side, and always restores it.
//!
//! ```text
//!   octavo-lab ── orders ──► keeper    limit and area, on, off; the end of the pipe: undo
//!      ▲                       │
//!      └────── replies ────────┘
//! ```
//!
//! Only the keeper changes the machine: control group, swap file or zram, swap switched on, vm.page-cluster,
//! a mount. The keeper notes each step before it takes it ([`note`]). When `octavo-lab` ends, normally, by a
//! panic or by a signal (also SIGKILL), the pipe closes. The keeper then undoes all steps, the last one
//! first. It has a session of its own, so the terminal's signals do not reach it. If the keeper itself is
//! killed, `octavo-lab` or the next keeper undoes the noted steps.

mod area;
mod cgroup;
mod note;
mod undo;

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use octavo_command::failure::Failure;
use serde::{Deserialize, Serialize};

pub use self::area::{AreaChoice, ZramMemory};
use self::note::{KeeperNote, Step, failed};
use self::undo::{clean_up_after_the_dead, undo, undo_page_cluster};
use crate::table;

/// The subcommand by which `octavo-lab` starts a keeper.
pub const SUBCOMMAND: &str = "swap-keeper";

/// The requested setup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub limit_bytes: u64,
    pub area: AreaChoice,
    pub area_bytes: u64,
    /// Whether to turn off the kernel's readahead (vm.page-cluster 0) while swap is on.
    pub no_neighbours: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum KeeperOrder {
    SetUp(Setup),
    On,
    Off,
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    /// At the start: the leftovers of killed keepers.
    Hello(Vec<String>),
    SetUp(Ready),
    Done,
    Failed(String),
    /// At the end: the steps that could not be undone.
    Undone(Vec<String>),
}

/// The finished setup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The file that a process writes to enter the control group.
    pub procs: PathBuf,
    /// The file of the group's limit.
    pub limit: PathBuf,
    /// The file of the most bytes charged to the group.
    pub peak: PathBuf,
    /// The file of the group's figures, which the kernel sums at each reading.
    pub figures: PathBuf,
    /// The area that the kernel swaps to, for people.
    pub area: String,
    /// The files in which zram counts its memory.
    pub zram: Option<ZramMemory>,
}

/// Our end of the pipes. It asks the keeper for steps. Dropping it makes the keeper undo all of them.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
    orders: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Keeper {
    /// Starts a keeper. Also returns what it had to repair first.
    ///
    /// # Errors
    /// Fails, with a sentence, if `octavo-lab` does not run as root.
    pub fn start() -> Result<(Self, Vec<String>), Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::Said(
                "a comparison with the kernel makes a memory control group and switches kernel swap on, which takes \
                 root; run it as root, or leave it out"
                    .into(),
            ));
        }
        let cannot =
            |error| Failure::system("cannot start the process that keeps the machine as it was", error);
        let mut child = Command::new("/proc/self/exe")
            .arg(SUBCOMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let (orders, Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(cannot(io::ErrorKind::BrokenPipe.into()));
        };
        let mut keeper = Self { child, orders, replies: BufReader::new(replies) };
        match keeper.reply()? {
            Reply::Hello(found) => Ok((keeper, found)),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes the area and the group, but does not switch swap on.
    pub fn set_up(&mut self, setup: &Setup) -> Result<Ready, Failure> {
        match self.ask(&KeeperOrder::SetUp(setup.clone()))? {
            Reply::SetUp(ready) => Ok(ready),
            other => Err(unexpected(&other)),
        }
    }

    /// Switches kernel swap on.
    pub fn on(&mut self) -> Result<(), Failure> {
        self.ask(&KeeperOrder::On).map(|_| ())
    }

    /// Switches kernel swap off.
    pub fn off(&mut self) -> Result<(), Failure> {
        self.ask(&KeeperOrder::Off).map(|_| ())
    }

    /// Makes the keeper undo all steps, and reports those that could not be undone.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Failure> {
        if self.orders.take().is_none() {
            return Ok(());
        }
        let reply = self.reply();
        let _ = self.child.wait();
        match reply {
            Ok(Reply::Undone(complaints)) if complaints.is_empty() => Ok(()),
            Ok(Reply::Undone(complaints)) => Err(Failure::Said(complaints.join("; "))),
            // The keeper was killed: undo its noted steps from here.
            _ => {
                clean_up_after_the_dead();
                Err(Failure::Said("the process that keeps the machine as it was has been killed".into()))
            }
        }
    }

    fn ask(&mut self, order: &KeeperOrder) -> Result<Reply, Failure> {
        let mut line = serde_json::to_vec(order).map_err(|error| Failure::Said(error.to_string()))?;
        line.push(b'\n');
        // If this fails, there is no reply either.
        let _ = self.orders.as_mut().map(|orders| orders.write_all(&line));
        match self.reply()? {
            Reply::Failed(sentence) => Err(Failure::Said(sentence)),
            reply => Ok(reply),
        }
    }

    fn reply(&mut self) -> Result<Reply, Failure> {
        let mut line = String::new();
        let read = self.replies.read_line(&mut line);
        read.ok().and_then(|_| serde_json::from_str(&line).ok()).ok_or_else(|| {
            Failure::Said("the process that keeps the machine as it was has ended too early".into())
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // `finish` reports failures. A drop cannot.
        let _ = self.end();
    }
}

fn unexpected(reply: &Reply) -> Failure {
    Failure::Said(format!("the process that keeps the machine as it was answers out of turn: {reply:?}"))
}

/// Runs a keeper.
pub fn keeper_main() -> Result<(), Failure> {
    // The call fails only for the leader of a process group. The terminal's signals do not reach such a
    // leader anyway.
    let _ = rustix::process::setsid();
    let found = clean_up_after_the_dead();
    let mut machine = SwapFiles { note: KeeperNote::new()?, area: None, no_neighbours: false };
    say(&Reply::Hello(found));
    let mut orders = io::stdin().lock().lines();
    while let Some(Ok(line)) = orders.next() {
        let reply = match serde_json::from_str(&line) {
            Ok(order) => machine.obey(order),
            Err(_) => Err(Failure::Said(format!(
                "{SUBCOMMAND} is started by octavo-lab itself; use octavo-lab swap-w-seq"
            ))),
        };
        say(&reply.unwrap_or_else(|failure| Reply::Failed(failure.to_string())));
    }
    let complaints = machine.note.undo(undo);
    say(&Reply::Undone(complaints));
    Ok(())
}

struct SwapFiles {
    note: KeeperNote,
    area: Option<PathBuf>,
    no_neighbours: bool,
}

impl SwapFiles {
    fn obey(&mut self, order: KeeperOrder) -> Result<Reply, Failure> {
        match order {
            KeeperOrder::SetUp(setup) => {
                let group = cgroup::make(&mut self.note, setup.limit_bytes)?;
                let area = area::make(&mut self.note, &setup.area, setup.area_bytes)?;
                self.no_neighbours = setup.no_neighbours;
                let described = match &setup.area {
                    AreaChoice::FileIn(folder) => {
                        format!("a file of {} in {}", table::bytes(setup.area_bytes), folder.display())
                    }
                    AreaChoice::Device(path) => path.display().to_string(),
                    AreaChoice::Zram { .. } => format!("zram ({})", area::zram_algorithm(&area)),
                };
                let zram = matches!(setup.area, AreaChoice::Zram { .. }).then(|| ZramMemory::of(&area));
                self.area = Some(area);
                Ok(Reply::SetUp(Ready {
                    procs: group.procs(),
                    limit: group.limit(),
                    peak: group.peak(),
                    figures: group.figures(),
                    area: described,
                    zram,
                }))
            }
            KeeperOrder::On => {
                if self.no_neighbours {
                    let path = PathBuf::from(note::PAGE_CLUSTER);
                    let was = fs::read_to_string(&path).map_err(|error| failed("read", &path, error))?;
                    self.note.add(Step::PageCluster { was })?;
                    fs::write(&path, "0").map_err(|error| failed("set", &path, error))?;
                }
                self.area.as_deref().map_or(Ok(()), area::switch_on)?;
                Ok(Reply::Done)
            }
            KeeperOrder::Off => {
                self.area.as_deref().map_or(Ok(()), area::switch_off)?;
                undo_page_cluster(&mut self.note)?;
                Ok(Reply::Done)
            }
        }
    }
}

fn say(reply: &Reply) {
    let Ok(mut line) = serde_json::to_vec(reply) else { return };
    line.push(b'\n');
    // The asking process may be gone. The keeper takes the step anyway.
    let _ = io::stdout().lock().write_all(&line).and_then(|()| io::stdout().flush());
}
