//! Reports in a real browser, where there is one: `cli/with-chromium cargo test -p spillway-cli
//! --test browser`.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Folder, SMALL};
use std::fs;
use std::process::{Command, ExitCode};

const BROWSER: &str = "chromium-headless-shell";

const TESTS: [(&str, fn()); 4] = [
    ("what_a_page_does_wrong_is_seen", wrong),
    ("a_report_is_drawn", report),
    ("a_report_of_a_run_is_drawn", run),
    ("pictures_are_drawn", pictures),
];

fn main() -> ExitCode {
    let found = Command::new(BROWSER).arg("--version").output();
    let missing = found.is_err().then(|| format!("there is no {BROWSER}"));
    test_harness::with_device(missing, TESTS)
}

/// A page as a browser shows it.
struct Shown {
    /// Its elements, once its scripts have run.
    elements: String,
    /// Messages on the console, and addresses that were asked for.
    complaints: Vec<String>,
    /// The bytes of a screenshot: a blank page takes few.
    picture_bytes: usize,
}

fn show(folder: &Folder, page: &str) -> Shown {
    let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let (log, picture) = (path("net.json"), path("page.png"));
    let mut browser = Command::new(BROWSER);
    browser.args(["--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]);
    browser.args(["--window-size=1300,1600", "--hide-scrollbars"]);
    browser.arg(format!("--user-data-dir={}", path("profile")));
    let address = format!("file://{}", path(page));
    let log_to = format!("--log-net-log={log}");
    let dumped = browser.args([&log_to, &address]).output().unwrap();
    assert!(dumped.status.success(), "{dumped:?}");
    let mut screen = Command::new(BROWSER);
    screen.args(["--no-sandbox", "--disable-gpu", "--window-size=1300,1600", "--hide-scrollbars"]);
    screen.arg(format!("--user-data-dir={}", path("profile")));
    let drawn = screen.args([&format!("--screenshot={picture}"), &address]).output().unwrap();
    assert!(drawn.status.success(), "{drawn:?}");

    let said = String::from_utf8_lossy(&dumped.stderr);
    let console = said.lines().filter(|line| line.contains(":CONSOLE:")).map(str::to_owned);
    let net = fs::read_to_string(log).unwrap();
    let asked = net.split("\"url\":\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let asked = asked.filter(|url| !url.starts_with("file:") && !url.starts_with("data:"));
    Shown {
        elements: String::from_utf8(dumped.stdout).unwrap(),
        complaints: console.chain(asked.map(str::to_owned)).collect(),
        picture_bytes: fs::read(picture).unwrap().len(),
    }
}

/// Shows a page, of which nothing is wrong.
fn drawn(folder: &Folder, page: &str) -> Shown {
    let shown = show(folder, page);
    assert_eq!(shown.complaints, Vec::<String>::new(), "{page}");
    assert!(shown.picture_bytes > 20_000, "{page}: {} bytes", shown.picture_bytes);
    shown
}

fn wrong() {
    let folder = Folder::new();
    folder.write("p.html", "<img src=\"http://127.0.0.1:9/x.png\"><script>missing();</script>");
    let shown = show(&folder, "p.html");
    let holds = |text: &str| shown.complaints.iter().any(|complaint| complaint.contains(text));
    assert!(holds("missing is not defined") && holds("http://127.0.0.1:9/x.png"));
    assert!(shown.picture_bytes < 20_000, "{}", shown.picture_bytes);
}

fn report() {
    let folder = Folder::new();
    folder.run(&["plan", SMALL, "-b", "35%", "--curve", "80%,50%", "--report", "r.html"]).done();
    let Shown { elements, .. } = drawn(&folder, "r.html");
    assert!(elements.contains("<p id=\"search\">"), "the script shows the field");
    assert!(elements.contains("class=\"point this\""), "the curve is there");
}

fn run() {
    let folder = Folder::new();
    folder.run(&["run", SMALL, "-b", "35%", "--delays", "1", "--report", "r.html"]).done();
    let Shown { elements, .. } = drawn(&folder, "r.html");
    assert!(elements.contains("Predicted and measured"));
}

fn pictures() {
    let folder = Folder::new();
    folder.run(&["plan", SMALL, "-b", "35%", "--picture", "p.svg"]).done();
    folder.run(&["compare", SMALL, "-s", "on-demand,window", "--plot", "c.svg"]).done();
    for picture in ["p.svg", "c.svg"] {
        drawn(&folder, picture);
    }
}
