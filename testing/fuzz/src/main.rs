//! A long run of cases.

use clap::Parser;
use fuzz::case::{Case, Files, Finding};
use fuzz::fault::silence_panics;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io, process, thread};

/// A case takes milliseconds, and seconds where it fails and is made smaller.
const SLOW: Duration = Duration::from_secs(15);
const PROGRESS: Duration = Duration::from_secs(10);

/// Calls everything public with garbage, and judges plans in two ways.
///
/// Prints what goes wrong, each kind of fault once, and writes the input to a folder of its own.
/// A plan there is judged again by `spillway check graph.json plan.json --machine machine.json`.
/// Ends with status 1 if anything went wrong. If it dies, `current` in the folder of findings
/// holds the number of the case.
#[derive(Parser, Debug)]
struct Arguments {
    /// How long to run
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The seed that the cases follow from [default: by the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// The number of the first case
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// How many cases to check at most
    #[arg(long, default_value_t = u64::MAX)]
    cases: u64,
    /// The folder for inputs that fail
    #[arg(long, default_value = "target/fuzz-findings")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let by_clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = arguments.seed.unwrap_or_else(by_clock);
    eprintln!("seed {seed}");
    silence_panics();
    match run(&arguments, seed) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}: {error}", arguments.out.display());
            ExitCode::FAILURE
        }
    }
}

/// Checks cases until the time is over. Returns how many kinds of faults there were.
fn run(arguments: &Arguments, seed: u64) -> io::Result<usize> {
    let begin = Instant::now();
    let time = Duration::from_secs(60 * arguments.minutes);
    let current = AtomicU64::new(arguments.first);
    let (mut kinds, mut cases) = (BTreeSet::new(), 0);
    let end = arguments.first.saturating_add(arguments.cases);
    fs::create_dir_all(&arguments.out)?;
    thread::scope(|scope| {
        scope.spawn(|| watch(&current, seed, &arguments.out));
        for number in arguments.first..end {
            if begin.elapsed() > time {
                break;
            }
            current.store(number, Ordering::Relaxed);
            // What is left of a run that dies.
            fs::write(arguments.out.join("current"), number.to_string())?;
            cases += 1;
            let Some(finding) = (Case { seed, number }).check() else { continue };
            if kinds.insert(finding.fault.kind.clone()) {
                report(seed, number, &finding, &arguments.out)?;
            }
        }
        current.store(u64::MAX, Ordering::Relaxed);
        fs::remove_file(arguments.out.join("current"))?;
        let seconds = begin.elapsed().as_secs();
        eprintln!("{cases} cases in {seconds} s, {} kinds of faults", kinds.len());
        Ok(kinds.len())
    })
}

/// Says every few seconds how far the run is, and ends it when a case does not.
fn watch(current: &AtomicU64, seed: u64, out: &Path) {
    let mut last = (u64::MAX, Instant::now());
    let mut shown = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(100));
        let number = current.load(Ordering::Relaxed);
        if number == u64::MAX {
            return;
        }
        if number != last.0 {
            last = (number, Instant::now());
        } else if last.1.elapsed() > SLOW {
            eprintln!("case {number} does not end");
            if let Err(error) = write(&out.join(number.to_string()), &Case { seed, number }.input())
            {
                eprintln!("{}: {error}", out.display());
            }
            process::exit(1);
        }
        if shown.elapsed() > PROGRESS {
            shown = Instant::now();
            eprintln!("case {number}");
        }
    }
}

fn report(seed: u64, number: u64, finding: &Finding, out: &Path) -> io::Result<()> {
    let folder = out.join(number.to_string());
    println!("{}", finding.fault.detail);
    println!("  in {}, again by --seed {seed} --first {number} --cases 1", folder.display());
    write(&folder, &finding.files)
}

fn write(folder: &Path, files: &Files) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    files.iter().try_for_each(|(name, bytes)| fs::write(folder.join(name), bytes))
}
