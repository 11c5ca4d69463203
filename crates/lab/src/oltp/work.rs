//! Threads that make transfers.

use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::Instant;

use hdrhistogram::Histogram;
use octavo_command::failure::Failure;
use octavo_measure::random::Random;

use super::bank::{ACCOUNTS, Bank, TELLERS, Transfer};
use super::job::Job;
use crate::gate::all_at_once;
use crate::profile::Samples;

/// Of a hundred transfers, so many are of an account of the teller's own branch.
const AT_HOME: usize = 85;
const MOST_AMOUNT: usize = 999_999;

/// The transfers of a run.
#[derive(Debug)]
pub struct Done {
    pub transfers: u64,
    pub seconds: f64,
    /// Nanoseconds of each transfer, until it was durable.
    pub latencies: Histogram<u64>,
}

/// Makes transfers on the job's threads for the job's time, with checkpoints beside them.
pub fn work(bank: &Bank, job: &Job, samples: Option<&mut Samples>) -> Result<Done, Failure> {
    let commits = job.commits.as_deref().map(|path| {
        let opened = File::options().append(true).create(true).open(path);
        opened.map_err(|error| Failure::system(format!("cannot write to {}", path.display()), error))
    });
    let commits = commits.transpose()?;
    let began = Instant::now();
    let seed = Random::new(std::process::id().into()).next_u64();
    bank.set_checkpoints_ended(false);
    let each = thread::scope(|scope| {
        scope.spawn(|| bank.make_checkpoints());
        let _end = EndCheckpoints(bank);
        let one = |thread: u32| one_thread(bank, job, seed ^ u64::from(thread), commits.as_ref());
        all_at_once(0..job.threads, one, samples)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let mut latencies = histogram();
    for of_thread in each {
        latencies.add(of_thread).expect("all histograms have one range");
    }
    Ok(Done { transfers: latencies.len(), seconds, latencies })
}

/// Ends the checkpoints, also if a thread panics.
struct EndCheckpoints<'b>(&'b Bank);

impl Drop for EndCheckpoints<'_> {
    fn drop(&mut self) {
        self.0.set_checkpoints_ended(true);
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

fn one_thread(bank: &Bank, job: &Job, seed: u64, commits: Option<&File>) -> Result<Histogram<u64>, Failure> {
    let (mut random, mut latencies) = (Random::new(seed), histogram());
    let began = Instant::now();
    while began.elapsed() < job.time {
        let transfer = draw(&mut random, bank.scale());
        let asked = Instant::now();
        let (number, _) = bank.transfer(transfer)?;
        latencies.record(asked.elapsed().as_nanos() as u64).expect("the histogram grows");
        if let Some(mut file) = commits {
            let noted = file.write_all(&number.to_le_bytes());
            noted.map_err(|error| Failure::system("cannot note a transfer", error))?;
        }
    }
    Ok(latencies)
}

/// Draws a transfer as TPC-B does.
fn draw(random: &mut Random, scale: u64) -> Transfer {
    let teller = random.below((TELLERS * scale) as usize) as u64;
    let branch = teller / TELLERS;
    let place = random.below(ACCOUNTS as usize) as u64;
    let home = if random.below(100) < AT_HOME { branch } else { random.below(scale as usize) as u64 };
    let amount = random.below(2 * MOST_AMOUNT + 1) as i64 - MOST_AMOUNT as i64;
    Transfer { account: home * ACCOUNTS + place, teller, branch, amount }
}
