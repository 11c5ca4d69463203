//! The program that `octavo run` runs by default: it needs three times the memory that it gets, and does not
//! use Octavo itself.

use std::time::Instant;

/// The first argument of a process that runs this program.
pub const SUBCOMMAND: &str = "__demo";
/// The first argument of a process that only waits until its standard input ends.
pub const WAITING: &str = "__waiting";
/// The default limit of the run of this program.
pub const LIMIT_BYTES: u64 = 256 << 20;
/// The memory that this program needs.
const BYTES: usize = 768 << 20;

/// Fills memory with numbers, reads them twice, and sorts a part of them.
pub fn demo_main() -> Result<(), octavo_command::failure::Failure> {
    println!(
        "A program fills {} MiB with numbers, reads them twice, and sorts a sixth of them.",
        BYTES >> 20
    );
    let start = Instant::now();
    let mut word = 88_172_645_463_325_252_u64;
    let mut sum = 0_u64;
    let numbers = (0..BYTES / 8).map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        sum = sum.wrapping_add(word);
        word
    });
    let mut numbers: Vec<u64> = numbers.collect();
    say("filled", start);
    for _ in 0..2 {
        let start = Instant::now();
        let again = numbers.iter().fold(0_u64, |sum, number| sum.wrapping_add(*number));
        check(again == sum, "the numbers are not those that were stored")?;
        say("read", start);
    }
    let start = Instant::now();
    let part = numbers.len() / 6;
    numbers[..part].sort_unstable();
    check(numbers[..part].is_sorted(), "the numbers are not sorted")?;
    say("sorted", start);
    let again = numbers.iter().fold(0_u64, |sum, number| sum.wrapping_add(*number));
    check(again == sum, "the numbers are not those that were stored")?;
    println!("Every number is right.");
    Ok(())
}

/// Waits until standard input ends.
pub fn waiting_main() -> Result<(), octavo_command::failure::Failure> {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    Ok(())
}

fn say(what: &str, start: Instant) {
    println!("  {what} in {:.2} s", start.elapsed().as_secs_f64());
}

fn check(holds: bool, otherwise: &str) -> Result<(), octavo_command::failure::Failure> {
    if holds { Ok(()) } else { Err(octavo_command::failure::Failure::Said(otherwise.into())) }
}
