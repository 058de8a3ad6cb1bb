//! The examples of `docs/format.md`, taken from the page and given to the program.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::Folder;
use std::iter::Peekable;
use std::str::Lines;

const PAGE: &str = include_str!("../../docs/format.md");

/// The lines of a fenced block up to its end.
fn fenced(lines: &mut Peekable<Lines<'_>>) -> String {
    lines.by_ref().skip(1).take_while(|&line| line != "```").collect::<Vec<_>>().join("\n")
}

#[test]
fn the_examples_of_the_format_get_the_verdicts_beside_them() {
    let folder = Folder::new();
    let (mut files, mut verdicts) = (0, 0);
    let mut lines = PAGE.lines().peekable();
    while let Some(line) = lines.next() {
        let file = line.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        if let Some(file) = file
            && lines.peek() == Some(&"```json")
        {
            folder.write(file, fenced(&mut lines));
            files += 1;
        } else if let Some(command) = line.strip_prefix("    $ spillway ") {
            let said = folder.run(&command.split(' ').collect::<Vec<_>>()).done().stdout;
            let shown = lines.next().and_then(|line| line.strip_prefix("    "));
            assert_eq!(shown, said.lines().next(), "{command}");
            verdicts += 1;
        }
    }
    assert_eq!((files, verdicts), (11, 5));
}
