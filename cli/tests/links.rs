//! Every relative link of a page leads to a file, and every anchor to a heading; the index has every page;
//! and every page of `docs` that a source names is there.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Texts from which examples write pages. Their links start from the page, where they are checked.
const TEMPLATES: &str = "benches/examples";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All files of the checkout below a folder, relative to the checkout.
fn files(folder: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !path.is_symlink() {
                if name != "target" && name != "__pycache__" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else {
                found.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|found| extensions.iter().any(|extension| found == *extension))
}

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn pages(folder: &str) -> Vec<PathBuf> {
    let mut pages = files(folder);
    pages.retain(|path| has_extension(path, &["md"]) && !path.starts_with(TEMPLATES));
    pages
}

/// The lines of a page outside of blocks of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence && !line.starts_with("    ")
    })
}

/// What the links and pictures of a page lead to.
fn links(page: &str) -> Vec<String> {
    let text: Vec<_> = prose(page).collect();
    // The odd parts are code within lines, in which brackets link nothing. A link's text may be code.
    let text = text.join("\n");
    let text: String = text
        .split('`')
        .enumerate()
        .map(|(i, part)| if i % 2 == 1 { "code" } else { part })
        .collect();
    let ends = text.split("](").skip(1);
    ends.map(|rest| rest.split([')', ' ']).next().unwrap().to_owned()).collect()
}

/// The anchors of a page, as GitHub names them.
fn anchors(page: &str) -> Vec<String> {
    let mut times: HashMap<String, usize> = HashMap::new();
    let headings = prose(page)
        .filter(|line| line.starts_with('#') && line.trim_start_matches('#').starts_with(' '));
    let anchor = |heading: &str| {
        let name: String = heading
            .trim_start_matches('#')
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let before = times.entry(name.clone()).or_default();
        *before += 1;
        if *before == 1 { name } else { format!("{name}-{}", *before - 1) }
    };
    headings.map(anchor).collect()
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(parts.pop(), "{} leaves the checkout", path.display()),
            Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts
}

/// The file and the anchor that a link of a page leads to, unless it leaves the project.
fn target(page: &Path, link: &str) -> Option<(PathBuf, Option<String>)> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(p, a)| (p, Some(a)));
    let path = match path {
        "" => page.to_owned(),
        path => plain(&page.parent().unwrap().join(path)),
    };
    Some((path, anchor.map(str::to_owned)))
}

#[test]
fn links_lead_somewhere() {
    let (mut broken, mut checked) = (Vec::new(), 0);
    for page in pages(".") {
        for link in links(&read(&page)) {
            let Some((path, anchor)) = target(&page, &link) else { continue };
            let is_there = root().join(&path).exists();
            let has_anchor = |anchor| anchors(&read(&path)).contains(anchor);
            checked += 1;
            if !is_there || anchor.as_ref().is_some_and(|anchor| !has_anchor(anchor)) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(checked > 100, "{checked} links");
    assert!(broken.is_empty(), "{} broken links:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn the_index_has_every_page() {
    let index = Path::new("docs/README.md");
    let listed = links(&read(index));
    let listed: Vec<_> = listed.iter().filter_map(|link| target(index, link)).collect();
    // `measured.md` is the index of its folder.
    let research = Path::new("docs/research");
    let missing: Vec<_> = pages("docs")
        .into_iter()
        .filter(|page| page != index && !page.starts_with(research))
        .filter(|page| !listed.iter().any(|(path, _)| path == page))
        .collect();
    assert!(missing.is_empty(), "docs/README.md does not list {missing:?}");
}

/// The paths into `docs` that a text names.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.split("docs/").skip(1).filter_map(|rest| {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let path = rest.split(|c| !is_path(c)).next().unwrap().trim_end_matches('.');
        has_extension(Path::new(path), &["md", "svg", "png", "json"]).then_some(path)
    })
}

#[test]
fn pages_that_sources_name_are_there() {
    let (mut missing, mut checked) = (Vec::new(), 0);
    for file in files(".") {
        if !has_extension(&file, &["rs", "toml", "py", "h", "c", ""]) && file.extension().is_some()
        {
            continue;
        }
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        for path in named(&text) {
            checked += 1;
            if !root().join("docs").join(path).exists() {
                missing.push(format!("{}: docs/{path}", file.display()));
            }
        }
    }
    assert!(checked > 50, "{checked} paths");
    assert!(missing.is_empty(), "{} missing pages:\n{}", missing.len(), missing.join("\n"));
}
