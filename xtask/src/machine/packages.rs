//! Packages that rows need: Debian's, if the machine has apt.

use std::process::{Command, Stdio};

/// A need of a row: a command that tests it, and the packages that meet it.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// A shell command that succeeds if the need is met.
    pub test: &'static str,
    pub packages: &'static [&'static str],
}

/// Installs what is missing.
pub fn install(needs: &[Need], allowed: bool) -> Result<(), String> {
    let missing: Vec<&str> =
        needs.iter().filter(|need| !succeeds(need.test)).flat_map(|need| need.packages).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !allowed {
        return Err(format!("this row needs {list}; install them, or leave --no-install out"));
    }
    eprintln!("installing {list}");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y"]).args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let install = [&["install", "--no-install-recommends"], &missing[..]].concat();
    let installed = apt(&install) || (apt(&["update"]) && apt(&install));
    if !installed {
        return Err(format!("apt-get could not install {list}; this takes Debian, root and a network"));
    }
    match needs.iter().find(|need| !succeeds(need.test)) {
        Some(need) => Err(format!("the packages are installed, and yet `{}` fails", need.test)),
        None => Ok(()),
    }
}

fn succeeds(test: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", test]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}
