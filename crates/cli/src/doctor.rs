//! `octavo doctor`: what this machine and this container allow, which rung a run takes, and how to get a
//! better one.

use std::env;
use std::fmt::{self, Display};
use std::path::PathBuf;

use clap::Args;
use octavo::bytes_for_people;
use octavo_command::choices::JsonTarget;
use octavo_command::failure::Failure;
use octavo_command::output::{JsonSink, Text};
use serde_json::{Value, json};

use crate::rungs::probes::{self, Faults, Folder, Group};
use crate::rungs::{self, Rung};

/// Show what this machine allows, how a run would keep its limit here, and how to get more
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  octavo doctor\n  octavo doctor --json -")]
pub struct DoctorArgs {
    /// Write the findings as JSON to a file; `-` is standard output
    #[arg(long, env = "OCTAVO_JSON", value_name = "FILE")]
    pub json: Option<JsonTarget>,
}

/// The answers of all probes.
#[derive(Clone, Debug)]
pub struct Findings {
    faults: Faults,
    has_device: Result<(), String>,
    tracing: Result<(), String>,
    has_page_scan: bool,
    has_soft_dirty: bool,
    listening: Result<(), String>,
    group: Option<Group>,
    swap_bytes: u64,
    may_swap_on: bool,
    folder: Result<Folder, String>,
    /// Each rung, and why it does not work here, if it does not.
    rungs: Vec<(Rung, Result<(), String>)>,
    taken: Result<Rung, String>,
}

/// A step that a user can take, and the commands for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Advice {
    /// What the step gives.
    gives: String,
    /// Commands to copy, with a word about where each belongs.
    commands: Vec<(&'static str, String)>,
}

/// Prints the findings. Returns the exit code: 0 if a run can keep its limit here, otherwise 1.
pub fn doctor(args: &DoctorArgs) -> Result<u8, Failure> {
    let sink = args.json.as_ref().map(JsonSink::open).transpose()?;
    let found = look();
    let advice = found.advice();
    let text = Text::beside(args.json.as_ref());
    text.line(&found)?;
    for Advice { gives, commands } in &advice {
        text.line(format_args!("\n{gives}:"))?;
        for (place, command) in commands {
            text.line(format_args!("  {place:<14}{command}"))?;
        }
    }
    if let Some(sink) = sink {
        sink.write(&found.to_json(&advice))?;
    }
    Ok(u8::from(found.taken.is_err()))
}

fn look() -> Findings {
    let rungs: Vec<_> = Rung::ALL.into_iter().map(|rung| (rung, rung.probe())).collect();
    Findings {
        faults: probes::faults(),
        has_device: probes::device().map_err(|error| error.to_string()),
        tracing: probes::tracing(),
        has_page_scan: probes::has_page_scan(),
        has_soft_dirty: probes::has_soft_dirty(),
        listening: probes::listening().map_err(|error| error.to_string()),
        group: probes::group(),
        swap_bytes: probes::kernel_swap_bytes(),
        may_swap_on: probes::may_swap_on(),
        folder: folder_for_pages(),
        taken: rungs::first(|wanted| {
            let (_, works) = rungs.iter().find(|(rung, _)| *rung == wanted).expect("all rungs were tried");
            works.clone()
        }),
        rungs,
    }
}

/// Returns the first folder that will do, of those that a run without `--swap` would use.
///
/// # Errors
/// Returns why the first will not.
fn folder_for_pages() -> Result<Folder, String> {
    let named = env::var_os("TMPDIR").map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    let places = named.into_iter().chain([PathBuf::from("/var/tmp")]);
    let mut tried: Vec<_> = places.map(|path| probes::folder(&path)).collect();
    match tried.iter().position(Result::is_ok) {
        Some(index) => tried.swap_remove(index),
        None => tried.swap_remove(0),
    }
}

impl Findings {
    /// Returns the lines: whether a thing is there, its name, and words about it.
    fn lines(&self) -> Vec<(bool, &'static str, String)> {
        let yes_or = |answer: &Result<(), String>, yes: &str| match answer {
            Ok(()) => (true, yes.to_owned()),
            Err(why) => (false, why.clone()),
        };
        let plain =
            |is_there: bool, yes: &str, no: &str| (is_there, (if is_there { yes } else { no }).to_owned());
        let faults = match self.faults {
            Faults::Full => (true, "full: fork events, and pages that move".to_owned()),
            Faults::UserMode => (false, "for a program's own code only".to_owned()),
            Faults::None => (false, "none".to_owned()),
        };
        let group = match &self.group {
            None => (false, "none is visible".to_owned()),
            Some(group) => {
                let limit = group
                    .limit_bytes
                    .map_or("no limit".into(), |bytes| format!("a limit of {}", bytes_for_people(bytes)));
                let children = if group.can_have_children { "groups can" } else { "no group can" };
                (true, format!("version {}, {limit}; {children} be made in it", group.version))
            }
        };
        let swap = match (self.swap_bytes, self.may_swap_on) {
            (0, true) => "none; this user may add some".into(),
            (0, false) => "none, and this user may add none".into(),
            (bytes, _) => bytes_for_people(bytes).to_string(),
        };
        let folder = match &self.folder {
            Ok(folder) => {
                let room = bytes_for_people(folder.free_bytes);
                (true, format!("{}, on a disk, with {room} free", folder.path.display()))
            }
            Err(why) => (false, why.clone()),
        };
        let named = |name, (is_there, words)| (is_there, name, words);
        vec![
            named("userfaultfd", faults),
            named("device", yes_or(&self.has_device, "/dev/userfaultfd can be opened")),
            named("tracing", yes_or(&self.tracing, "a child can be traced")),
            named("page scan", plain(self.has_page_scan, "PAGEMAP_SCAN", "needs Linux 6.7")),
            named("soft-dirty", plain(self.has_soft_dirty, "the kernel marks stores", "not in this kernel")),
            named("listening", yes_or(&self.listening, "system calls can be received and answered")),
            named("control group", group),
            (self.swap_bytes > 0 || self.may_swap_on, "kernel swap", swap),
            named("files", folder),
        ]
    }

    /// Returns the steps that would give a better rung than the one taken, the best first.
    fn advice(&self) -> Vec<Advice> {
        let mut all = Vec::new();
        if self.taken != Ok(Rung::Pool) {
            all.push(self.advice_for_pool());
        }
        if let Err(why) = &self.tracing {
            all.push(Advice {
                gives: format!("For the pool rung and the file rung: tracing ({why})"),
                commands: vec![
                    ("on the machine", "sudo sysctl kernel.yama.ptrace_scope=1".into()),
                    ("in Docker", "docker run --cap-add SYS_PTRACE IMAGE octavo run -- PROGRAM".into()),
                ],
            });
        }
        if self.rungs.iter().any(|(rung, works)| *rung == Rung::Kernel && works.is_err())
            && self.taken.is_err()
        {
            all.push(Advice {
                gives: "For the kernel rung: root, outside of containers".into(),
                commands: vec![("as root", "sudo octavo run --rung kernel -- PROGRAM".into())],
            });
        }
        if let Err(why) = &self.folder {
            all.push(Advice {
                gives: format!("For files of pages ({why})"),
                commands: vec![
                    ("once", "octavo run --swap DIR -- PROGRAM".into()),
                    ("for all runs", "export OCTAVO_SWAP=DIR".into()),
                ],
            });
        }
        all
    }

    fn advice_for_pool(&self) -> Advice {
        let user = rustix::process::getuid().as_raw();
        let mut commands = vec![("as root", "sudo octavo run -- PROGRAM".to_owned())];
        if self.has_device.is_err() {
            commands.push(("for everybody", "sudo chmod 666 /dev/userfaultfd".into()));
            commands.push(("or one user", format!("sudo setfacl -m u:{user}:rw /dev/userfaultfd")));
        }
        commands.push(("and this right", "sudo setcap cap_sys_ptrace+eip \"$(command -v octavo)\"".into()));
        commands.push((
            "in Docker",
            "docker run --device /dev/userfaultfd --cap-add SYS_PTRACE IMAGE octavo run -- PROGRAM".into(),
        ));
        commands.push((
            "in a pod",
            "securityContext: {runAsUser: 0, capabilities: {add: [SYS_PTRACE]}, seccompProfile: {type: Unconfined}}".into(),
        ));
        Advice { gives: "For the pool rung: full userfaultfd".into(), commands }
    }

    fn to_json(&self, advice: &[Advice]) -> Value {
        let facts: serde_json::Map<_, _> = self
            .lines()
            .into_iter()
            .map(|(is_there, name, words)| {
                (name.replace([' ', '-'], "_"), json!({"is_there": is_there, "words": words}))
            })
            .collect();
        let rungs: serde_json::Map<_, _> = self
            .rungs
            .iter()
            .map(|(rung, works)| {
                (rung.to_string(), json!({"works": works.is_ok(), "why_not": works.as_ref().err()}))
            })
            .collect();
        let advice: Vec<_> = advice
            .iter()
            .map(|Advice { gives, commands }| {
                let commands: Vec<_> = commands
                    .iter()
                    .map(|(place, command)| json!({"where": place, "command": command}))
                    .collect();
                json!({"gives": gives, "commands": commands})
            })
            .collect();
        let userfaultfd = match self.faults {
            Faults::Full => "full",
            Faults::UserMode => "user-mode",
            Faults::None => "none",
        };
        json!({
            "rung": self.taken.as_ref().ok().map(ToString::to_string),
            "rungs": rungs,
            "userfaultfd": userfaultfd,
            "facts": facts,
            "advice": advice,
        })
    }
}

impl Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (is_there, name, words) in self.lines() {
            writeln!(f, "{} {name:<15}{words}", if is_there { ' ' } else { '!' })?;
        }
        writeln!(f)?;
        for (rung, works) in &self.rungs {
            match works {
                Ok(()) => writeln!(f, "  {:<15}works: {}", format!("{rung} rung"), rung.words())?,
                Err(why) => writeln!(f, "! {:<15}{why}", format!("{rung} rung"))?,
            }
        }
        match &self.taken {
            Ok(rung) => write!(f, "\nA run takes the {rung} rung: {}.", rung.words()),
            Err(_) => {
                write!(f, "\nBy itself a run keeps no limit here: the program would run as without Octavo.")?;
                let works = self.rungs.iter().filter(|(_, works)| works.is_ok());
                works.into_iter().try_for_each(|(rung, _)| write!(f, " With --rung {rung} it keeps one."))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_rung_is_advised_only_to_those_who_lack_it() {
        let mut found = look();
        found.taken = Ok(Rung::Pool);
        found.folder = Ok(Folder { path: "/x".into(), free_bytes: 1 });
        found.tracing = Ok(());
        assert_eq!(found.advice(), []);
        found.taken = Err("no".into());
        found.has_device = Err("no".into());
        let advice = found.advice();
        assert!(advice[0].commands.iter().any(|(_, command)| command.contains("chmod 666 /dev/userfaultfd")));
        found.has_device = Ok(());
        assert!(!found.advice()[0].commands.iter().any(|(_, command)| command.contains("chmod")));
    }

    #[test]
    fn a_machine_that_forbids_tracing_has_a_remedy() {
        let mut found = look();
        found.tracing = Err("not permitted".into());
        let commands: Vec<_> = found.advice().into_iter().flat_map(|advice| advice.commands).collect();
        assert!(commands.iter().any(|(_, command)| command.contains("ptrace_scope=1")));
    }

    #[test]
    fn a_folder_that_will_not_do_has_a_remedy() {
        let mut found = look();
        found.folder = Err("files in /x stay in memory".into());
        assert!(found.advice().iter().any(|advice| advice.gives.contains("stay in memory")));
    }
}
