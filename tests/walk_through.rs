//! "One tensor, step by step" in `docs/design.md` names files and functions: they are there.

use std::fs;
use std::path::Path;

const PAGE: &str = "## One tensor, step by step";

/// File, and what is in backticks in the column after it, of each step.
fn steps(document: &str) -> Vec<(&str, &str)> {
    let (_, page) = document.split_once(PAGE).expect("the page");
    let page = page.split("\n## ").next().unwrap_or(page);
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
    let document = fs::read_to_string(root.join("docs/design.md")).expect("docs/design.md");
    let steps = steps(&document);
    assert!(steps.len() > 30, "{} steps", steps.len());
    for (file, function) in steps {
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
    assert_eq!(steps(&page), [("src/a.rs", "f")]);
}
