//! The text on the screen: seconds and MB/s first, figures with titles that explain them, and nothing that
//! only `octavo-lab` itself uses.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{SMALL, lab, refusal, row_of, text_of};

#[test]
fn help_is_there_for_each_and_octavo_alone_starts_its_own_processes() {
    for command in ["swap-w-seq", "swap-w-rand", "swapin", "swap-r-rand"] {
        let help = text_of(&format!("{command} --help"));
        assert!(help.contains("--against") && help.contains("Examples:"), "{command}: {help}");
        assert_eq!(help.contains("--prefetch"), command == "swap-r-rand");
    }
    for own in ["swap-task", "swap-task now", "swap-task --help"] {
        let (code, complaint) = refusal(&lab(own).output().unwrap());
        assert_eq!(code, Some(1));
        assert!(
            complaint.contains("swap-task is started by octavo-lab itself; use octavo-lab swap-w-seq"),
            "{complaint}"
        );
    }
}

#[test]
fn what_octavo_starts_itself_is_neither_listed_nor_suggested() {
    let own = ["swap-task", "swap-keeper", "kernel-task"];
    for line in
        ["--help", "help", "swap-tas", "swap-tsk", "swap-keepe", "swap-k", "kernel-tas", "kernel", "swap"]
    {
        let output = lab(line).output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert!(!own.iter().any(|own| said.contains(own)), "{line}: {said}");
    }
    for own in own {
        let (code, complaint) = refusal(&lab(&format!("help {own}")).output().unwrap());
        assert_eq!(code, Some(2));
        assert!(complaint.contains("unrecognized subcommand"), "{complaint}");
    }
}

#[test]
fn seconds_and_megabytes_come_first_and_usemems_figures_stand_apart() {
    let text = text_of(&format!("swap-w-seq {SMALL} --mode all --rounds 2"));
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what:?} is missing in {text}"));
    let job = place("the whole job: 2 tasks write 40 MiB in 16M of memory");
    let (phases, usemem) = (place("phases: what went out"), place("as usemem counts: an eighth of"));
    assert!(job < phases && phases < usemem, "{text}");
    // KB/s may occur only where usemem's figures are explained.
    let lock_sites = place("the swap cache's lock");
    for (at, _) in text.match_indices("KB/s") {
        assert!((usemem..lock_sites).contains(&at), "{text}");
    }
    let compared: Vec<&str> = text[job..phases].lines().filter(|line| line.contains(" than ")).collect();
    assert_eq!(compared.len(), 3, "{text}");
    assert!(compared.iter().all(|line| line.contains(" seconds ")), "{text}");
    for line in text.lines().filter(|line| line.starts_with("round ")) {
        assert_eq!(line.matches("/s").count(), 1, "one rate a line: {line}");
    }
}

#[test]
fn no_cell_is_empty_without_a_reason_and_one_round_has_no_median() {
    for line in [
        "swapin --data zero",
        "swap-w-seq --data zero --mode all",
        "swap-r-rand --loads 100 --against disk",
        "swap-w-rand --against disk",
    ] {
        let text = text_of(&format!("{line} {SMALL} --rounds 1"));
        assert!(!text.split_whitespace().any(|word| word == "-" || word == "NaN"), "{text}");
        assert!(!text.contains("median") && text.contains("one round"), "{text}");
    }
    let text = text_of(&format!("swapin {SMALL} --data zero --rounds 1"));
    assert_eq!(row_of(&text, "phases", "best").join(" ").split(" before ").count(), 2, "{text}");
    assert!(text.contains("nothing moved"), "{text}");
}

#[test]
fn sizes_are_echoed_as_they_were_given() {
    let text = text_of("swap-w-seq -n 1 --memory 0x1000000 --total 20480k --readahead 64K --rounds 1");
    let workload = "swap-w-seq -n 1 --memory 0x1000000 --total 20480k --data random --readahead 64K, to";
    assert!(text.contains(workload), "{text}");
    assert!(text.contains("1 task writes 20 MiB in 0x1000000 of memory"), "{text}");
    let (_, complaint) = refusal(&lab("swap-w-seq --total 4K -n 8").output().unwrap());
    assert!(complaint.contains("a total of 4K leaves no page"), "{complaint}");
    let (_, complaint) = refusal(&lab("swap-w-seq --memory 4t").output().unwrap());
    assert!(complaint.contains("a total of three times 4t is more than swap can hold"), "{complaint}");
}

#[test]
fn a_run_that_will_take_over_ten_seconds_says_so_at_once() {
    let mut child = lab(&format!("swap-r-rand {SMALL} --seconds 20 --rounds 2"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(first.trim_end(), "this will take at least 40 s, for 2 turns");
}
