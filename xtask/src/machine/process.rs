//! A measured program: a process group of its own, with its output in files. The program cannot outlive the
//! measurement.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::warden::Warden;

/// Starts a program in `folder/work`, with its output in files of `folder`. The warden ends its whole process
/// group.
pub fn start(
    warden: &mut Warden,
    words: &[String],
    folder: &Path,
    environment: &[(&str, String)],
) -> Result<Child, String> {
    let file = |name| File::create(folder.join(name)).map_err(|error| format!("cannot make {name}: {error}"));
    let (program, arguments) = words.split_first().ok_or("there is no command")?;
    let child = Command::new(program)
        .args(arguments)
        .current_dir(folder.join("work"))
        .env("TMPDIR", folder.join("work"))
        .env("LC_ALL", "C.UTF-8")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(file("stdout")?)
        .stderr(file("stderr")?)
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    warden.at_the_end(&format!("kill -9 -- -{}", child.id()))?;
    Ok(child)
}

/// Returns what a program has written to standard output or standard error.
pub fn said(folder: &Path, name: &str) -> String {
    String::from_utf8_lossy(&fs::read(folder.join(name)).unwrap_or_default()).into_owned()
}

/// Returns the last lines of a program's output.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" / ")
}

/// Waits for the end without polling. Kills the whole process group after the limit.
pub fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus, String> {
    let group = format!("-{}", child.id());
    thread::scope(|scope| {
        let (ended, endings) = mpsc::channel::<()>();
        scope.spawn(move || {
            if endings.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-9", "--", &group]).stderr(Stdio::null()).status();
            }
        });
        let status = child.wait();
        drop(ended);
        status.map_err(|error| format!("cannot wait for a program: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_takes_too_long_is_killed_with_all_that_it_started() {
        use std::os::unix::process::ExitStatusExt;
        let folder = std::env::temp_dir().join(format!("octavo-process-{}", std::process::id()));
        fs::create_dir_all(folder.join("work")).unwrap();
        let mut warden = Warden::start().unwrap();
        let words = ["sh", "-c", "echo $NAME; sleep 1000; true"].map(str::to_owned);
        let mut child = start(&mut warden, &words, &folder, &[("NAME", "here".into())]).unwrap();
        let status = wait(&mut child, Duration::from_millis(300)).unwrap();
        assert_eq!(status.signal(), Some(9));
        assert_eq!(said(&folder, "stdout"), "here\n");
        drop(warden);
        fs::remove_dir_all(folder).unwrap();
    }
}
