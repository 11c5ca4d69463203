//! Undoes noted steps, in the keeper or after one was killed.

use std::fs;
use std::path::Path;

use octavo_command::failure::Failure;

use super::note::{KeeperNote, PAGE_CLUSTER, Step, failed, ignore_missing, notes_of_the_dead};
use super::{area, cgroup};

/// Undoes one step. Does no harm if the step was noted but not done.
pub fn undo(step: &Step) -> Result<(), Failure> {
    match step {
        Step::Mounted { at } => cgroup::unmount(at),
        Step::Delegated { file } => fs::write(file, "-memory")
            .map_err(|error| failed("take the memory controller back by", file, error)),
        Step::Group { path } => cgroup::remove(path),
        Step::SwapFile { path } => {
            area::switch_off(path)?;
            ignore_missing(fs::remove_file(path)).map_err(|error| failed("remove", path, error))
        }
        Step::SwapDevice { path } => area::switch_off(path),
        Step::Zram { number } => area::remove_zram(*number),
        Step::PageCluster { was } => {
            let path = Path::new(PAGE_CLUSTER);
            fs::write(path, was).map_err(|error| failed("restore", path, error))
        }
    }
}

/// Undoes the last step if it is `PageCluster`.
pub fn undo_page_cluster(note: &mut KeeperNote) -> Result<(), Failure> {
    match note.last() {
        Some(step @ Step::PageCluster { .. }) => undo(step)?,
        _ => return Ok(()),
    }
    note.forget_last()
}

/// Undoes the steps of killed keepers. Returns a sentence for each keeper that it found.
pub fn clean_up_after_the_dead() -> Vec<String> {
    let put_right = |note: KeeperNote| {
        let pid = note.pid();
        let complaints = note.undo(undo);
        match complaints.is_empty() {
            true => format!("put right what process {pid}, which was killed, had changed on this machine"),
            false => format!("process {pid} was killed and left behind: {}", complaints.join("; ")),
        }
    };
    notes_of_the_dead().into_iter().map(put_right).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_was_noted_and_not_done_is_undone_without_harm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none");
        undo(&Step::Group { path: path.clone() }).unwrap();
        undo(&Step::Mounted { at: path.clone() }).unwrap();
        undo(&Step::SwapFile { path }).unwrap();
    }
}
