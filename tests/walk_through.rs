//! "One tensor, step by step" in `docs/design.md`, and `docs/protocols.md`, name files and functions: they are there. The
//! pictures of the latter are what their texts say.

use std::fs;
use std::path::Path;
use std::process::Command;

const PAGE: &str = "## One tensor, step by step";

/// The part of a document below this heading.
fn page_of(document: &str) -> &str {
    let (_, page) = document.split_once(PAGE).expect("the page");
    page.split("\n## ").next().unwrap_or(page)
}

/// File, and what is in backticks in the column after it, of each step.
fn steps(page: &str) -> Vec<(&str, &str)> {
    page.lines()
        .filter_map(|line| {
            let mut columns = line.split('|').map(str::trim).skip(2);
            let file = columns.next().filter(|file| file.ends_with(".rs"))?;
            Some((file, columns.next()?.trim_matches('`')))
        })
        .collect()
}

fn has_function(source: &str, name: &str) -> bool {
    source
        .split("fn ")
        .skip(1)
        .any(|rest| rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', '<'])))
}

#[test]
fn every_step_is_where_the_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let design = fs::read_to_string(root.join("docs/design.md")).expect("docs/design.md");
    let protocols = fs::read_to_string(root.join("docs/protocols.md")).expect("docs/protocols.md");
    let [one, two] = [steps(page_of(&design)), steps(&protocols)];
    assert!(one.len() > 30 && two.len() > 40, "{} and {} steps", one.len(), two.len());
    for (file, function) in [one, two].concat() {
        let source = fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(has_function(&source, function), "{file} has no function {function}");
    }
}

#[test]
fn a_function_that_is_gone_is_noticed() {
    assert!(has_function("pub fn run<T>(t: T) {}", "run") && has_function("fn run(", "run"));
    assert!(!has_function("fn run_all() {}", "run") && !has_function("run()", "run"));
    let page = format!(
        "{PAGE}\n\n| | File | Function |\n| 1 | src/a.rs | `f` | x |\n\n## Next\n| 1 | src/b.rs | `g` |"
    );
    assert_eq!(steps(page_of(&page)), [("src/a.rs", "f")]);
}

#[test]
fn the_pictures_of_protocols_are_drawn_from_their_texts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let drawn = Command::new(root.join("scripts/protocol-svg")).arg("--check").output();
    let drawn = drawn.expect("scripts/protocol-svg runs");
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stdout));
    let document = fs::read_to_string(root.join("docs/protocols.md")).expect("docs/protocols.md");
    for entry in fs::read_dir(root.join("docs/protocols")).expect("docs/protocols") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        let shown = document.contains(&format!("](protocols/{name})"));
        assert!(shown || !name.ends_with(".svg"), "docs/protocols.md does not show {name}");
    }
}
