//! A renderer other than a browser draws every picture of the program and of the pages. The images lie
//! in `tmp` of the target folder.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::{Folder, SMALL};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::roxmltree::{Document, Node};
use resvg::usvg::{self, Group, Options, Rect, Tree};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The one palette of whatever shows streams or memory.
const PALETTE: [(&str, [u8; 3]); 10] = [
    ("compute", [0x3f, 0x6f, 0xb5]),
    ("repeat", [0xa8, 0x56, 0x9f]),
    ("upload", [0x2b, 0x99, 0x8c]),
    ("download", [0xdd, 0x8a, 0x3e]),
    ("arena", [0x87, 0x93, 0xa8]),
    ("state", [0x7b, 0x6b, 0xb0]),
    ("input", [0xc9, 0xa2, 0x27]),
    ("temporary", [0x7f, 0x9f, 0x45]),
    ("workspace", [0x96, 0x69, 0x4a]),
    ("waste", [0xc3, 0xca, 0xd5]),
];
const STREAMS: [&str; 3] = ["compute", "upload", "download"];

/// DejaVu Sans, which is wider than most.
static OPTIONS: LazyLock<Options<'static>> = LazyLock::new(|| {
    let mut options = Options::default();
    let fonts = options.fontdb_mut();
    for font in [dejavu::sans::regular(), dejavu::sans::bold()] {
        fonts.load_font_data(font.to_vec());
    }
    fonts.set_sans_serif_family("DejaVu Sans");
    options
});

/// A picture as a renderer sees it.
struct Drawn {
    name: String,
    svg: String,
    tree: Tree,
    pixels: Pixmap,
}

impl Drawn {
    fn of(name: &str, svg: String) -> Self {
        let tree = Tree::from_str(&svg, &OPTIONS).unwrap_or_else(|error| panic!("{name}: {error}"));
        let size = tree.size().to_int_size();
        let mut pixels = Pixmap::new(size.width(), size.height()).unwrap();
        resvg::render(&tree, Transform::identity(), &mut pixels.as_mut());
        let shown = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension("png");
        pixels.save_png(shown).unwrap();
        Self { name: name.to_owned(), svg, tree, pixels }
    }

    /// The boxes of all texts.
    fn texts(&self) -> Vec<(String, Rect)> {
        fn gather(group: &Group, texts: &mut Vec<(String, Rect)>) {
            for node in group.children() {
                match node {
                    usvg::Node::Group(group) => gather(group, texts),
                    usvg::Node::Text(text) => {
                        let words = text.chunks().iter().map(usvg::TextChunk::text);
                        texts.push((words.collect(), text.abs_bounding_box()));
                    }
                    usvg::Node::Path(_) | usvg::Node::Image(_) => {}
                }
            }
        }
        let mut texts = Vec::new();
        gather(self.tree.root(), &mut texts);
        texts
    }

    /// Texts that leave the picture, and texts that overlap.
    fn unreadable(&self) -> Vec<String> {
        let (texts, size) = (self.texts(), self.tree.size());
        let drawn = self.svg.matches("<text").count();
        assert!(
            texts.len() > 3 && texts.len() == drawn,
            "{}: {} of {drawn}",
            self.name,
            texts.len()
        );
        let leaves = |bounds: &Rect| {
            bounds.left() < 0.0
                || bounds.top() < 0.0
                || bounds.right() > size.width()
                || bounds.bottom() > size.height()
        };
        let mut unreadable = Vec::new();
        for (at, (text, bounds)) in texts.iter().enumerate() {
            if leaves(bounds) {
                unreadable.push(format!("{}: {text:?} at {bounds:?} leaves {size:?}", self.name));
            }
            let others = texts[..at].iter().filter(|(_, other)| is_on(bounds, other));
            unreadable.extend(
                others.map(|(other, _)| format!("{}: {text:?} lies on {other:?}", self.name)),
            );
        }
        unreadable
    }

    fn pixel(&self, x: f32, y: f32) -> [u8; 3] {
        let pixel = self.pixels.pixel(x as u32, y as u32).unwrap();
        assert_eq!(pixel.alpha(), 255, "{}: something shows through at {x}, {y}", self.name);
        [pixel.red(), pixel.green(), pixel.blue()]
    }

    /// Holds the colour in the middle of a rectangle of each class to the palette; the classes found.
    fn has_the_palette(&self) -> Vec<&'static str> {
        let document = Document::parse(&self.svg).unwrap();
        let rectangle = |class| {
            let is_plain = |node: &Node<'_, '_>| {
                node.has_tag_name("rect") && node.attribute("class").is_some_and(|of| of == class)
            };
            document.descendants().find(is_plain)
        };
        let mut found = Vec::new();
        for (class, colour) in PALETTE {
            let Some(node) = rectangle(class) else { continue };
            let (x, y) = middle(node);
            assert_eq!(self.pixel(x, y), colour, "{}: {class} at {x}, {y}", self.name);
            found.push(class);
        }
        found
    }
}

/// Whether two texts overlap. The boxes of lines do a little: they have room for any letter.
fn is_on(one: &Rect, other: &Rect) -> bool {
    let overlap = |from: [f32; 2], to: [f32; 2]| to[0].min(to[1]) - from[0].max(from[1]);
    overlap([one.left(), other.left()], [one.right(), other.right()]) > 0.0
        && overlap([one.top(), other.top()], [one.bottom(), other.bottom()]) > 4.0
}

/// The middle of a rectangle in the picture.
fn middle(node: Node<'_, '_>) -> (f32, f32) {
    let number = |name| node.attribute(name).unwrap().parse::<f32>().unwrap();
    let (mut x, mut y) =
        (number("x") + number("width") / 2.0, number("y") + number("height") / 2.0);
    for group in node.ancestors().filter_map(|node| node.attribute("transform")) {
        let moved = group.strip_prefix("translate(").unwrap().strip_suffix(')').unwrap();
        let mut moved = moved.split([' ', ',']).map(|number| number.parse::<f32>().unwrap());
        x += moved.next().unwrap();
        y += moved.next().unwrap();
    }
    (x, y)
}

/// Files of the pages.
fn shown_by_pages() -> Vec<PathBuf> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let files = [docs.clone(), docs.join("research"), docs.join("research/window-paper")];
    let files = files.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "svg"));
    files.sort();
    files
}

#[test]
fn the_pictures_of_the_pages() {
    let files = shown_by_pages();
    assert!(files.len() >= 10, "{files:?}");
    let mut unreadable = Vec::new();
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let drawn = Drawn::of(name, fs::read_to_string(&path).unwrap());
        unreadable.extend(drawn.unreadable());
        let size = drawn.tree.size();
        assert_eq!(drawn.pixel(size.width() - 20.0, 3.0), [255; 3], "{name} is light");
        let found = drawn.has_the_palette();
        match name {
            "plan.svg" => assert!(found.contains(&"repeat") && found.len() >= 8, "{found:?}"),
            "flow.svg" => assert_eq!(found, STREAMS),
            _ => {}
        }
    }
    assert_eq!(unreadable, [""; 0]);
}

/// Names as long as they may get, so that nothing of the picture has room to spare.
#[test]
fn the_picture_of_a_plan() {
    let folder = Folder::new();
    let long = format!("{:?}", "a long name, ".repeat(50));
    folder.run(&["model", SMALL, "-o", "g.json"]).done();
    let graph = fs::read_to_string(folder.path("g.json")).unwrap();
    let (start, rest) = graph.split_once("\"name\":").unwrap();
    let (_, end) = rest.split_once("\",").unwrap();
    folder.write("g.json", format!("{start}\"name\":{long},{end}"));
    for (name, work, arguments) in [
        ("plan-resnet.svg", SMALL, &["-b", "35%"][..]),
        ("plan-once.svg", SMALL, &["-b", "60%", "-s", "on-demand"]),
        ("plan-long.svg", "g.json", &["-b", "35%"]),
    ] {
        let plan = [&["plan", work, "--picture", name], arguments].concat();
        folder.run(&plan).done();
        let drawn = Drawn::of(name, fs::read_to_string(folder.path(name)).unwrap());
        assert_eq!(drawn.unreadable(), [""; 0]);
        let found = drawn.has_the_palette();
        assert!(STREAMS.iter().all(|stream| found.contains(stream)), "{found:?}");
        assert_eq!(found.contains(&"repeat"), name != "plan-once.svg", "{found:?}");
    }
}

#[test]
fn the_picture_of_a_comparison() {
    let folder = Folder::new();
    let compare = ["compare", SMALL, "--plot", "c.svg", "-b", "10%,60%"];
    folder.run(&compare).done();
    let drawn = Drawn::of("compare.svg", fs::read_to_string(folder.path("c.svg")).unwrap());
    assert_eq!(drawn.unreadable(), [""; 0]);
    let legend = drawn.texts();
    assert!(legend.iter().any(|(text, _)| text.contains("(from ")), "the widest entries");
}
