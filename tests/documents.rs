//! What the documents say of names and numbers is what the sources have: links, functions, variables, targets, stages, the
//! types of messages, codes, sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rdma_transport::engine::transfer::sizes::{SIZES, Sizes};

/// Names of others that look like ours: a header and a kernel module.
const THEIRS: [&str; 2] = ["rdma_cma", "rdma_ucm"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Files below these places whose name has one of these ends; what is hidden or built is left out.
fn files(places: &[&str], ends: &[&str]) -> Vec<PathBuf> {
    let mut todo: Vec<PathBuf> = places.iter().map(|place| root().join(place)).collect();
    let mut found = Vec::new();
    while let Some(path) = todo.pop() {
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into());
        if name.starts_with('.') || ["target", "build", "corpus"].contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).expect("list").map(|e| e.expect("entry").path()));
        } else if ends.iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
    found
}

/// Each document: its path from the root, and its text.
fn documents() -> Vec<(String, String)> {
    let mut all = files(&["docs", "integrations", "examples", "tests"], &[".md"]);
    all.extend(["README.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    let named = |path: PathBuf| {
        let name =
            path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("a text"))
    };
    all.into_iter().map(named).collect()
}

/// What every other part is: inside of fences, or not.
fn apart(text: &str) -> (String, String) {
    let (mut prose, mut code, mut fenced) = (String::new(), String::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else {
            let to = if fenced { &mut code } else { &mut prose };
            to.push_str(line);
            to.push('\n');
        }
    }
    (prose, code)
}

/// What stands in backticks.
fn quoted(prose: &str) -> impl Iterator<Item = &str> {
    prose.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// The anchors of a document, as they are made of its headings.
fn anchors(text: &str) -> Vec<String> {
    let headings = apart(text).0;
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Columns of the rows of tables.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let cut = |line| str::trim(line).trim_matches('|').split('|').map(str::trim).collect();
    text.lines().filter(|line| line.starts_with('|')).map(cut)
}

fn nothing(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for (name, text) in documents() {
        let folder = root().join(&name).parent().expect("a folder").to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { root().join(&name) } else { folder.join(path) };
            let has = |text: String| anchors(&text).iter().any(|found| found == anchor);
            let is_there = match anchor {
                "" => target.exists(),
                _ => fs::read_to_string(&target).is_ok_and(has),
            };
            if !is_there {
                wrong.push(format!("{name}: {link} leads nowhere"));
            }
        }
    }
    nothing(wrong);
}

#[test]
fn what_is_named_is_in_the_sources() {
    let places = [
        "include",
        "src",
        "c_tests",
        "bench",
        "tools",
        "integrations",
        "tests",
        "scripts",
        "Makefile",
    ];
    let ends = [".rs", ".c", ".h", ".hpp", ".cpp", ".cc", ".py", ".txt", "Makefile"];
    let texts: Vec<String> = files(&places, &ends)
        .into_iter()
        .filter(|path| !path.ends_with("tests/documents.rs"))
        .map(|path| fs::read_to_string(path).expect("a text"))
        .collect();
    let known: BTreeSet<&str> = texts.iter().flat_map(|text| words(text)).collect();
    let ours = |word: &&str| word.starts_with("rdma_") || word.starts_with("RDMA_");
    let mut wrong = Vec::new();
    for (name, text) in documents() {
        let (prose, code) = apart(&text);
        let all: Vec<&str> = quoted(&prose).chain(code.lines()).collect();
        for word in all.into_iter().flat_map(words).filter(ours) {
            // `rdma_msg_*` stands for many.
            if !word.ends_with('_') && !THEIRS.contains(&word) && !known.contains(word) {
                wrong.push(format!("{name}: {word} is nowhere in the sources"));
            }
        }
    }
    // The sequences of protocols name calls as the header has them.
    let header = read("include/rdma_transport.h");
    let calls: BTreeSet<&str> = words(&header).collect();
    let sequences = files(&["docs/protocols"], &[".txt"]);
    assert!(sequences.len() > 10, "{sequences:?}");
    for path in sequences {
        let text = fs::read_to_string(&path).expect("a text");
        let missing = words(&text).filter(ours).filter(|word| !calls.contains(word));
        wrong
            .extend(missing.map(|word| format!("{}: {word} is not in the header", path.display())));
    }
    nothing(wrong);
}

/// The Makefile and what it includes.
fn makefiles() -> String {
    let mut paths = files(&["mk"], &[".mk"]);
    paths.sort();
    paths.insert(0, root().join("Makefile"));
    paths.into_iter().map(|path| fs::read_to_string(path).expect("a text") + "\n").collect()
}

#[test]
fn targets_of_make_are_there() {
    let makefiles = makefiles();
    let phony = makefiles.lines().filter_map(|line| line.strip_prefix(".PHONY:"));
    let targets: BTreeSet<&str> = phony.flat_map(str::split_whitespace).collect();
    let mut wrong = Vec::new();
    for (name, text) in documents() {
        let (prose, code) = apart(&text);
        for line in quoted(&prose).chain(code.lines()) {
            let Some(rest) = line.strip_prefix("make ") else { continue };
            let target = rest.split_whitespace().next().unwrap_or("#");
            let is_name = target.starts_with(|c: char| c.is_ascii_lowercase());
            if is_name && !target.contains('=') && !targets.contains(target) {
                wrong.push(format!("{name}: there is no `make {target}`"));
            }
        }
    }
    nothing(wrong);
}

#[test]
fn the_stages_of_make_test_are_those() {
    let makefiles = makefiles();
    let lines = makefiles.lines().filter(|line| line.starts_with("STAGES"));
    let stages: Vec<&str> = lines
        .filter_map(|line| line.split_once('='))
        .flat_map(|(_, names)| names.split_whitespace())
        .collect();
    let line = format!("stages: {}\n", stages.join(" "));
    assert!(read("CONTRIBUTING.md").contains(&line), "CONTRIBUTING.md lacks {line}");
}

/// The variables that the library looks for, by its list.
fn variables() -> BTreeSet<String> {
    let source = read("src/config/misspelt.rs");
    let (_, list) = source.split_once("const KNOWN").expect("the list");
    let (list, _) = list.split_once("];").expect("its end");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn each_variable_is_documented() {
    let mut settings = variables();
    settings.retain(|name| !name.starts_with("RDMA_TEST_") && !name.starts_with("RDMA_TF_"));
    let readme = read("README.md");
    let (_, settings_there) = readme.split_once("\n## Settings\n").expect("a section");
    let (settings_there, _) = settings_there.split_once("\n## ").expect("its end");
    let first: Vec<&str> = rows(settings_there).map(|columns| columns[0]).collect();
    let named: BTreeSet<String> = first.iter().flat_map(|c| quoted(c)).map(str::to_owned).collect();
    assert_eq!(named, settings, "README.md, the table of settings");
    let header = read("cbindgen.toml");
    let (_, environment) = header.split_once(" * Environment. ").expect("a paragraph");
    let (environment, _) = environment.split_once(" */").expect("its end");
    let variable = |word: &&str| word.starts_with("RDMA_");
    let named: BTreeSet<String> = words(environment).filter(variable).map(str::to_owned).collect();
    assert_eq!(named, settings, "cbindgen.toml, the paragraph of the environment");
    let tensorflow = read("docs/tensorflow.md");
    for name in variables().iter().filter(|name| name.starts_with("RDMA_TF_")) {
        let begins = format!("| `{name}` |");
        assert!(tensorflow.contains(&begins), "docs/tensorflow.md has no row of {name}");
    }
}

/// Bytes as the documents have them.
fn size(n: i64) -> String {
    match n {
        0..1024 => n.to_string(),
        _ if n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        _ => format!("{} KiB", n >> 10),
    }
}

#[test]
fn sizes_have_the_documented_defaults_and_ranges() {
    let tuning = read("docs/tuning.md");
    let table: BTreeMap<&str, (&str, &str)> = rows(&tuning)
        .filter(|columns| columns.len() == 3)
        .map(|columns| (columns[0].trim_matches('`'), (columns[1], columns[2])))
        .collect();
    for (which, entry) in SIZES.iter().enumerate() {
        let (default, what) = table.get(entry.variable).expect(entry.variable);
        let number = default.split(':').next().unwrap_or_default();
        assert_eq!(number, size(Sizes::default().get(which)), "{}", entry.variable);
        let power = |n: i64| {
            if n > 1 << 20 { format!("2^{}", n.ilog2()) } else { n.to_string() }
        };
        let (least, most) = entry.range;
        // What may be any length has no upper end in words.
        let range = format!("{least} to {}", power(most));
        assert!(most == i64::MAX || what.contains(&range), "{}: {range}", entry.variable);
    }
}

/// Numbers of messages in the sources: `const PING: u8 = 10;` among others, which are flags.
fn message_types() -> BTreeMap<u8, String> {
    let mut types = BTreeMap::new();
    for path in ["message.rs", "message/pairs.rs", "message/buffers.rs", "message/rails.rs"] {
        let source = read(format!("src/protocol/{path}"));
        for line in source.lines().filter_map(|line| line.strip_prefix("const ")) {
            let Some((name, rest)) = line.split_once(": u8 = ") else { continue };
            if name.starts_with("F_") {
                continue;
            }
            let number = rest.split(';').next().and_then(|n| n.parse().ok()).expect("a number");
            assert_eq!(types.insert(number, name.to_owned()), None, "{name}");
        }
    }
    types
}

#[test]
fn messages_have_the_documented_numbers() {
    let protocol = read("docs/protocol.md");
    let (wire, _) = protocol.split_once("\nFurther flags:").expect("behind the table");
    let of = |columns: Vec<&str>| Some((columns[0].parse().ok()?, (*columns.get(1)?).to_owned()));
    let documented: BTreeMap<u8, String> =
        rows(wire).filter(|columns| columns.len() == 4).filter_map(of).collect();
    assert_eq!(documented, message_types(), "docs/protocol.md, the table of types");
}

#[test]
fn codes_and_reasons_are_those_of_the_header() {
    let (header, abi) = (read("include/rdma_transport.h"), read("docs/abi.md"));
    let (codes, _) = header.split_once("RDMA_REASON_NONE").expect("codes come first");
    let (_, codes) = codes.split_once("#define RDMA_OK").expect("the first");
    let codes = format!("#define RDMA_OK{codes}");
    let defined = codes.lines().filter_map(|line| line.strip_prefix("#define RDMA_"));
    let wanted: Vec<String> = defined
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| *name != "REASON_NONE" && !name.is_empty())
        .map(|(name, number)| format!("| `RDMA_{name}` | {number} |"))
        .collect();
    assert_eq!(wanted.len(), 17, "{wanted:?}");
    let reasons = header.lines().filter_map(|line| line.strip_prefix("#define RDMA_REASON_"));
    let reasons = reasons.filter_map(|line| line.split(' ').next());
    let reasons = reasons.map(|name| format!("| `RDMA_REASON_{name}` |"));
    let lacks = |row: &String| !abi.contains(row);
    let wrong = wanted.into_iter().chain(reasons).filter(lacks);
    nothing(wrong.map(|row| format!("docs/abi.md lacks {row}")).collect());
}

#[test]
fn a_slip_is_noticed() {
    let (prose, code) = apart("a `b c`\n```sh\nmake it\n```\n## It, and `more`: 2\n`d`");
    assert_eq!(quoted(&prose).collect::<Vec<_>>(), ["b c", "more", "d"]);
    assert_eq!((code.as_str(), anchors(&prose)), ("make it\n", vec!["it-and-more-2".to_owned()]));
    assert_eq!(words("rdma_x(RDMA_Y)").collect::<Vec<_>>(), ["rdma_x", "RDMA_Y"]);
    assert_eq!([size(4), size(4096), size(1 << 20)], ["4", "4 KiB", "1 MiB"]);
    assert!(variables().len() > 30 && message_types().len() > 30);
}
