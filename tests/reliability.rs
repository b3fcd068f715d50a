//! `docs/reliability.md` is no promise that nobody keeps: each of its classes has a section, and each test that a section
//! names is in the tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const SECTIONS: usize = 46;
/// Where tests live.
const PLACES: [&str; 8] =
    ["src", "tests", "c_tests", "integrations", "softroce", "scripts", "fuzz", "mk"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A section: its number, what it says, and the tests that it names.
struct Section<'a> {
    number: usize,
    text: &'a str,
}

fn sections(document: &str) -> Vec<Section<'_>> {
    document
        .split("\n## ")
        .skip(1)
        .map(|text| {
            let number = text.split_once('.').and_then(|(n, _)| n.parse().ok());
            Section { number: number.unwrap_or_else(|| panic!("no number: ## {text:.40}")), text }
        })
        .collect()
}

/// What stands in backticks in the paragraphs that begin with `Tests:`.
fn tests(section: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for paragraph in section.split("\n\n") {
        let Some(at) = paragraph.find("Tests:") else { continue };
        found.extend(paragraph[at..].split('`').skip(1).step_by(2));
    }
    found
}

/// The word before the name of a test where it is defined: Rust, Python, C, a list of the Soft-RoCE machine, CMake.
const BEFORE: [&str; 9] = ["fn", "def", "void", "int", "bool", "CASE", "SLOW", "test", "rt_test"];

/// Whatever the sources define that a test may be called.
fn names_in_the_tree() -> BTreeSet<String> {
    let mut todo: Vec<PathBuf> = PLACES.iter().map(|p| root().join(p)).collect();
    let mut names = BTreeSet::new();
    while let Some(path) = todo.pop() {
        let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        if hidden || path.ends_with("target") || path.ends_with("corpus") {
            continue;
        }
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).expect("list").map(|e| e.expect("entry").path()));
            continue;
        }
        // A file's own name counts: a program, a list, a stage.
        for part in [path.file_name(), path.file_stem()].into_iter().flatten() {
            names.insert(part.to_string_lossy().into_owned());
        }
        let Ok(text) = fs::read_to_string(&path) else { continue };
        // A row of a table of cases.
        let rows = text.split("{\"").skip(1).filter_map(|row| row.split('"').next());
        names.extend(rows.map(str::to_owned));
        let word = |c: char| !(c.is_alphanumeric() || "_-".contains(c));
        let mut before = "";
        for word in text.split(word).filter(|w| !w.is_empty()) {
            if BEFORE.contains(&before) {
                names.insert(word.to_owned());
            }
            before = word;
        }
    }
    names
}

/// `module::case`, `test_file.case`, `path/to/file.rs`: the last part counts.
fn last_part(name: &str) -> &str {
    let name = name.split_whitespace().last().unwrap_or(name);
    let file = name.rsplit('/').next().unwrap_or(name);
    if file.contains("::") { file.rsplit("::").next().unwrap_or(file) } else { file }
}

fn exists(names: &BTreeSet<String>, test: &str) -> bool {
    let last = last_part(test);
    // "test_processes.case" is written with a dot.
    let case = last.rsplit('.').next().filter(|case| !["rs", "c", "cpp", "py"].contains(case));
    names.contains(last) || case.is_some_and(|case| names.contains(case))
}

#[test]
fn r28_reliability_has_each_section_and_its_tests_exist() {
    let document = fs::read_to_string(root().join("docs/reliability.md")).expect("document");
    let sections = sections(&document);
    let numbers: Vec<usize> = sections.iter().map(|s| s.number).collect();
    assert_eq!(numbers, (1..=SECTIONS).collect::<Vec<_>>(), "sections of docs/reliability.md");
    let names = names_in_the_tree();
    let mut wrong = Vec::new();
    for Section { number, text } in &sections {
        let tests = tests(text);
        if tests.is_empty() && !text.contains("\nOpen.") {
            wrong.push(format!("section {number} names no test, and does not say `Open.`"));
        }
        let missing = tests.iter().filter(|t| !exists(&names, t));
        wrong.extend(missing.map(|t| format!("section {number}: there is no test `{t}`")));
    }
    assert!(wrong.is_empty(), "docs/reliability.md:\n{}", wrong.join("\n"));
}

/// The table of docs/gloo.md that goes through Gloo's transport part by part: its last column names tests.
#[test]
fn each_part_of_gloos_transport_has_tests_that_exist() {
    let document = fs::read_to_string(root().join("docs/gloo.md")).expect("document");
    let (_, section) = document.split_once("\n## Part by part\n").expect("section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows: Vec<&str> = section.lines().filter(|l| l.starts_with("| ")).skip(1).collect();
    assert!(rows.len() >= 16, "{} parts", rows.len());
    let names = names_in_the_tree();
    let mut wrong = Vec::new();
    for row in rows {
        let column = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or_default();
        let tests: Vec<&str> = column.split('`').skip(1).step_by(2).collect();
        if tests.is_empty() {
            wrong.push(format!("no test: {row}"));
        }
        let missing = tests.iter().filter(|t| !exists(&names, t));
        wrong.extend(missing.map(|t| format!("there is no test `{t}`")));
    }
    assert!(wrong.is_empty(), "docs/gloo.md:\n{}", wrong.join("\n"));
}

#[test]
fn r28_a_test_that_does_not_exist_is_noticed() {
    let names = names_in_the_tree();
    assert!(exists(&names, "wake_for_output"));
    assert!(exists(&names, "arming::wake_for_output"));
    assert!(exists(&names, "tests/header.rs"));
    assert!(exists(&names, "test_processes.receiver_killed_in_the_middle"));
    for name in ["no_such_test", "arming::no_such_test", "tests/no_such_file.rs", "PATIENCE"] {
        assert!(!exists(&names, name), "{name}");
    }
    let text = "8. Name\n\nSome `code`.\n\nTests: `one`, `two::three`\nand `four`.\n\nMore `code`.";
    assert_eq!(tests(text), ["one", "two::three", "four"]);
}
