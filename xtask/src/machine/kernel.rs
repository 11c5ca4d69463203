//! The kernel's side: memory control groups and swap files, which the warden removes.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use octavo_measure::control_group::{ControlGroup, DELEGATE, Hierarchy};
use octavo_measure::direct::write_in_full;

use super::document::write;
use super::warden::{Warden, quoted};

/// The purpose of a group.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// The group makes the kernel keep a limit. If the group may not swap, it does not use the machine's own
    /// swap either.
    Limit { bytes: u64, may_swap: bool },
    /// The group only measures, since the program keeps a limit itself.
    Measure,
}

/// Makes a group for one run. The warden ends its processes and removes it.
pub fn make_group(warden: &mut Warden, purpose: Purpose) -> Result<ControlGroup, String> {
    let found = Hierarchy::find().map_err(|error| format!("cannot read the mounts: {error}"))?;
    let hierarchy = found.ok_or("this machine has no memory control groups mounted")?;
    let delegation = hierarchy.delegation();
    if let Some(file) = delegation.map_err(|error| format!("cannot read what a group delegates: {error}"))? {
        warden.at_the_end(&format!("echo -memory > {}", quoted(&file)))?;
        write(&file, DELEGATE)?;
    }
    let group = ControlGroup::new(&hierarchy, &format!("octavo-programs-{}", std::process::id()));
    let (path, word) = (group.path(), quoted(group.path()));
    warden.at_the_end(&format!(
        "for i in $(seq 300); do for p in $(cat {word}/cgroup.procs); do kill -9 $p; done; rmdir {word} && break; \
         [ -d {word} ] || break; sleep 0.1; done"
    ))?;
    fs::create_dir(path).map_err(|error| format!("cannot make the group {}: {error}", path.display()))?;
    if let Purpose::Limit { bytes, may_swap } = purpose {
        write(&group.limit(), &bytes.to_string())?;
        if let Some((file, least)) = group.limit_without_swap(bytes).filter(|_| !may_swap) {
            write(&file, &least.to_string())?;
        }
    }
    Ok(group)
}

/// Returns a command line that enters a group and then runs `words`.
pub fn entering(group: &ControlGroup, words: &[String]) -> Vec<String> {
    let enter = format!("echo $$ > {} && exec \"$@\"", quoted(&group.procs()));
    [&["sh", "-c", &enter, "sh"].map(str::to_owned), words].concat()
}

/// Makes the kernel sum a group's figures, which it otherwise does every two seconds. Reclaim relies on them.
/// If a small group uses up its memory faster, reclaim believes that a list is long, finds it empty, and
/// kills a process, although swap is nearly empty and every page is reclaimable. To show the kernel at its
/// best, a comparison reads the figures all the time.
pub fn sum_figures(group: &ControlGroup) {
    group.anonymous_bytes();
}

/// Makes a swap file in the folder and switches it on. The warden switches it off and removes it.
pub fn swap_on(warden: &mut Warden, folder: &Path, bytes: u64) -> Result<(), String> {
    let path = folder.join(format!("kernel-swap-{}", std::process::id()));
    let file = quoted(&path);
    warden.at_the_end(&format!("for i in $(seq 100); do swapoff {file} && break; grep -qF {file} /proc/swaps || break; sleep 0.1; done; rm -f {file}"))?;
    make_file(&path, bytes).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    for tool in ["mkswap", "swapon"] {
        let status = Command::new(tool).arg(&path).stdout(Stdio::null()).status();
        let done = status.map_err(|error| format!("cannot run {tool}: {error}"))?.success();
        if !done {
            return Err(format!(
                "{tool} {} failed; the kernel swaps to files on ext4 and xfs",
                path.display()
            ));
        }
    }
    Ok(())
}

fn make_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    write_in_full(&options.open(path)?, bytes.next_multiple_of(1 << 20))
}
